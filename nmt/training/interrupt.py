"""SIGTERM and SIGINT: finish the update, save, stop with exit code 143 or 130."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nmt.errors import Interrupted


class StopRequest:
    """Remembers the first signal while work that must be finished runs; a second signal ends the process at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._deferring = False

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Within the block SIGTERM and SIGINT raise `Interrupted`, or are remembered inside `deferred`."""
        previous = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within the block signals are only remembered: the block looks at `signal_number` where it can stop."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring:
            raise Interrupted(number, "Stopped before training began; what was prepared is kept.")
        if self.signal_number is not None:
            os._exit(128 + number)
        self.signal_number = number
