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
        seconds, megabytes: of a core that it took, and how far peak memory grew in its child until then.
    """

    kind: str
    message: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0


@dataclass(frozen=True)
class Limits:
    """Of one item: seconds of a core, and by the clock, which other work on the machine makes longer; memory above now.

    A child works on `together` items, unless one ends it.
    """

    cpu_s: float = 2.0
    clock_s: float = 20.0
    megabytes: int = 512
    together: int = 500


def outcomes(work: Callable[[Any], str], items: Sequence[Any], limits: Limits = Limits()) -> list[Outcome]:
    """Work on each item in a child. Raises nothing of what happens there."""
    found: list[Outcome] = []
    while len(found) < len(items):
        batch = items[len(found) : len(found) + limits.together]
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                _work_through(work, batch, writer, limits)
            finally:
                os._exit(1)  # whatever happened, no second pytest goes on from here
        os.close(writer)
        with open(reader) as lines:
            found += [Outcome(*json.loads(line)) for line in lines]
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            found.append(Outcome(f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"))
    return found


def _work_through(work: Callable[[Any], str], batch: Sequence[Any], writer: int, limits: Limits) -> None:
    """In the child: one line of JSON an item, then the end."""
    faulthandler.disable()  # pytest's
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # where there is no /proc, time is the only limit
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + (limits.megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    before = _peak_megabytes()
    for item in batch:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, limits.clock_s)
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
        message = ""
        try:
            kind = work(item)
        except NmtError as error:
            kind, message = type(error).__name__, str(error)
        except BaseException as error:
            kind, message = type(error).__name__, repr(error)[:500]
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        line = json.dumps([kind, message, time.process_time() - began, _peak_megabytes() - before])
        os.write(writer, line.encode() + b"\n")
    os._exit(0)


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
