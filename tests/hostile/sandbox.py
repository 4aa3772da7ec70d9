"""What becomes of hostile files: each is opened in a forked child that has little memory and little time.

The child is forked from this process, which has torch imported, so that limits count above that.
"""

import contextlib
import faulthandler
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nmt.errors import NmtError


@dataclass(frozen=True)
class Outcome:
    """How the work on one item ended.

    Attributes:
        kind: what the work returned, the name of the error that it raised, or "killed by …".
        message: of the error.
        seconds, megabytes: the time it took, and how far peak memory grew in its child until then.
    """

    kind: str
    message: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0


def outcomes(
    work: Callable[[Any], str], items: Sequence[Any], *, seconds: float = 2.0, megabytes: int = 512, together: int = 500
) -> list[Outcome]:
    """Work on each item in a child, `together` items in one unless it dies. Raises nothing of what happens there."""
    found: list[Outcome] = []
    while len(found) < len(items):
        batch = items[len(found) : len(found) + together]
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _work_through(work, batch, writer, seconds, megabytes)
        os.close(writer)
        with open(reader) as lines:
            found += [Outcome(*json.loads(line)) for line in lines]
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            found.append(Outcome(f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"))
    return found


def _work_through(
    work: Callable[[Any], str], batch: Sequence[Any], writer: int, seconds: float, megabytes: int
) -> None:
    """In the child: one line of JSON an item, then the end."""
    faulthandler.disable()  # pytest's
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # where there is no /proc, time is the only limit
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    before = _peak_megabytes()
    for item in batch:
        began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        message = ""
        try:
            kind = work(item)
        except NmtError as error:
            kind, message = type(error).__name__, str(error)
        except BaseException as error:
            kind, message = type(error).__name__, repr(error)[:500]
        signal.setitimer(signal.ITIMER_REAL, 0)
        line = json.dumps([kind, message, time.perf_counter() - began, _peak_megabytes() - before])
        os.write(writer, line.encode() + b"\n")
    os._exit(0)


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
