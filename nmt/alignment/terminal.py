"""Attention maps as text: a table of percents, shaded where there is colour; too wide a one as the best words."""

import io

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from nmt.alignment.view import Link, Maps, darkest

_BEST, _BEST_HELP = 3, "the three most looked at, in percent"
_REPEATED_HELP = ", word[n]: the n-th of them all"
_LONGEST_LABEL, _LONGEST_ROW_LABEL = 10, 20  # terminal cells
_GOLD_HELP = "[sure] and (possible) gold links"


def as_text(maps: Maps, weights: NDArray[np.float64], title: str, *, width: int, colour: bool) -> str:
    """One map (rows, columns) with its title, lines no wider than `width`; `colour`: with escape codes."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, no_color=not colour or None, highlight=False)
    console.print(Text(title), soft_wrap=True)
    marks = {(link.row, link.column): link for link in maps.links}
    table = _table(maps, weights, marks, width)
    if table is None:
        repeated = len(set(maps.columns)) < len(maps.columns)
        console.print(Text(_BEST_HELP + (_REPEATED_HELP if repeated else "")))
    console.print(table or _list(maps, weights, marks))
    if marks:
        console.print(Text(_GOLD_HELP))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _table(maps: Maps, weights: NDArray[np.float64], marks: dict[tuple[int, int], Link], width: int) -> Table | None:
    """A column a word, labels as long as there is room for; None: they would be cut to nothing."""
    longest = [cell_len(label) for label in maps.columns]
    rows_width = min(_LONGEST_ROW_LABEL, max(map(cell_len, maps.rows)))
    least = 5 if marks else 3  # so that "(100)" and "100" fit
    for label_width in range(_LONGEST_LABEL, 2, -1):
        widths = [max(least, min(label_width, each)) for each in longest]
        if rows_width + sum(widths) + len(widths) <= width:
            break
    else:
        return None
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", width=rows_width, justify="right", no_wrap=True)
    for label, each in zip(maps.columns, widths, strict=True):
        table.add_column(_cut(label, each), width=each, justify="right", no_wrap=True)
    top = darkest(weights)
    for row, label in enumerate(maps.rows):
        cells = [
            _cell(weights[row, column], top, marks.get((row, column)), each) if maps.seen[row, column] else Text()
            for column, each in enumerate(widths)
        ]
        table.add_row(_cut(label, rows_width), *cells)
    return table


def _list(maps: Maps, weights: NDArray[np.float64], marks: dict[tuple[int, int], Link]) -> Table:
    """A line a row: where it looked most."""
    rows_width = min(_LONGEST_ROW_LABEL, max(map(cell_len, maps.rows)))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
    table.add_column("", width=rows_width, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row, label in enumerate(maps.rows):
        best = np.argsort(-weights[row], kind="stable")[: min(_BEST, int(maps.seen[row].sum()))]
        gold = [column for column in range(len(maps.columns)) if (row, column) in marks and column not in best]
        parts = []
        for column in [*best.tolist(), *gold]:
            weight = _percent(weights[row, column], marks.get((row, column)))
            place = f"[{column + 1}]" if maps.columns.count(maps.columns[column]) > 1 else ""
            parts.append(f"{_cut(maps.columns[column], _LONGEST_ROW_LABEL)}{place} {weight}")
        table.add_row(_cut(label, rows_width), Text(", ".join(parts)))
    return table


def _cell(weight: float, top: float, link: Link | None, width: int) -> Text:
    """Black on white to white on blue: the same look on dark and light terminals."""
    share = min(1.0, weight / top)
    red, green, blue = (round(255 + share * (end - 255)) for end in (8, 48, 107))
    ink = "white" if share > 0.45 else "black"
    style = Style.parse(f"{ink} on #{red:02x}{green:02x}{blue:02x}")
    return Text(_percent(weight, link).rjust(width), style=style)


def _percent(weight: float, link: Link | None) -> str:
    text = f"{100 * weight:.0f}"
    if link is None:
        return text
    return f"[{text}]" if link.sure else f"({text})"


def _cut(label: str, width: int) -> Text:
    text = Text(label)
    text.truncate(width, overflow="ellipsis")
    return text
