"""What benches share: the FIGURE line, and running the command line."""

import subprocess
import sys
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
