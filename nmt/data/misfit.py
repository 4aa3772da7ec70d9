"""Where two sides of a corpus stop being translations of each other, by the lengths of their lines."""

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_VARIANCE = 6.8  # of the difference in length, for each character of the source (Gale and Church 1993)
_WORST = 4.0  # standard deviations; beyond them lines are no more unlikely
_OTHER_ENDING = 2.0  # what it costs that one side alone is a question or an exclamation
_EVIDENCE = 40.0  # log-likelihood that a shift must gain
_DOUBT = 12.0  # by which a place may be worse than the likeliest one and is still named

Side = tuple[NDArray[np.float64], NDArray[np.bool_]]


def misfit(src: Iterable[str], tgt: Iterable[str]) -> tuple[int, int] | None:
    """Between which lines, from 1, one was lost or split in a corpus whose sides differ by one line; None: not known.

    Up to there line k belongs to line k, from there on to the line before or after it. Memory: 5 bytes a line.
    """
    sides = _measured(src), _measured(tgt)
    sizes = [len(lengths) for lengths, _ in sides]
    shift = sizes[1] - sizes[0]
    if abs(shift) != 1 or min(sizes) < 3:
        return None
    places = np.arange(1, min(sizes) - 1)
    gain = _cost(*sides, places, places) - _cost(*sides, places, places + shift)
    before = np.concatenate(([0.0], np.cumsum(gain)))  # what the shift would gain up to each place
    if before[-1] - before.min() < _EVIDENCE:
        return None
    likely = np.flatnonzero(before < before.min() + _DOUBT)
    return int(places[0] + likely[0]), int(places[0] + likely[-1] + 1)


def _measured(lines: Iterable[str]) -> Side:
    """Each line's length in characters, and whether it asks or exclaims."""
    lengths, marks = array("I"), bytearray()
    for line in lines:
        lengths.append(len(line))
        marks.append(line[-1:] in ("?", "!", "？", "！"))
    return np.array(lengths, dtype=np.float64), np.frombuffer(marks, dtype=bool)


def _cost(src: Side, tgt: Side, of: NDArray[np.int64], to: NDArray[np.int64]) -> NDArray[np.float64]:
    """How unlikely these source lines and those target lines are a pair, in nats."""
    (src_lengths, src_marks), (tgt_lengths, tgt_marks) = src, tgt
    ratio = tgt_lengths.sum() / max(1.0, src_lengths.sum())
    away = (tgt_lengths[to] - ratio * src_lengths[of]) / np.sqrt(_VARIANCE * (src_lengths[of] + 1))
    return np.asarray(np.clip(away, -_WORST, _WORST) ** 2 / 2 + _OTHER_ENDING * (src_marks[of] != tgt_marks[to]))
