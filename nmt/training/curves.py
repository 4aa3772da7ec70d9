"""How runs went: validation BLEU and loss against minutes, out of their `log.jsonl`, in one picture."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt.alignment.view import printable
from nmt.errors import DataError
from nmt.pictures import NO_FONT, choose_fonts, default_settings, format_of, save
from nmt.text.lines import read_file
from nmt.training.progress import LOG

PANELS = {"bleu": "validation BLEU", "loss": "validation loss, nats a token"}  # from above
_WIDTH_IN, _PANEL_IN = 7.0, 2.8
_MAX_NAME_CHARS = 60
_MOST = 1e9  # of what is drawn: numbers beyond are no measurements, and no axis can hold them


class Validation(NamedTuple):
    """One validation of a run: after how many updates and minutes of training, and what it found."""

    update: int
    minutes: float
    bleu: float
    loss: float
    best: bool


class Curve(NamedTuple):
    """A run's name and its validations, in their order."""

    name: str
    validations: list[Validation]


def read_curve(run: Path) -> Curve:
    """The validations of a run, which may be under way. Raises: DataError, if there is none, StorageError."""
    log = run / LOG
    if not log.is_file():
        raise DataError(f"There is no {log}: the curve of a training is drawn from its run folder.")
    found = [validation for line in read_file(log) if (validation := _validation(line)) is not None]
    if not found:
        raise DataError(f"{log} has no validation yet: the first is after validation.every updates.")
    return Curve(str(run), found)


def _validation(line: str) -> Validation | None:
    """None for other lines, one torn by a kill while it was written among them, and for what is no time."""
    try:
        values = json.loads(line)
        if values["kind"] != "valid":
            return None
        minutes, bleu, loss = (float(values[name]) for name in ("minutes", "bleu", "loss"))
        if not 0 <= minutes <= _MOST:
            return None
        bleu, loss = (value if abs(value) <= _MOST else math.nan for value in (bleu, loss))
        return Validation(int(values["update"]), minutes, bleu, loss, bool(values["best"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def plot_curves(curves: Sequence[Curve], path: Path) -> list[str]:
    """Draw the curves over one another, into a .png, .svg or .pdf; a ring is around each run's best validation.

    Returns warnings. Raises: ConfigError (the suffix), StorageError.
    """
    from matplotlib.figure import Figure

    format_of(path)  # before the work
    names = [_shortened(printable(curve.name)) for curve in curves]
    with default_settings() as settings:
        settings["font.family"], missing = choose_fonts("".join(names))
        figure = Figure(figsize=(_WIDTH_IN, len(PANELS) * _PANEL_IN))
        panels = figure.subplots(len(PANELS), sharex=True)
        for axes, (what, label) in zip(panels, PANELS.items(), strict=True):
            lines = [_draw(axes, curve, what) for curve in curves]
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
        panels[0].set_ylim(bottom=0)
        panels[-1].set_xlabel("minutes of training")
        for text in panels[-1].legend(lines, names, loc="upper right").get_texts():
            text.set_parse_math(False)
        save(figure, path)
    return [f"{NO_FONT} {' '.join(missing)}; such characters are drawn as boxes."] if missing else []


def _draw(axes: Any, curve: Curve, what: str) -> Any:
    """The line of one run; a number that is none, as of a training that ran away, leaves a gap."""
    minutes = [each.minutes for each in curve.validations]
    values = [float(getattr(each, what)) for each in curve.validations]
    (line,) = axes.plot(minutes, values, marker=".")
    best = [index for index, each in enumerate(curve.validations) if each.best and math.isfinite(values[index])][-1:]
    axes.plot([minutes[i] for i in best], [values[i] for i in best], "o", ms=10, mfc="none", color=line.get_color())
    return line


def _shortened(name: str) -> str:
    """The end of a long path tells more than its beginning."""
    return name if len(name) <= _MAX_NAME_CHARS else f"…{name[1 - _MAX_NAME_CHARS :]}"
