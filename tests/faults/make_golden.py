"""Make golden/VERSION: a small run, its bundle and last checkpoint, 20 lines and their translations, in today's format.

Run once for each release, and never again for an old one: `python tests/faults/make_golden.py golden/0.2.0`. For
another kind of model, with keys of [model] as JSON: `… golden/0.7.0-rnn '{"type": "rnn"}'`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
UPDATES = 1500
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from faults.recipe import digest  # noqa: E402
from nmt.bundle import list_checkpoints  # noqa: E402
from tiny import SHAPE, sentences, write  # noqa: E402


def nmt(folder: Path, *arguments: object, text: bytes = b"") -> bytes:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "nmt", *map(str, arguments)]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, cwd=folder, env=environment, check=True).stdout


def make(golden: Path, model: dict[str, object]) -> None:
    golden.mkdir(parents=True)  # it must not be there: what was released stays as it is
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(
            folder,
            pairs=1000,
            data={"dir": ".", "train": "train", "valid_size": 20},  # relative: it is kept in config.json
            tokenizer={"vocab_size": 60, "byte_fallback": False, "normalization": "identity"},  # a small file
            model={**SHAPE, "dropout": 0.0, **model},
            training={"max_updates": UPDATES, "tokens_per_batch": 700, "warmup_updates": 100, "log_every": 100},
            validation={"every": 250, "max_sentences": 5, "metric": "loss"},
        )
        nmt(folder, "train", "tiny.toml", "--out", "run", "--device", "cpu", "--threads", 1)
        shutil.copytree(folder / "run" / "bundle", golden / "bundle")
        last = list_checkpoints(folder / "run")[-1]
        shutil.copytree(last, golden / "run" / "checkpoints" / last.name)
        source = "".join(f"{line}\n" for line in sentences(20, seed=8)[0]).encode()
        (golden / "source.txt").write_bytes(source)
        (golden / "translations.txt").write_bytes(nmt(folder, "translate", "--model", golden / "bundle", text=source))
        expected = {"update": UPDATES, "weights": digest(last / "model.safetensors")}
        (golden / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    make(HERE / sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
