"""Draw attention maps as PNG, SVG or PDF, without a display and without touching matplotlib's settings.

matplotlib (from 3.11 on) shapes letters and orders right-to-left text itself, so that labels go to it as they are.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.alignment.view import Link, darkest, printable
from nmt.errors import DataError
from nmt.pictures import NO_FONT, choose_fonts, default_settings, format_of, save

MAX_SIDE_IN = 30.0  # of all maps together; 300 labels then still have 0.1 inch each
CELL_IN = 0.36
GRID_CELL_IN = 0.16  # where several maps share a picture
GAP_IN = 0.45  # between those, with room for a caption of two lines
MIN_LABEL_IN = 0.09  # closer labels would be too small to read, so that only every k-th is shown
MAX_LABEL_CHARS = 40
MAX_TITLE_CHARS = 120
TITLE_PT, SMALL_TITLE_PT, FOOT_PT = 11, 9, 7
LETTER_EM = 0.55  # mean width, a little more than it is
BAR_IN = 0.75  # of the colour bar right of the map, with its numbers
MIN_LINE_CHARS, MAX_LINE_CHARS = 30, 120
DPI = 150
_GOLD, _HIDDEN = "#d95f02", "#dcdcdc"


class _Side(NamedTuple):
    """Layout of one axis: its length, the label size and which labels are shown (every `step`-th)."""

    inches: float
    font_pt: float
    step: int


class _Labels(NamedTuple):
    """What is written along an axis."""

    name: str
    texts: list[str]
    side: _Side


def plot_attention(
    weights: NDArray[np.floating[Any]],
    src_labels: Sequence[str],
    tgt_labels: Sequence[str],
    path: Path,
    *,
    title: str = "",
    axes: tuple[str, str] = ("target", "source"),
    seen: NDArray[np.bool_] | None = None,
    links: Sequence[Link] = (),
    captions: Sequence[Sequence[str]] = (),
    foot: str = "",
) -> list[str]:
    """Draw `weights`, one row a target label and one column a source label, into `path`.

    The format follows the suffix: .png, .svg or .pdf. Labels are shown as they are, "$" and "\\" included.
    The file appears whole or not at all, and the same input gives the same bytes. Returns warnings: labels
    shortened or left out, characters that no installed font has.

    Args:
        weights: one map (rows, columns), or a grid of maps (layers, heads, rows, columns).
        axes: what rows are, and columns.
        seen: (rows, columns); cells where it is False are grey.
        links: cells with an outline, a dashed one if not sure.
        captions: of each map in a grid. Each has the scale of `darkest`, and says it, if it is not that to 1.
        foot: a text below.
    Raises ConfigError for another suffix, DataError for an empty map, one that does not fit its labels or
    holds NaN or infinity, StorageError where the file cannot be written.
    """
    format_of(path)  # before the work
    _check(weights, src_labels, tgt_labels)
    grid = weights.reshape(-1, *weights.shape[-3:]) if weights.ndim > 2 else weights[None, None]
    notes: list[str] = []
    src = _shorten(src_labels, MAX_LABEL_CHARS, "source labels", notes)
    tgt = _shorten(tgt_labels, MAX_LABEL_CHARS, "target labels", notes)
    (head,) = _shorten([title], MAX_TITLE_CHARS, "title", notes)

    with default_settings() as settings:
        settings["font.family"] = _fonts_for("".join([*src, *tgt, *axes, head, foot]), notes)
        thinned: list[str] = []
        columns = _Labels(axes[1], src, _side(len(src), axes[1], thinned, grid.shape[1]))
        rows = _Labels(axes[0], tgt, _side(len(tgt), axes[0], thinned, grid.shape[0]))
        notes += thinned
        hidden = np.zeros(grid.shape[-2:], dtype=bool) if seen is None else ~seen
        figure = _draw(np.ma.array(grid, mask=np.broadcast_to(hidden, grid.shape)), columns, rows, links, captions)
        if head:
            lines, font_pt = _wrap(head, figure, TITLE_PT), TITLE_PT
            if len(lines) > 1:
                lines, font_pt = _wrap(head, figure, SMALL_TITLE_PT), SMALL_TITLE_PT
            figure.axes[0].set_title("\n".join(lines), loc="left", fontsize=font_pt, parse_math=False)
        below = figure.axes[grid.shape[1] * (grid.shape[0] - 1)]
        foot = " ".join([foot, *(f"{note}." for note in thinned)]).strip()
        _below(below, "\n".join(_wrap(foot, figure, FOOT_PT)), 34 if captions else 8, FOOT_PT)
        save(figure, path)
    return notes


def _check(weights: NDArray[Any], src_labels: Sequence[str], tgt_labels: Sequence[str]) -> None:
    """Raise DataError for a map that cannot be drawn."""
    if not src_labels or not tgt_labels:
        raise DataError(
            f"There is no attention map to draw: {len(src_labels)} source, {len(tgt_labels)} target labels. "
            "Give a sentence pair in which neither side is blank."
        )
    if weights.shape[-2:] != (len(tgt_labels), len(src_labels)):
        raise DataError(
            f"The attention map has shape {weights.shape}, but there are {len(tgt_labels)} target and "
            f"{len(src_labels)} source labels. Pass the weights and the labels of the same sentence pair."
        )
    if not np.isfinite(weights).all():
        raise DataError("The attention map holds NaN or infinity and cannot be drawn; check the model's weights.")


def _shorten(labels: Sequence[str], limit: int, what: str, notes: list[str]) -> list[str]:
    """Replace characters that would break the line or the SVG, and cut after `limit` characters."""
    clean = [printable(label) for label in labels]
    cut = sum(len(label) > limit for label in clean)
    if cut:
        notes.append(f"{cut} {what} cut to {limit} characters")
    return [label if len(label) <= limit else label[: limit - 1] + "…" for label in clean]


def _side(count: int, what: str, notes: list[str], maps: int) -> _Side:
    """Lay out an axis: at first the cells shrink, then the letters with them, then labels are left out."""
    wanted, least = (CELL_IN, 1.0) if maps == 1 else (GRID_CELL_IN, 1.3)
    inches = min(max(count * wanted, least), MAX_SIDE_IN / maps)
    cell = inches / count
    step = int(np.ceil(MIN_LABEL_IN / cell))
    if step > 1:
        notes.append(f"{count} {what} labels are too many to read: 1 in {step} is shown")
    return _Side(inches, min(10.0, 0.8 * 72 * cell * step), step)


def _draw(
    grid: Any,
    columns: _Labels,
    rows: _Labels,
    links: Sequence[Link],
    captions: Sequence[Sequence[str]],
) -> Any:
    """The figure is just the maps. Labels, title and colour bar stand outside it and bbox_inches="tight" makes room
    for them, so that long labels never squeeze the cells."""
    from matplotlib.figure import Figure

    layers, heads = grid.shape[:2]
    width = heads * (columns.side.inches + GAP_IN) - GAP_IN
    height = layers * (rows.side.inches + GAP_IN) - GAP_IN
    figure = Figure(figsize=(width, height), dpi=DPI)
    tops = [[darkest(each) for each in row] for row in grid]  # a faint map among clear ones is still to be seen
    for layer, head in np.ndindex(layers, heads):
        left = head * (columns.side.inches + GAP_IN)
        bottom = height - rows.side.inches - layer * (rows.side.inches + GAP_IN)
        axes = figure.add_axes(
            (left / width, bottom / height, columns.side.inches / width, rows.side.inches / height),
            facecolor=_HIDDEN,
        )
        top = tops[layer][head]
        image = axes.imshow(grid[layer, head], cmap="Blues", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
        _outline(axes, links, columns.side.inches / len(columns.texts))
        _label(axes, columns if layer == 0 else None, rows if head == 0 else None)
        if captions:
            faint = f"\ndarkest {top:.2g}" if top != 1 else ""
            _below(axes, captions[layer][head] + faint, 4, 8, centred=True)

    bar_in = min(height, 4.0)
    bar = figure.add_axes((1 + 0.2 / width, 1 - bar_in / height, 0.15 / width, bar_in / height))
    colours = figure.colorbar(image, cax=bar)
    if len({top for row in tops for top in row}) > 1:  # no scale is that of all
        colours.set_ticks([0, top], labels=["0", "darkest: 1, or as said"])
    return figure


def _wrap(text: str, figure: Any, font_pt: int) -> list[str]:
    """Lines no wider than the maps and their colour bar, as far as that makes sense."""
    room = int((figure.get_figwidth() + BAR_IN) * 72 / (LETTER_EM * font_pt))
    return textwrap.wrap(text, min(max(room, MIN_LINE_CHARS), MAX_LINE_CHARS))


def _outline(axes: Any, links: Sequence[Link], cell_in: float) -> None:
    from matplotlib.patches import Rectangle

    for row, column, sure in links:
        style, line_pt = "solid" if sure else (0, (2, 1.5)), min(2.0, 6 * cell_in)
        axes.add_patch(
            Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=_GOLD, linestyle=style, linewidth=line_pt)
        )


def _label(axes: Any, columns: _Labels | None, rows: _Labels | None) -> None:
    """Labels on top and on the left; None: they stand on another map of the grid."""
    axes.set_xticks([])
    axes.set_yticks([])
    if columns is not None:
        side = columns.side
        slanted = side.inches / len(columns.texts) >= CELL_IN / 2
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xlabel(columns.name)
        axes.set_xticks(
            range(0, len(columns.texts), side.step),
            columns.texts[:: side.step],
            fontsize=side.font_pt,
            rotation=45 if slanted else 90,
            rotation_mode="anchor",
            ha="left",
            va="baseline" if slanted else "center",
            parse_math=False,
        )
    if rows is not None:
        side = rows.side
        axes.set_ylabel(rows.name)
        axes.set_yticks(
            range(0, len(rows.texts), side.step), rows.texts[:: side.step], fontsize=side.font_pt, parse_math=False
        )


def _below(axes: Any, text: str, points: int, font_pt: int, *, centred: bool = False) -> None:
    """Write under a map, `points` off its lower edge."""
    axes.annotate(
        text,
        (0.5 if centred else 0, 0),
        (0, -points),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center" if centred else "left",
        va="top",
        fontsize=font_pt,
        color="#444444",
    )


def _fonts_for(text: str, notes: list[str]) -> list[str]:
    """Families that cover `text`; a note names the characters that none has."""
    families, missing = choose_fonts(text)
    if missing:
        notes.append(
            f"{NO_FONT} {' '.join(missing)}; such characters are drawn as boxes. Install a font that has them, "
            f"such as Noto Sans CJK, or draw a page, for the browser has its own: -o FILE.html."
        )
    return families
