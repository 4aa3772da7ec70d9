"""What benches share: the FIGURE line, running the command line, and watching its memory."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REAL_DATA = ROOT.parent / "shared" / "data"


def figure_line(name: str, value: object, asked: str, ok: bool) -> str:
    """`FIGURE name = value (asked target) ok|short`."""
    return f"FIGURE {name} = {value} (asked {asked}) {'ok' if ok else 'short'}"


def nmt(*arguments: object, **options: object) -> str:
    """Run `nmt` with its progress shown; return its stdout. A failure ends the bench."""
    command = [sys.executable, "-m", "nmt", *map(str, arguments)]
    print("$ nmt", *arguments, file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options)
    if done.returncode:
        sys.exit(f"nmt {arguments[0]} ended with {done.returncode}")
    return done.stdout


@contextmanager
def private_memory(pid: int, every_s: float) -> Iterator[list[float]]:
    """Watch a process and its children within the block: a list that holds the most private memory so far, in MB.

    Private is RssAnon + RssShmem, summed over all processes alive at a sample.
    """
    peak_mb, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            peak_mb[0] = max(peak_mb[0], sum(private_mb(member) for member in _family(pid)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak_mb
    finally:
        ended.set()
        watcher.join()


def _family(pid: int) -> list[int]:
    """A process and all that descend from it, whichever of their threads began them."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(member for child in children for member in _family(child))]


def private_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))) / 1024
