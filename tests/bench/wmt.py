"""The WMT path, offline: 4.5 million made-up pairs in the hub's layout, to update 200 of a tiny model.

Cleaning, tokenizer, token cache and training are those of configs/wmt14-en-de-base.toml; the model is tiny and the
batch fits a CPU. Private memory is RssAnon + RssShmem, summed over all processes of the run and sampled twice a second.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from figures import ROOT, figure_line

WORK = ROOT / "runs" / "wmt-bench"
CORPUS = WORK / "corpus"
SETTINGS = [
    f'data.train={{hf="{CORPUS}", name="de-en", split="train"}}',
    f'data.valid={{hf="{CORPUS}", name="de-en", split="validation"}}',
    "model.num_encoder_layers=4",
    "model.num_decoder_layers=4",
    "model.d_model=128",
    "model.num_heads=4",
    "model.d_ff=256",
    "training.tokens_per_batch=2048",
    "training.accumulation=1",
    "training.max_updates=200",
    "training.average_count=1",
    "training.log_every=20",
    "validation.every=200",
    "validation.max_sentences=50",
]


def main() -> None:
    """Generate the corpus if it is not there, run, print."""
    if not (CORPUS / "README.md").is_file():
        subprocess.run([sys.executable, ROOT / "tests/bench/generate_wmt.py", CORPUS], check=True)
    run = WORK / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree(WORK / "hub-cache", ignore_errors=True)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(WORK / "hub-cache")}
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "nmt", "train", "configs/wmt14-en-de-base.toml", "--out", run, *settings]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    peak_mb = [0.0]
    threading.Thread(target=_watch, args=(process.pid, peak_mb), daemon=True).start()
    if process.wait():
        sys.exit(f"nmt train ended with {process.returncode}")
    minutes = (time.monotonic() - began) / 60
    print(figure_line("wmt_path_minutes", f"{minutes:.1f}", "<= 40", minutes <= 40))
    print(figure_line("wmt_path_private_gb", f"{peak_mb[0] / 1024:.2f}", "<= 4", peak_mb[0] <= 4096))


def _watch(pid: int, peak_mb: list[float]) -> None:
    while True:
        peak_mb[0] = max(peak_mb[0], sum(_private_mb(member) for member in _family(pid)))
        time.sleep(0.5)


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [pid, *(member for child in children.read_text().split() for member in _family(int(child)))]
    except OSError:
        return [pid]


def _private_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))) / 1024


main()
