"""Runs of several ranks: warm children that meet at a port, and the real torchrun with `rank_hooks` as its program."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults.recipe import Recipe, differences, fingerprint, scale
from faults.warm import ROOT, Child, Hook, Result, Warm

UPDATES = scale(24, 60)  # of a run
LENGTH = ("--set", f"training.max_updates={UPDATES}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    warm: Warm,
    arguments: Iterable[object],
    world: int = 2,
    hooks: Iterable[Hook] = (),
    *,
    only: Iterable[int] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Child]:
    """Start the command line once a rank, with torchrun's variables.

    Args:
        only: the ranks that are started; all by default.
        env: more variables, or other ones.
    """
    arguments, hooks = list(arguments), list(hooks)
    meeting = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(env or {})}
    ranks = range(world) if only is None else only
    return [warm.start(arguments, hooks, env={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in ranks]


def run(
    warm: Warm, arguments: Iterable[object], world: int = 2, hooks: Iterable[Hook] = (), **options: Any
) -> list[Result]:
    """`start`, and wait for the end of all."""
    return [child.wait() for child in start(warm, arguments, world, hooks, **options)]


def finish(warm: Warm, recipe: Recipe, folder: Path, world: int = 2, hooks: Iterable[Hook] = ()) -> None:
    """Make or resume a run, to its end."""
    results = run(warm, recipe.arguments(folder, *LENGTH), world, hooks)
    assert [result.code for result in results] == [0] * world, [result.stderr for result in results]


def parts_that_differ(expected: dict[str, Any], folder: Path) -> list[str]:
    return differences(expected, fingerprint(folder))


def records(folder: Path) -> list[dict[str, Any]]:
    """What log.jsonl holds; a torn last line is left out."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / "log.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def reached(folder: Path) -> int:
    """The last update in the log of a run."""
    return max((line["update"] for line in records(folder)), default=0)


def notes(file: Path, world: int) -> list[list[str]]:
    """What a hook wrote down on each rank."""
    files = [Path(f"{file}.{rank}") for rank in range(world)]
    return [path.read_text().splitlines() if path.exists() else [] for path in files]


# The real torchrun


class Torchrun:
    """A running `torchrun`, whose output goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process, self._output = process, output

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def workers(self) -> list[int]:
        """Pids of the ranks of the current attempt, in order of their start."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        try:
            pids = [int(pid) for pid in children.read_text().split()]
        except FileNotFoundError:
            return []
        return sorted(pid for pid in pids if process_state(pid) not in ("Z", ""))

    def send(self, number: int, *, agent: bool = False, workers: Sequence[int] = ()) -> None:
        """A signal to torchrun itself, to some of its workers (by rank), or to all."""
        pids = self.workers()
        for pid in [*(pids[rank] for rank in workers if rank < len(pids)), *[self._process.pid] * agent]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float = 60.0) -> int:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"torchrun still runs after {timeout_s} s:\n{self.output}") from None


@contextmanager
def torchrun(
    folder: Path,
    arguments: Iterable[object],
    hooks: Iterable[Hook] = (),
    options: Iterable[str] = (),
    program: str = "faults.rank_hooks",
) -> Iterator[Torchrun]:
    """`torchrun --nproc-per-node 2 -m PROGRAM ARGUMENTS`; what still runs at the end of the block is killed.

    Args:
        program: `nmt`, or `faults.rank_hooks`, which applies the hooks and then is nmt.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NMT_HOOKS": json.dumps(list(hooks))}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*launcher, *options, "-m", program, *map(str, arguments)]
    output = folder / "torchrun.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    running = Torchrun(process, output)
    try:
        yield running
    finally:
        pids = running.workers()
        process.kill()
        process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def process_state(pid: int) -> str:
    """Its letter in /proc, such as Z of a zombie and T of what SIGSTOP has stopped; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began = time.monotonic()
    return work(), time.monotonic() - began
