"""Lines of a live stream, gathered into windows without letting anyone wait."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

IDLE_S = 0.05
Line = TypeVar("Line")  # text, or what was read from it


class _End:
    """Closes the queue; carries the reader's error if there was one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def windows(lines: Iterable[Line], max_lines: int, idle_s: float | None = IDLE_S) -> Iterator[list[Line]]:
    """Gather lines; a window closes when it is full or when no line has come for `idle_s` seconds (None: it waits).

    So a whole file is translated in large batches, and a program that sends one line and waits is answered at once.
    Lines are read in a thread, at most one window ahead.
    """
    pending: queue.Queue[Line | _End] = queue.Queue(maxsize=max_lines)
    threading.Thread(target=_read_into, args=(lines, pending), daemon=True).start()
    window: list[Line] = []
    while True:
        try:
            item = pending.get(timeout=idle_s) if window else pending.get()
        except queue.Empty:
            yield window
            window = []
            continue
        if isinstance(item, _End):
            if window:
                yield window
            if item.error is not None:
                raise item.error
            return
        window.append(item)
        if len(window) == max_lines:
            yield window
            window = []


def _read_into(lines: Iterable[Line], pending: "queue.Queue[Line | _End]") -> None:
    error: BaseException | None = None
    try:
        for line in lines:
            pending.put(line)
    except BaseException as caught:
        error = caught
    pending.put(_End(error))
