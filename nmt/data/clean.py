"""Which pairs are dropped, and the count of each rule.

Empty sides and duplicates are found on text in a first pass (`scan`), length and ratio on pieces when the cache is
built (`length_rules`), since a model's limits are in pieces.
"""

import hashlib
import random
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from nmt.data.sources import Chunk
from nmt.text.sentences import share_of_single
from nmt.text.tokenizer import training_text

LOOKED_AT = 20_000  # source lines at most, the same of the same corpus, to see whether they are one sentence each
LENGTH_RULES = ("too long", "length ratio")
_OCCUR_AT_ONCE = 1 << 20

Item = TypeVar("Item")


class Reservoir(Generic[Item]):
    """A uniform sample of a stream of unknown length (Vitter 1985, algorithm R), the same for the same seed.

    Attributes:
        seen: items of the stream so far.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.items: list[Item] = []
        self.seen = 0
        self._size, self._random = size, random.Random(seed)

    def offer(self, item: Item) -> None:
        """Let the next item of the stream into the sample, or not."""
        self.seen += 1
        if len(self.items) < self._size:
            self.items.append(item)
        elif (slot := int(self._random.random() * self.seen)) < self._size:
            self.items[slot] = item


@dataclass
class Scan:
    """What the first pass over a corpus found.

    Attributes:
        keep: bool (pairs,), False where a rule dropped the pair.
        dropped: pairs by rule.
        content_hash: hex sha256 over all pairs, in order.
        src_sample, tgt_sample: lines sampled for tokenizer training, as much of each as it reads.
        offered: pairs that they were sampled from.
        one_sentence_share: how many source lines are one sentence each, from 0 to 1, if that was asked for.
        identical: pairs of the same text on both sides.
        hashes: of all pairs, if they were to be held.
    """

    keep: NDArray[np.bool_]
    dropped: Counter[str]
    content_hash: str
    src_sample: list[str] = field(default_factory=list)
    tgt_sample: list[str] = field(default_factory=list)
    offered: int = 0
    one_sentence_share: float | None = None
    identical: int = 0
    hashes: NDArray[np.uint64] | None = None

    def sample(self, chunks: Iterable[Chunk], keep: NDArray[np.bool_], lines: int, seed: int) -> None:
        """Sample lines for tokenizer training from the pairs with `keep` set, in a pass of its own."""
        sample, position = Reservoir[tuple[str, str]](max(1, lines // 2), seed), 0
        for src_lines, tgt_lines in chunks:
            for place in np.flatnonzero(keep[position : position + len(src_lines)]).tolist():
                sample.offer((training_text(src_lines[place]), training_text(tgt_lines[place])))
            position += len(src_lines)
        self.take(sample)

    def take(self, sample: Reservoir[tuple[str, str]]) -> None:
        """Hold these pairs as the sample."""
        self.src_sample, self.tgt_sample = [src for src, _ in sample.items], [tgt for _, tgt in sample.items]
        self.offered = sample.seen

    def drop_sample(self) -> None:
        """Give back the sample's memory, once the tokenizer is trained."""
        self.src_sample, self.tgt_sample = [], []


def scan(
    chunks: Iterable[Chunk],
    *,
    remove_duplicates: bool,
    sample_lines: int,
    seed: int,
    src_lang: str | None = None,
    hold_hashes: bool = False,
) -> Scan:
    """Look through a corpus once: hash every pair, find empty and repeated ones, sample lines for the tokenizer.

    Memory: 17 bytes a pair at most, 1 of them afterwards (9 with the hashes), and the sample.

    Args:
        sample_lines: both sides together; 0 for none.
        src_lang: look how many source lines are one sentence each, by the rules of this language.
    """
    hashes, empty, identical = array("Q"), bytearray(), 0
    content = hashlib.sha256()
    looked_at = Reservoir[str](LOOKED_AT, 0) if src_lang is not None else None
    sample = Reservoir[tuple[str, str]](max(1, sample_lines // 2), seed) if sample_lines else None
    for src_lines, tgt_lines in chunks:
        pairs = list(zip(src_lines, tgt_lines, strict=True))
        digests = b"".join([blake2b(f"{src}\n{tgt}".encode(), digest_size=8).digest() for src, tgt in pairs])
        content.update(digests)
        hashes.frombytes(digests)
        empty += bytes([not src or not tgt for src, tgt in pairs])
        identical += sum(src == tgt for src, tgt in pairs)
        _offer(pairs, sample, looked_at)
    keep = ~np.frombuffer(empty, dtype=bool)
    dropped = Counter({"empty": int(len(keep) - keep.sum())})
    if remove_duplicates:
        first = first_of_equals(np.frombuffer(hashes, dtype=np.uint64))
        dropped["duplicate"] = int((keep & ~first).sum())
        keep &= first
    found = Scan(
        keep,
        dropped,
        content.hexdigest(),
        one_sentence_share=share_of_single(looked_at.items, src_lang) if looked_at and src_lang else None,
        identical=identical,
        hashes=np.frombuffer(hashes, dtype=np.uint64) if hold_hashes else None,
    )
    if sample is not None:
        found.take(sample)
    return found


def _offer(
    pairs: list[tuple[str, str]], sample: Reservoir[tuple[str, str]] | None, looked_at: Reservoir[str] | None
) -> None:
    """Let pairs without an empty side into the samples, and their sources into the second."""
    whole = [pair for pair in pairs if pair[0] and pair[1]] if sample is not None or looked_at is not None else []
    if sample is not None:
        for src, tgt in whole:
            sample.offer((training_text(src), training_text(tgt)))
    if looked_at is not None:
        for src, _ in whole:
            looked_at.offer(src)


def occur_in(hashes: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which hashes are among the others. Sorts only the others: they are few."""
    if not len(others):
        return np.zeros(len(hashes), dtype=bool)
    others = np.sort(others)
    found = np.empty(len(hashes), dtype=bool)
    for start in range(0, len(hashes), _OCCUR_AT_ONCE):
        part = hashes[start : start + _OCCUR_AT_ONCE]
        place = np.searchsorted(others, part).clip(max=len(others) - 1)
        found[start : start + len(part)] = others[place] == part
    return found


def first_of_equals(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether no earlier one has the same value. In sixteen parts, since sorting all at once takes 40 bytes a hash."""
    first = np.zeros(len(hashes), dtype=bool)
    part_of = hashes.view(np.uint8)[::8] >> 4
    for part in range(16):
        places = np.flatnonzero(part_of == part)
        first[places[np.unique(hashes[places], return_index=True)[1]]] = True
    return first


def length_rules(
    src_lengths: NDArray[np.int64], tgt_lengths: NDArray[np.int64], max_length: int, max_ratio: float
) -> dict[str, NDArray[np.bool_]]:
    """Which pairs of these piece counts (EOS included) each rule drops: bool (pairs,), at most one rule a pair."""
    longer, shorter = np.maximum(src_lengths, tgt_lengths), np.minimum(src_lengths, tgt_lengths)
    too_long = longer > max_length
    unequal = longer > max_ratio * shorter + 4  # the slack lets short lines differ: "Ja." against a clause
    return dict(zip(LENGTH_RULES, (too_long, unequal & ~too_long), strict=True))
