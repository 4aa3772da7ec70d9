"""Draw an attention map as PNG, SVG or PDF, without a display and without touching matplotlib's settings."""

import io
import unicodedata
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.errors import ConfigError, DataError
from nmt.storage.atomic import replace_file

FORMATS = ("png", "svg", "pdf")
MAX_SIDE_IN = 30.0  # of the map alone; 300 labels then still have 0.1 inch each
CELL_IN = 0.36
MIN_LABEL_IN = 0.09  # closer labels would be too small to read, so that only every k-th is shown
MAX_LABEL_CHARS = 40
MAX_TITLE_CHARS = 120
DPI = 150


class _Side(NamedTuple):
    """Layout of one axis: its length, the label size and which labels are shown (every `step`-th)."""

    inches: float
    font_pt: float
    step: int


def plot_attention(
    weights: NDArray[np.floating[Any]],
    src_labels: Sequence[str],
    tgt_labels: Sequence[str],
    path: Path,
    *,
    title: str = "",
) -> list[str]:
    """Draw `weights`, one row a target label and one column a source label, into `path`.

    The format follows the suffix: .png, .svg or .pdf. Labels are shown as they are, "$" and "\\" included.
    The file appears whole or not at all, and the same input gives the same bytes. Returns warnings: labels
    shortened or left out, characters that no installed font has.

    Raises ConfigError for another suffix, DataError for an empty map, one that does not fit its labels or
    holds NaN or infinity, StorageError where the file cannot be written.
    """
    path = Path(path)
    file_format = path.suffix.lower().removeprefix(".")
    if file_format not in FORMATS:
        raise ConfigError(f'Cannot draw into "{path}": the name must end in .png, .svg or .pdf.')
    _check(weights, src_labels, tgt_labels)
    notes: list[str] = []
    src = _shorten(src_labels, MAX_LABEL_CHARS, "source labels", notes)
    tgt = _shorten(tgt_labels, MAX_LABEL_CHARS, "target labels", notes)
    (head,) = _shorten([title], MAX_TITLE_CHARS, "title", notes)

    import matplotlib
    from matplotlib.figure import Figure

    # The default settings, so that a user's matplotlibrc (usetex!) changes nothing; rc_context puts it back.
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        # A fixed salt gives the SVG ids that do not change from run to run.
        matplotlib.rcParams["svg.hashsalt"] = "nmt"
        matplotlib.rcParams["font.family"] = _choose_fonts("".join([*src, *tgt, head]), notes)
        # Said once by _choose_fonts, for all characters.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        # The figure is just the map. Labels, title and colour bar stand outside it and bbox_inches="tight"
        # makes room for them, so that long labels never squeeze the cells.
        columns, rows = _side(len(src), "source", notes), _side(len(tgt), "target", notes)
        figure = Figure(figsize=(columns.inches, rows.inches), dpi=DPI)
        _draw(figure, weights, src, tgt, columns, rows, head)
        _save(figure, path, file_format)
    return notes


def _check(weights: NDArray[Any], src_labels: Sequence[str], tgt_labels: Sequence[str]) -> None:
    """Raise DataError for a map that cannot be drawn."""
    if not src_labels or not tgt_labels:
        raise DataError(
            f"There is no attention map to draw: {len(src_labels)} source, {len(tgt_labels)} target labels. "
            "Give a sentence pair in which neither side is blank."
        )
    if weights.shape != (len(tgt_labels), len(src_labels)):
        raise DataError(
            f"The attention map has shape {weights.shape}, but there are {len(tgt_labels)} target and "
            f"{len(src_labels)} source labels. Pass the weights and the labels of the same sentence pair."
        )
    if not np.isfinite(weights).all():
        raise DataError("The attention map holds NaN or infinity and cannot be drawn; check the model's weights.")


def _shorten(labels: Sequence[str], limit: int, what: str, notes: list[str]) -> list[str]:
    """Replace characters that would break the line or the SVG, and cut after `limit` characters."""
    bad = ("Cc", "Cs", "Zl", "Zp")
    clean = [
        "".join("�" if unicodedata.category(c) in bad or c in "\ufffe\uffff" else c for c in label) for label in labels
    ]
    cut = sum(len(label) > limit for label in clean)
    if cut:
        notes.append(f"{cut} {what} cut to {limit} characters")
    return [label if len(label) <= limit else label[: limit - 1] + "…" for label in clean]


def _side(count: int, what: str, notes: list[str]) -> _Side:
    """Lay out an axis: at first the cells shrink, then the letters with them, then labels are left out."""
    inches = min(max(count * CELL_IN, 1.0), MAX_SIDE_IN)
    cell = inches / count
    step = int(np.ceil(MIN_LABEL_IN / cell))
    if step > 1:
        notes.append(f"{count} {what} labels are too many to read: 1 in {step} is shown")
    return _Side(inches, min(10.0, 0.8 * 72 * cell * step), step)


def _draw(
    figure: Any,
    weights: NDArray[Any],
    src: list[str],
    tgt: list[str],
    columns: _Side,
    rows: _Side,
    title: str,
) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    peak = float(weights.max())
    # Maps with a clear peak share one scale, so that they compare; a faint one is scaled to its own peak.
    top = 1.0 if 0.5 <= peak <= 1.001 or peak <= 0 else peak
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=top, aspect="auto", interpolation="nearest")

    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("source")
    axes.set_ylabel("target")
    slanted = columns.inches / len(src) >= CELL_IN / 2
    axes.set_xticks(
        range(0, len(src), columns.step),
        src[:: columns.step],
        fontsize=columns.font_pt,
        rotation=45 if slanted else 90,
        rotation_mode="anchor",
        ha="left",
        va="baseline" if slanted else "center",
        parse_math=False,
    )
    axes.set_yticks(range(0, len(tgt), rows.step), tgt[:: rows.step], fontsize=rows.font_pt, parse_math=False)
    if title:
        axes.set_title(title, loc="left", fontsize=11, parse_math=False)

    bar_in = min(rows.inches, 4.0)
    bar = figure.add_axes(
        (1 + 0.2 / columns.inches, 1 - bar_in / rows.inches, 0.15 / columns.inches, bar_in / rows.inches)
    )
    figure.colorbar(image, cax=bar)


def _choose_fonts(text: str, notes: list[str]) -> list[str]:
    """Return DejaVu Sans and further families that cover `text`; note the characters that none has."""
    from matplotlib import font_manager

    # White space and format characters (joiners, variation selectors) need no glyph of their own.
    missing = {c for c in text if not c.isspace() and unicodedata.category(c) not in ("Cf", "Mn")}
    families = ["DejaVu Sans"]  # comes with matplotlib
    missing -= _charset(font_manager.findfont("DejaVu Sans"))
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)):
        if not missing:  # opening every font takes a while
            break
        # Text fonts only: no TeX fonts with encodings of their own, no boxes, no colour bitmaps.
        if entry.name.startswith(("cm", "STIXNon", "STIXSiz", "Last Resort")) or "Color" in entry.name:
            continue
        with suppress(RuntimeError, OSError):  # a font that is listed and yet gone or broken
            found = missing & _charset(entry.fname)
            families += [entry.name] if found else []
            missing -= found
    if missing:
        notes.append(f"no installed font has {' '.join(sorted(missing))}; such characters are drawn as boxes")
    return families


def _charset(font_file: str) -> set[str]:
    from matplotlib import font_manager

    return {chr(code) for code in font_manager.get_font(font_file).get_charmap()}


def _save(figure: Any, path: Path, file_format: str) -> None:
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    picture = io.BytesIO()
    figure.savefig(picture, format=file_format, bbox_inches="tight", pad_inches=0.15, metadata=dates[file_format])
    replace_file(path, picture.getvalue())
