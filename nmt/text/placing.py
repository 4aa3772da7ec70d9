"""Where an item of a line goes in its translation, by a word alignment; and with which spaces around it.

Marks and words go to the boundary whose neighbours are aligned nearest to the item's own; a pair of tags goes around
the words that are aligned into it. (Detag-and-project: Hanneman and Dinu 2020.)
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.text.protect import UNSPACED, Taken, char_class, closes, opens

Range = tuple[int, int]  # half-open
Unit = Range  # of a word, or of a single character of punctuation
_UNSPACED = re.compile(f"[{UNSPACED}]")
_FAR = 4  # units: what is aligned further away says nothing more
_NEVER = -1e9


def units_of(text: str) -> list[Unit]:
    """Words and punctuation; each character of a script without spaces is a unit. Nothing is put inside a unit."""
    units: list[list[int]] = []
    grows = False
    for place, char in enumerate(text):
        kind = char_class(char)
        attaches = kind == "w" and unicodedata.category(char)[0] in "MC"
        alone = kind == "p" or bool(_UNSPACED.match(char))
        if units and units[-1][1] == place and (attaches or (kind == "w" and grows and not alone)):
            units[-1][1] = place + 1
            continue
        if kind != "s":
            units.append([place, place + 1])
        grows = kind == "w" and not alone
    return [(start, end) for start, end in units]


def piece_ranges(text: str, pieces: Sequence[str], units: Sequence[Unit]) -> list[Range]:
    """Which pieces (of SentencePiece, "▁" opening a word) each unit of `text` lies in; never empty.

    Exact where normalisation changed no lengths; within a word, or a line whose words it changed, in proportion.
    """
    words: list[list[int]] = []  # white-space words: the lengths of their pieces
    for piece in pieces:
        if not words or piece.startswith("▁"):
            words.append([])
        words[-1].append(_length(piece))
    spans = [(match.start(), match.end()) for match in re.finditer(r"\S+", text)]
    if len(words) != len(spans):
        words, spans = [[length for word in words for length in word]], [(0, len(text))]
    piece_ends: list[float] = []
    for word, (start, end) in zip(words, spans, strict=True):
        scale = (end - start) / max(1, sum(word))
        ends = np.cumsum(word) * scale + start
        piece_ends += ends.tolist()
    ranges = []
    for start, end in units:
        first = min(bisect_right(piece_ends, start + 0.01), len(piece_ends) - 1)
        last = min(bisect_left(piece_ends, end - 0.01), len(piece_ends) - 1)
        ranges.append((first, max(first, last) + 1))
    return ranges


_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _length(piece: str) -> int:
    """Characters of a piece's text; those of a character in bytes are counted at its first byte."""
    if byte := _BYTE.fullmatch(piece):
        return int(int(byte[1], 16) & 0xC0 != 0x80)
    return 1 if piece == "<unk>" else len(piece.removeprefix("▁"))


def align_units(
    weights: NDArray[np.floating[Any]], tgt_pieces: Sequence[Range], src_pieces: Sequence[Range]
) -> NDArray[np.int64]:
    """The source unit that each target unit looks at most, from attention (target pieces, source pieces).

    Args:
        tgt_pieces, src_pieces: of each unit, see `piece_ranges`; target pieces are averaged, source pieces summed.
    """
    first_T, last_T = np.array(tgt_pieces).T
    first_S, last_S = np.array(src_pieces).T
    rows = np.pad(weights.cumsum(0, dtype=np.float64), ((1, 0), (0, 0)))
    columns = np.pad((rows[last_T] - rows[first_T]).cumsum(1), ((0, 0), (1, 0)))
    aligned: NDArray[np.int64] = (columns[:, last_S] - columns[:, first_S]).argmax(1)
    return aligned


def anchor(aligned: NDArray[np.int64], tgt_words: Sequence[str], src_words: Sequence[str]) -> NDArray[np.int64]:
    """The same with what is sure: a word or number that stands once on either side, and the final punctuation."""
    src_counts, tgt_counts = Counter(src_words), Counter(tgt_words)
    places = {word: place for place, word in enumerate(src_words)}
    fixed = aligned.copy()
    for place, word in enumerate(tgt_words):
        if len(word) > 1 and tgt_counts[word] == src_counts[word] == 1:
            fixed[place] = places[word]
    if char_class(tgt_words[-1][0]) == char_class(src_words[-1][0]) == "p":
        fixed[-1] = len(src_words) - 1
    return fixed


class Placer:
    """Finds the target boundary of each item: boundary b lies before target unit b.

    Args:
        taken: what was taken out of the source.
        src_units: of the text that was left of the source.
        aligned: the source unit of each target unit.
    """

    def __init__(self, taken: Sequence[Taken], src_units: Sequence[Unit], aligned: NDArray[np.int64]) -> None:
        self._taken = taken
        self._place_of = {each.index: place for place, each in enumerate(taken)}
        self._sources = _source_boundaries(taken, src_units)
        self._num_src, self._num_tgt = len(src_units), len(aligned)
        self._aligned = aligned
        self._left = np.concatenate([[-1], aligned])  # of the unit before each boundary
        self._right = np.concatenate([aligned, [self._num_src]])
        self._around_unit = np.full(self._num_tgt, -1)  # the innermost pair around each target unit
        self._around_boundary = np.full(self._num_tgt + 1, -1)  # and strictly around each boundary
        self.boundaries = [0] * len(taken)

    def place(self) -> list[int]:
        """The boundary of each taken item. Pairs first, outer ones before those inside them."""
        for place, each in enumerate(self._taken):
            if each.item.kind == "open":
                self._place_pair(place, self._place_of[each.item.mate])
        for place, each in enumerate(self._taken):
            if each.item.mate < 0:
                self.boundaries[place] = self._place_alone(place)
        return self.boundaries

    def _place_pair(self, opening: int, closing: int) -> None:
        start, end = self._sources[opening], self._sources[closing]
        free = self._around_unit == self._parent(opening)
        if start >= end or not free.any():
            self.boundaries[opening] = self.boundaries[closing] = self._place_alone(opening)
            return
        inside = (self._aligned >= start) & (self._aligned < end)
        if not (inside & free).any():  # nothing looked there: the unit that looked nearest
            distance = np.abs(self._aligned - (start + end - 1) / 2)
            nearest = int(np.where(free, distance, np.inf).argmin())
            first, last = nearest, nearest + 1
        else:
            first, last = _heaviest_run(np.where(free, inside - 0.5, _NEVER))
        self.boundaries[opening], self.boundaries[closing] = first, last
        self._around_unit[first:last] = self._taken[opening].index
        self._around_boundary[first + 1 : last] = self._taken[opening].index

    def _place_alone(self, place: int) -> int:
        each, source = self._taken[place], self._sources[place]
        low, high, src_low, src_high = self._room(place)
        if source <= src_low or source >= src_high:
            return low if source <= src_low else high
        to_left = np.minimum(np.abs(self._left - (source - 1)), _FAR)
        to_right = np.minimum(np.abs(self._right - source), _FAR)
        # What it touched counts twice; where all is equal it keeps its place in the sentence.
        touches_left, touches_right = (char_class(char) != "s" for char in (each.before, each.after))
        drift = np.abs(np.arange(self._num_tgt + 1) - source * self._num_tgt / self._num_src)
        cost = to_left * (1 + touches_left) + to_right * (1 + touches_right) + 0.5 * drift / self._num_tgt
        allowed = self._around_boundary == self._parent(place)
        allowed[[low, high]] = True
        allowed[:low] = allowed[high + 1 :] = False
        return int(np.where(allowed, cost, np.inf).argmin())

    def _parent(self, place: int) -> int:
        """The index of the innermost taken pair around an item, or -1."""
        return self._taken[place].item.parent

    def _room(self, place: int) -> tuple[int, int, int, int]:
        """Target boundaries and source boundaries of what is around an item."""
        parent = self._parent(place)
        if parent < 0:
            return 0, self._num_tgt, 0, self._num_src
        opening = self._place_of[parent]
        closing = self._place_of[self._taken[opening].item.mate]
        ends = self.boundaries[opening], self.boundaries[closing]
        return *ends, self._sources[opening], self._sources[closing]


def keep_order(taken: Sequence[Taken], src_units: Sequence[Unit], num_tgt: int) -> list[int]:
    """The boundary of each item, all in the source's order and in proportion to where they stood."""
    sources = np.maximum.accumulate(_source_boundaries(taken, src_units))
    boundaries: list[int] = (sources * num_tgt // len(src_units)).tolist()
    return boundaries


def _source_boundaries(taken: Sequence[Taken], src_units: Sequence[Unit]) -> list[int]:
    """The source units before each item. An opening tag inside of a word goes before it, a closing one behind it."""
    starts, ends = [start for start, _ in src_units], [end for _, end in src_units]
    return [
        bisect_left(starts, each.offset) if each.item.kind == "close" else bisect_right(ends, each.offset)
        for each in taken
    ]


def _heaviest_run(weights: NDArray[np.float64]) -> Range:
    """The run of neighbours with the largest sum (Kadane)."""
    sums = np.concatenate([[0.0], weights.cumsum()])
    last = int((sums[1:] - np.minimum.accumulate(sums)[:-1]).argmax()) + 1
    return int(sums[:last].argmin()), last


def put_back(
    text: str, units: Sequence[Unit], taken: Sequence[Taken], boundaries: Sequence[int], *, spaced: bool = False
) -> str:
    """The text with items at boundaries between its units, and spaces as they had them in the source.

    Args:
        spaced: a space around each item that is no tag of a pair.
    """
    parts: list[str] = []
    end = 0
    for boundary, run in groupby(_in_order(taken, boundaries), key=lambda place: boundaries[place]):
        left, right = (
            units[boundary - 1][1] if boundary else 0,
            units[boundary][0] if boundary < len(units) else len(text),
        )
        joints = _Joints(text[:left][-1:], text[left:right], text[right : right + 1], spaced)
        parts += [text[end:left], joints.join([taken[place] for place in run])]
        end = right
    return "".join([*parts, text[end:]])


def _in_order(taken: Sequence[Taken], boundaries: Sequence[int]) -> Iterator[int]:
    """The places of items as they are written, tags around what is inside them."""
    place_of = {each.index: place for place, each in enumerate(taken)}
    inside: dict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(taken):
        if each.item.kind != "close":
            inside[each.item.parent].append(place)

    def ends(place: int) -> int:
        mate = taken[place].item.mate
        return boundaries[place if mate < 0 else place_of[mate]]

    for places in inside.values():
        places.sort(key=lambda place: (boundaries[place], ends(place), place), reverse=True)
    left = list(inside[-1])
    while left:
        place = left.pop()
        yield place
        if taken[place].item.kind == "open":
            left += [place_of[taken[place].item.mate], *inside[taken[place].index]]


@dataclass(frozen=True)
class _Joints:
    """The spaces around items at one boundary.

    Attributes:
        left, gap, right: the characters on either side and what was between them; empty at the ends of the text.
    """

    left: str
    gap: str
    right: str
    spaced: bool

    def join(self, run: Sequence[Taken]) -> str:
        """The items with their spaces."""
        befores: list[Taken | None] = [None, *run]
        afters: list[Taken | None] = [*run, None]
        joined = ""
        for before, after in zip(befores, afters, strict=True):
            joined += " " if self._parts(before, after) else ""
            joined += after.item.text if after else ""
        return joined

    def _parts(self, x: Taken | None, y: Taken | None) -> bool:
        """Whether a space is between x and y; None stands for the text."""
        if (x is None and not self.left) or (y is None and not self.right):
            return False
        if x and y and y.index == x.index + 1 and x.offset == y.offset:  # neighbours as in the source
            return x.item.end < y.item.start
        if x and x.item.kind == "open":
            return x.after.isspace()
        if y and y.item.kind == "close":
            return y.before.isspace()
        wanted = []
        if x and x.item.mate < 0:
            wanted.append(self._wants_space(x.after, "}" if y else self.right, y is None and closes(self.right)))
        if y and y.item.mate < 0:
            wanted.append(self._wants_space(y.before, "}" if x else self.left, x is None and opens(self.left)))
        return any(wanted) if wanted else bool(self.gap)  # which stays outside of tags

    def _wants_space(self, touched: str, touches: str, hugs: bool) -> bool:
        """Whether an item that touched one character in the source is kept apart from another one here.

        Args:
            hugs: whether the other one has no space on this side.
        """
        if self.spaced:
            return True
        if char_class(touched) == "s":
            solid = char_class(self.left) == char_class(self.right) == "w"  # of a script without spaces
            return bool(self.gap) or not (hugs or solid)
        return char_class(touched) != char_class(touches) and bool(self.gap)
