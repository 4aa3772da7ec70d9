"""What a run shows and records: a progress bar on a terminal, plain lines in a log, `log.jsonl`, TensorBoard."""

import json
import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from nmt.errors import StorageError
from nmt.storage.atomic import replace_file

LOG = "log.jsonl"


class TrainingLog:
    """Shows a run on stderr and records it in its folder; stdout stays free for results."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._file: Path | None = None
        self._board: Any = None

    def say(self, text: str) -> None:
        """A line for the user. Training goes on when nobody reads them any more."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, soft_wrap=True)
            return
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    @contextmanager
    def recording(self, run: Path, update: int) -> Iterator[None]:
        """Within the block records go to RUN/log.jsonl, which is first cut back to `update`, and to TensorBoard."""
        self._file = run / LOG
        if self._file.is_file():
            kept = [line for line in self._file.read_text(errors="replace").splitlines() if _update_of(line) <= update]
            replace_file(self._file, "".join(f"{line}\n" for line in kept).encode())
        # TensorBoard writes in a thread of its own, whose trouble is told once, by us.
        self._board, excepthook = _tensorboard(run, update), threading.excepthook
        threading.excepthook = lambda thrown: None if isinstance(thrown.exc_value, OSError) else excepthook(thrown)
        if self._console.is_terminal and not self._quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("training", total=1.0)
            self._bar.start()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None
            if self._board is not None:
                with suppress(OSError):
                    self._board.close()
            threading.excepthook = excepthook
            self._file = None

    def record(self, kind: str, values: dict[str, Any], *, fraction_done: float, minutes_left: float) -> None:
        """Record one update or validation; `values` holds "update". Outside `recording` it does nothing."""
        if self._file is None:
            return
        line = json.dumps({"kind": kind, **values}) + "\n"
        try:
            with self._file.open("a") as file:
                file.write(line)
        except OSError as error:
            raise StorageError(
                f"Cannot add {len(line):,} bytes to {self._file}: {error.strerror}. What was saved stands; free "
                f"space or permissions, then run the same command again."
            ) from error
        self._show_on_board(kind, values)
        text = _one_line(kind, values)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=fraction_done, description=_bar_text(values))
            if kind != "update":
                self.say(text)
        else:
            self.say(f"{text}  {_clock(minutes_left)} left" if kind == "update" else text)

    def _show_on_board(self, kind: str, values: dict[str, Any]) -> None:
        """Hand the numbers to TensorBoard. Its files are a convenience: a full disk ends them alone."""
        if self._board is None:
            return
        try:
            for name, value in values.items():
                if isinstance(value, int | float) and name != "update":
                    self._board.add_scalar(f"{kind}/{name}", value, values["update"])
        except OSError as error:
            self._board = None
            self.say(f"warning: TensorBoard's files cannot be written ({error.strerror}); training goes on without")


def _one_line(kind: str, values: dict[str, Any]) -> str:
    hidden = ("update", "epoch", "data_wait")
    shown = [f"{name} {_number(value)}" for name, value in values.items() if name not in hidden]
    return f"{kind:<6} {values['update']:>7,}  " + "  ".join(shown)


def _bar_text(values: dict[str, Any]) -> str:
    names = ("update", "loss", "bleu", "tokens/s")
    return "  ".join(f"{name} {_number(values[name])}" for name in names if name in values)


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 0.1 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _clock(minutes: float) -> str:
    if not math.isfinite(minutes):
        return "?"
    return f"{int(minutes) // 60}:{int(minutes) % 60:02d} h" if minutes >= 60 else f"{minutes:.1f} min"


def _update_of(line: str) -> int:
    try:
        return int(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError):
        return sys.maxsize  # a torn line, from a kill while writing


def _tensorboard(run: Path, update: int) -> Any:
    """A SummaryWriter that forgets what came after `update`, if the `tensorboard` extra is installed, else None."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=update + 1)
