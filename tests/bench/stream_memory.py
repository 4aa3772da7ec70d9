"""Private memory of `nmt translate` while two million lines go through it.

Usage: stream_memory.py [LINES]. The model is a barely trained toy, so that lines are fast; every line is another.
"""

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from figures import figure_line, nmt, private_mb

SAMPLE_LINES = 100_000  # between two looks at the memory; the first look is the measure of the others
MOST_GROWTH_MB = 50


def main() -> None:
    """Translate, look, and print the figure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nmt("data", "toy", "--out", folder / "toy")
        sizes = ("--set", "training.max_updates=20", "--set", "model.d_model=32", "--set", "model.num_heads=1")
        nmt("train", "configs/toy.toml", "--data", folder / "toy", "--out", folder / "run", "--quiet", *sizes)
        sentences = (folder / "toy" / "train.en").read_text().splitlines()
        command = [sys.executable, "-m", "nmt", "translate", "-m", str(folder / "run"), "--beam-size", "1"]
        options = ["--max-length", "2", "--quiet"]
        with subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin and process.stdout
            threading.Thread(target=_feed, args=(process.stdin, sentences, count), daemon=True).start()
            samples = _watch(process.pid, process.stdout, count)
    if not samples:
        sys.exit(f"give at least {SAMPLE_LINES:,} lines")
    growth = max(samples) - samples[0]
    shown = f"{growth:.0f} MB more than the {samples[0]:.0f} after {SAMPLE_LINES:,}, at most, in {count:,} lines"
    print(figure_line("stream_private_memory_growth", shown, f"<= {MOST_GROWTH_MB} MB", growth <= MOST_GROWTH_MB))


def _feed(pipe: IO[bytes], sentences: list[str], count: int) -> None:
    with pipe:
        for number in range(count):
            pipe.write(f"{sentences[number % len(sentences)]} {number}\n".encode())


def _watch(pid: int, pipe: IO[bytes], count: int) -> list[float]:
    """Private memory in MB, each SAMPLE_LINES lines."""
    samples: list[float] = []
    seen = 0
    for seen, _ in enumerate(pipe, 1):
        if seen % SAMPLE_LINES == 0:
            samples.append(private_mb(pid))
            print(f"{seen:,} lines: {samples[-1]:.0f} MB", file=sys.stderr, flush=True)
    if seen != count:
        sys.exit(f"{seen} lines came out of {count}")
    return samples


if __name__ == "__main__":
    main()
