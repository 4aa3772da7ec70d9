"""SIGTERM, SIGINT and SIGHUP: finish the update, save, stop with exit code 143, 130 or 129. Standard library only.

The command installs the handlers before torch is imported.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class StopRequest:
    """What a signal does: end the process at once, or be remembered while there is something to save.

    While a run starts, and after its end, nothing is lost by ending: what is made appears complete or not at all.
    Inside `deferred` the first signal is remembered in `signal_number`, which the work looks at; a second one ends the
    process at once.

    Args:
        patient: remember further signals too. Under torchrun one Ctrl-C or one preemption arrives several times: from
            the terminal or the scheduler, and again from torchrun, which kills after 30 seconds.
        silent: say nothing on stderr.
    """

    def __init__(self, *, patient: bool = False, silent: bool = False) -> None:
        self.signal_number: int | None = None
        self._patient, self._silent = patient, silent
        self._deferring = False

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Within the block SIGTERM, SIGINT and SIGHUP are ours; under nohup the last stays ignored."""
        numbers = [signal.SIGTERM, signal.SIGINT]
        numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
        previous = {number: signal.signal(number, self._receive) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within the block signals are remembered: the block looks at `signal_number` where it can stop."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring:
            # Not an exception: raised inside an import or a finaliser it might be lost.
            self._say("Stopped by a signal; what is complete is kept.")
            os._exit(128 + number)
        if self.signal_number is not None and not self._patient:
            os._exit(128 + number)
        if self.signal_number is None:
            again = "" if self._patient else " A second signal ends it at once."
            self._say(f"A signal came: finishing this update, then saving.{again}")
        self.signal_number = number

    def _say(self, text: str) -> None:
        if not self._silent:
            with suppress(OSError):  # not print: the interrupted code may be printing
                os.write(2, f"\nnmt: {text}\n".encode())
