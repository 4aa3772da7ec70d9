"""The README's first minute: run its commands, as they stand there, time them, print what they reach."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "bench"))

from figures import figure_line  # noqa: E402


def readme_commands(section: str) -> list[str]:
    """The commands of the first bash block below a heading of the README; a trailing backslash joins lines."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(rf"^## {re.escape(section)}$.*?^```bash\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block, f"the README has no bash block below {section!r}"
    lines = block[1].replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := line.partition("  #")[0].strip())]


def run(command: str, folder: Path) -> str:
    """Run a shell command in a folder with this Python's `nmt`; return its stdout. Raises: CalledProcessError."""
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)  # noqa: S602
    return done.stdout.decode()


def bleu_of(output: str) -> float:
    """The BLEU that `nmt eval` printed."""
    found = re.search(r"^BLEU ([\d.]+)", output, re.MULTILINE)
    assert found, output
    return float(found[1])


def main() -> None:
    """Run all, then print the figures."""
    shutil.rmtree(ROOT / "runs" / "toy", ignore_errors=True)
    began, scores = time.monotonic(), []
    for command in readme_commands("The first minute"):
        print(f"\n$ {command}", flush=True)
        output = run(command, ROOT)
        print(output, end="", flush=True)
        scores += [bleu_of(output)] if command.startswith("nmt eval") else []
    minutes = (time.monotonic() - began) / 60
    print()
    print(figure_line("demo_minutes", f"{minutes:.2f}", "< 3", minutes < 3))
    print(figure_line("toy_test_bleu", scores[0], ">= 90", scores[0] >= 90))
    print(figure_line("toy_new_structures_bleu", scores[1], ">= 80", scores[1] >= 80))


if __name__ == "__main__":
    main()
