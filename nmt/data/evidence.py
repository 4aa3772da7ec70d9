"""How probable it is that one line translates another, learnt from the corpus itself: no dictionary, no model.

The score of a pair is a log-likelihood ratio, aligned against drawn at random, summed over three kinds of evidence as
if they were independent (naive Bayes): whether a word's usual companions are on the other side (a small lexicon by
Dice's coefficient; a rare word's companion is itself, which finds names and numbers), the lengths in characters (Gale
and Church 1993), and the ends of the two lines. Above 0 speaks for the pair.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

MAX_SHIFT = 3  # lines that a stretch may be late or early by
SHIFTS = tuple(range(-MAX_SHIFT, MAX_SHIFT + 1))

_BUCKETS = 1 << 16  # words are hashed: memory does not depend on the corpus
_CACHED_WORDS = 200_000
_COMPANIONS = 4
_LEAST_DICE, _NEAR_BEST = 0.05, 0.4
_MOST_WORDS = 40  # of a line, when the lexicon is learnt
_COLUMNS = 1 << 12  # of the bitmap of words by line; words share columns, which the learnt chances take into account
_BLOCK_LINES = 256
_LENGTH_BINS, _LENGTH_CLASSES = 24, 5
_ENDS = {char: number for number, chars in enumerate((".。।", "?？؟", "!！", ":：;", ",，、"), 1) for char in chars}
_WORD = re.compile(r"\n|\w+")
# Where a script has no spaces between words, each of its characters counts as one.
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")
_WORD_OR_CHARACTER = re.compile(rf"\n|{_SPACELESS.pattern}|[^\W{_SPACELESS.pattern[1:]}+")
_BREAK = -1


class _WordBuckets(dict[str, int]):
    """The bucket of each word seen lately: the same in every process."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        bucket = _BREAK if word == "\n" else zlib.crc32(word.encode("utf-8", "replace")) % _BUCKETS
        self[word] = bucket
        return bucket


_bucket_of = _WordBuckets()


@dataclass(frozen=True)
class Words:
    """The words of some lines as buckets, end to end: `buckets` (words,), and the line of each, `lines` (words,)."""

    buckets: Ints
    lines: Ints
    count: int  # of lines

    def distinct(self) -> "Words":
        """Each word of a line once, in the order of their buckets."""
        keys = np.unique(self.lines * _BUCKETS + self.buckets)
        return Words(keys % _BUCKETS, keys // _BUCKETS, self.count)

    def first_of_each_line(self, most: int) -> "Words":
        """At most `most` words of each line."""
        starts = np.searchsorted(self.lines, np.arange(self.count))
        near = np.arange(len(self.lines)) - starts[self.lines] < most
        return Words(self.buckets[near], self.lines[near], self.count)

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The sum of `values` (words,) in each line."""
        sums: NDArray[np.float64] = np.bincount(self.lines, weights=values, minlength=self.count).astype(np.float64)
        return sums


def words_of(lines: Sequence[str]) -> Words:
    """Split lines, which hold no newline, into lower-cased words."""
    if not lines:
        return Words(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    text = "\n".join(lines).lower()
    found = (_WORD_OR_CHARACTER if _SPACELESS.search(text) else _WORD).findall(text)
    buckets = np.fromiter(map(_bucket_of.__getitem__, found), dtype=np.int64, count=len(found))
    breaks = buckets == _BREAK
    line_of = np.cumsum(breaks)
    return Words(buckets[~breaks], line_of[~breaks], len(lines))


def lengths_of(lines: Sequence[str]) -> Ints:
    """Characters of each line."""
    return np.fromiter(map(len, lines), dtype=np.int64, count=len(lines))


def log_ratio(src_lengths: Ints, tgt_lengths: Ints) -> NDArray[np.float64]:
    """How much longer the target is, as a logarithm; the slack lets short lines differ."""
    return np.log((tgt_lengths + 5) / (src_lengths + 5))


@dataclass(frozen=True)
class Side:
    """What the score of a pair needs of one side's lines."""

    words: Words
    lengths: Ints
    ends: Ints

    @classmethod
    def of(cls, lines: Sequence[str]) -> "Side":
        """Of cleaned lines."""
        last = [line.rstrip(" \"'»”“’)")[-1:] for line in lines]
        ends = np.fromiter(map(_ENDS.get, last, repeat(0)), dtype=np.int64, count=len(lines))
        return cls(words_of(lines), lengths_of(lines), ends)

    def part(self, start: int, count: int) -> "Side":
        """Of `count` lines from line `start` on."""
        first, last = np.searchsorted(self.words.lines, (start, start + count))
        words = Words(self.words.buckets[first:last], self.words.lines[first:last] - start, count)
        return Side(words, self.lengths[start : start + count], self.ends[start : start + count])


@dataclass(frozen=True)
class Evidence:
    """What was learnt from a sample of pairs.

    Attributes:
        companions: columns of the bitmap where a source word's companions are, (4, buckets).
        hit, miss: evidence of a source word whose companions are there, or not, (buckets,).
        length, length_centre: evidence by class of source length and bin of the lengths' ratio; its median.
        ends: evidence by the two lines' last characters.
        src_like: how much more usual a word is in source lines than in target lines, logarithm, (buckets,).
        ratio_spread: of the logarithm of the lengths' ratio, robust.
    """

    companions: NDArray[np.int32]
    hit: Floats
    miss: Floats
    length: Floats
    length_centre: float
    ends: Floats
    src_like: Floats
    ratio_spread: float

    def scores(self, src: Side, tgt: Side, before: int = 0, shifts: Sequence[int] = (0,)) -> Floats:
        """Score each source line against the target line `shift` lines further: (shifts, source lines).

        Args:
            tgt: lines of which number `before` belongs to source line 0. Where there is none the score is 0.
        """
        count = src.words.count
        scores = self._word_scores(src.words, tgt.words, before, shifts)
        for row, shift in enumerate(shifts):
            place = np.arange(count) + before + shift
            there = (place >= 0) & (place < tgt.words.count)
            place = place.clip(0, max(0, tgt.words.count - 1))
            if not there.any():
                scores[row] = 0
                continue
            scores[row] += self.ends[src.ends, tgt.ends[place]]
            scores[row] += self.length[_length_bins(src.lengths, tgt.lengths[place], self.length_centre)]
            scores[row] *= there & (src.lengths > 0) & (tgt.lengths[place] > 0)
        return scores

    def _word_scores(self, src: Words, tgt: Words, before: int, shifts: Sequence[int]) -> Floats:
        scores = np.zeros((len(shifts), src.count), np.float32)
        margin = max(map(abs, shifts))
        for start in range(0, src.count, _BLOCK_LINES):
            end = min(start + _BLOCK_LINES, src.count)
            first, last = np.searchsorted(src.lines, (start, end))
            buckets, rows = src.buckets[first:last], src.lines[first:last] - start
            bitmap = _bitmap(tgt, start + before - margin, end + before + margin)
            places = (rows + margin) * (_COLUMNS + 1) + self.companions[:, buckets]
            hit, miss = self.hit[buckets], self.miss[buckets]
            for row, shift in enumerate(shifts):
                gained = np.where(bitmap.take(places + shift * (_COLUMNS + 1)).any(axis=0), hit, miss)
                scores[row, start:end] = np.bincount(rows, weights=gained, minlength=end - start)
        return scores


def _bitmap(words: Words, start: int, end: int) -> NDArray[np.bool_]:
    """Which columns the words of lines `start` … `end` set, (lines * (columns + 1),); the last column is never set."""
    first, last = np.searchsorted(words.lines, (start, end))
    bitmap = np.zeros((end - start) * (_COLUMNS + 1), dtype=bool)
    bitmap[(words.lines[first:last] - start) * (_COLUMNS + 1) + words.buckets[first:last] % _COLUMNS] = True
    return bitmap


def _length_bins(src_lengths: Ints, tgt_lengths: Ints, centre: float) -> tuple[Ints, Ints]:
    kind = np.searchsorted((10, 25, 50, 100), src_lengths)
    ratio = log_ratio(src_lengths, tgt_lengths) - centre
    return kind, ((ratio + 1.2) * (_LENGTH_BINS / 2.4)).astype(np.int64).clip(0, _LENGTH_BINS - 1)


def learn(src_lines: Sequence[str], tgt_lines: Sequence[str], seed: int = 1) -> Evidence:
    """Learn from a sample of pairs, most of which are translations. Half of it makes the lexicon, half the chances."""
    src, tgt = Side.of(src_lines), Side.of(tgt_lines)
    random = np.random.default_rng(seed).permutation(len(src_lines))  # whose target each source line gets by chance
    src_words, tgt_words = src.words.distinct(), tgt.words.distinct()
    src_counts = np.bincount(src_words.buckets, minlength=_BUCKETS)
    tgt_counts = np.bincount(tgt_words.buckets, minlength=_BUCKETS)
    companions, known = _companions(_half(src_words, 0), _half(tgt_words, 0))
    hit, miss = _chances(companions, known, _half(src_words, 1), tgt_words, random)
    ratio = log_ratio(src.lengths, tgt.lengths)
    centre = float(np.median(ratio)) if len(ratio) else 0.0
    spread = 1.4826 * float(np.median(abs(ratio - centre))) if len(ratio) else 0.0
    length = np.zeros((2, _LENGTH_CLASSES, _LENGTH_BINS))
    ends = np.zeros((2, len(set(_ENDS.values())) + 1, len(set(_ENDS.values())) + 1))
    for row, place in enumerate((np.arange(len(random)), random)):
        np.add.at(length[row], _length_bins(src.lengths, tgt.lengths[place], centre), 1)
        np.add.at(ends[row], (src.ends, tgt.ends[place]), 1)
    total = src_counts + tgt_counts
    src_like = np.log((src_counts + 0.2) / (tgt_counts + 0.2)) * (total >= 3)
    return Evidence(
        companions,
        hit,
        miss,
        np.log((length[0] + 2) / (length[1] + 2)).astype(np.float32),
        centre,
        np.log((ends[0] + 5) / (ends[1] + 5)).astype(np.float32),
        src_like.clip(-4, 4).astype(np.float32),
        spread,
    )


def _half(words: Words, which: int) -> Words:
    chosen = words.lines % 2 == which
    return Words(words.buckets[chosen], words.lines[chosen], words.count)


def _companions(src: Words, tgt: Words) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The columns of each source word's companions by Dice's coefficient, and whether it has any but itself."""
    pairs = _together(src.first_of_each_line(_MOST_WORDS), tgt.first_of_each_line(_MOST_WORDS))
    keys, together = np.unique(pairs, return_counts=True)
    keys, together = keys[together >= 2], together[together >= 2]
    word, companion = keys // _BUCKETS, keys % _BUCKETS
    src_counts = np.bincount(src.buckets, minlength=_BUCKETS)
    tgt_counts = np.bincount(tgt.buckets, minlength=_BUCKETS)
    dice = 2 * together / (src_counts[word] + tgt_counts[companion])
    best_of_word = np.zeros(_BUCKETS)
    np.maximum.at(best_of_word, word, dice)
    # A word that is in every line goes with all and says nothing.
    near = (dice >= _LEAST_DICE) & (dice >= _NEAR_BEST * best_of_word[word])
    word, companion, dice = word[near], companion[near], dice[near]
    best = np.lexsort((-dice, word))
    word, companion = word[best], companion[best]
    rank = np.arange(len(word)) - np.searchsorted(word, word)
    near = rank < _COMPANIONS
    columns = np.full((_COMPANIONS, _BUCKETS), _COLUMNS, dtype=np.int32)
    columns[rank[near], word[near]] = companion[near] % _COLUMNS
    known = columns[0] != _COLUMNS
    columns[0, ~known] = np.flatnonzero(~known) % _COLUMNS
    return columns, known


def _together(src: Words, tgt: Words) -> Ints:
    """All pairs of a source and a target word of the same line, as source bucket * buckets + target bucket."""
    starts = np.searchsorted(tgt.lines, np.arange(tgt.count + 1))
    partners = np.diff(starts)[src.lines]
    offset = np.arange(partners.sum()) - np.repeat(np.cumsum(partners) - partners, partners)
    companions = tgt.buckets[np.repeat(starts[src.lines], partners) + offset]
    pairs: Ints = np.repeat(src.buckets, partners) * _BUCKETS + companions
    return pairs


def _chances(
    companions: NDArray[np.int32], known: NDArray[np.bool_], src: Words, tgt: Words, random: Ints
) -> tuple[Floats, Floats]:
    """Evidence of each source word whose companion is in the target line, and of one whose is not.

    Words seen seldom take on the average of their kind: those with companions, and those with none but themselves.
    """
    seen = np.bincount(src.buckets, minlength=_BUCKETS)
    chances = []
    for place in (np.arange(src.count), random):
        there = _are_there(companions, src, tgt, place)
        hits = np.bincount(src.buckets, weights=there, minlength=_BUCKETS)
        chance = np.empty(_BUCKETS)
        for kind in (known, ~known):
            average = (hits[kind].sum() + 0.1) / (seen[kind].sum() + 1)
            weight = np.where(known[kind], 4, 1e9)  # rare words are all alike
            chance[kind] = (hits[kind] + weight * average) / (seen[kind] + weight)
        chances.append(chance.clip(1e-3, 1 - 1e-3))
    aligned, by_chance = chances
    hit, miss = np.log(aligned / by_chance), np.log((1 - aligned) / (1 - by_chance))
    return hit.astype(np.float32), miss.astype(np.float32)


def _are_there(companions: NDArray[np.int32], src: Words, tgt: Words, place: Ints) -> NDArray[np.bool_]:
    """Whether a companion of each source word is in target line `place[line]`."""
    there = np.zeros(len(src.buckets), dtype=bool)
    starts = np.searchsorted(tgt.lines, np.arange(tgt.count + 1))
    for start in range(0, src.count, _BLOCK_LINES):
        lines = place[start : start + _BLOCK_LINES]
        counts = np.diff(starts)[lines]
        rows = np.repeat(np.arange(len(lines)), counts)
        offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        moved = Words(tgt.buckets[np.repeat(starts[lines], counts) + offset], rows, len(lines))
        bitmap = _bitmap(moved, 0, len(lines))
        first, last = np.searchsorted(src.lines, (start, start + len(lines)))
        rows = src.lines[first:last] - start
        places = rows * (_COLUMNS + 1) + companions[:, src.buckets[first:last]]
        there[first:last] = bitmap.take(places).any(axis=0)
    return there
