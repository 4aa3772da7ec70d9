"""Batches of similar length within a token budget, in an order that is a function of (seed, epoch).

The position in the stream of batches is two integers, (epoch, index), so a resumed run sees the same batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.cache import TokenCache
from nmt.errors import ConfigError
from nmt.text.subwords import SubwordSampling
from nmt.text.tokenizer import SpecialIds

Ids = NDArray[np.int64]
Lengths = NDArray[np.int32]
Order = NDArray[np.uint32]
ORDER = 2  # of the batches that a seed and an epoch give; another number where a change to `BatchPlan` changes them
_SORT_BLOCK = 1 << 17  # pairs
_GROWTH_PAIRS = 1000  # by which it is found how much longer sampled pieces are


@dataclass(frozen=True)
class Batch:
    """Padded sentence pairs.

    Attributes:
        src: int64 (B, S), EOS last, then padding.
        tgt_in: int64 (B, T), BOS first, no EOS.
        tgt_out: int64 (B, T), EOS last: what the model is to say at each position of `tgt_in`.
        num_tokens: real tokens of `tgt_out`.
        indices: int64 (B,), the pairs' numbers in the cache.
    """

    src: Ids
    tgt_in: Ids
    tgt_out: Ids
    num_tokens: int
    indices: Ids


@dataclass(frozen=True)
class Position:
    """Where a stream of batches stands: the next batch is number `index` of `epoch`."""

    epoch: int = 0
    index: int = 0


class Drawn(np.ndarray[Any, np.dtype[np.int64]]):
    """Pairs, int64 (B,), that know the `epoch` they were drawn in, of which sampled pieces are a function.

    An array with one number more, as NumPy's guide to subclassing makes it: every part of it knows the epoch too.
    """

    epoch: int

    def __array_finalize__(self, whole: NDArray[Any] | None) -> None:
        """Take over the epoch of the array that this is a part of."""
        self.epoch = epoch_of(whole)

    @classmethod
    def of(cls, pairs: Ids, epoch: int) -> "Drawn":
        """The same pairs, of that epoch."""
        drawn = pairs.view(cls)
        drawn.epoch = epoch
        return drawn


def epoch_of(pairs: NDArray[Any] | None) -> int:
    """The epoch in which pairs were drawn; 0 if they are any others."""
    return int(getattr(pairs, "epoch", 0))


class BatchPlan:
    """The batches of one epoch: `order` cut at `bounds`.

    Pairs are permuted, then stably sorted so that neighbours are of similar lengths, cut into batches whose padded
    longer side holds at most `tokens_per_batch` tokens, and the batches are shuffled. 4 bytes a pair.

    Args:
        equal_sources: nearly all batches hold sources of one length, so that attention over them needs no mask.
        pairs: those of the epoch, any of them several times; is shuffled. By default each once.
    """

    def __init__(
        self,
        src_lengths: NDArray[np.int32],
        tgt_lengths: NDArray[np.int32],
        tokens_per_batch: int,
        seed: int,
        epoch: int,
        equal_sources: bool = False,
        pairs: Order | None = None,
    ) -> None:
        rng = np.random.default_rng([seed, epoch])
        order = np.arange(len(src_lengths), dtype=np.uint32) if pairs is None else pairs
        rng.shuffle(order)
        lay_out = _with_equal_sources if equal_sources else _alike
        self._order, self._bounds = lay_out(src_lengths, tgt_lengths, order, tokens_per_batch)
        self._shuffle = rng.permutation(len(self._bounds) - 1)

    def __len__(self) -> int:
        return len(self._shuffle)

    def indices(self, batch: int) -> Ids:
        """The pairs of a batch."""
        place = self._shuffle[batch]
        return self._order[self._bounds[place] : self._bounds[place + 1]].astype(np.int64)


def weighted(sizes: Sequence[int], weights: Sequence[float], seed: int, epoch: int) -> Order:
    """The pairs of an epoch of corpora that follow one another, these many pairs each, uint32.

    A weight is how often a corpus is seen: all its pairs by the whole part, and by the fraction some that are drawn
    anew in each epoch. Raises: ConfigError (none would be seen).
    """
    parts: list[Order] = []
    start = 0
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        corpus = np.arange(start, start + size, dtype=np.uint32)
        parts += [corpus] * int(weight)
        if some := round((weight - int(weight)) * size):
            shuffled = np.random.default_rng([seed, epoch, number]).permuted(corpus)
            parts.append(shuffled[:some])
        start += size
    if not any(map(len, parts)):
        raise ConfigError(f"[data] train: with the weights {list(weights)} no pair is left of {start:,}. Raise them.")
    return np.concatenate(parts)


class BatchStream:
    """An endless stream of batches over epochs; `position` says which comes next.

    Args:
        sampling: draws other pieces of the pairs in every epoch. Batches are laid out by the pieces of the cache, for a
            budget that is smaller by as much as sampled pieces are longer on average.
        weights: how often a pair of each corpus of the cache is drawn in an epoch; by default once.
    """

    def __init__(
        self,
        cache: TokenCache,
        special: SpecialIds,
        tokens_per_batch: int,
        seed: int,
        position: Position | None = None,
        equal_sources: bool = False,
        sampling: SubwordSampling | None = None,
        weights: Sequence[float] = (),
    ) -> None:
        self._cache, self._special, self._sampling = cache, special, sampling
        self._weights = weights if any(weight != 1 for weight in weights) else ()
        self._seed, self._equal_sources = seed, equal_sources
        self._tokens_per_batch = (
            tokens_per_batch if sampling is None else int(tokens_per_batch / self._growth(sampling))
        )
        self.position = position or Position()
        self._plan = self._plan_of(self.position.epoch)

    @property
    def batches_in_epoch(self) -> int:
        """Batches in the current epoch."""
        return len(self._plan)

    @property
    def samples(self) -> bool:
        """Whether pieces are sampled: then a batch has to be made before its tokens can be counted."""
        return self._sampling is not None

    def draw(self) -> Drawn:
        """The pairs of the next batch; moves `position` on."""
        pairs = Drawn.of(self._plan.indices(self.position.index), self.position.epoch)
        if self.position.index + 1 < len(self._plan):
            self.position = Position(self.position.epoch, self.position.index + 1)
        else:
            self.position = Position(self.position.epoch + 1, 0)
            self._plan = self._plan_of(self.position.epoch)
        return pairs

    def num_tokens(self, pairs: Ids) -> int:
        """Real target tokens of these pairs."""
        if self.samples:
            return self.batch(pairs).num_tokens
        return int(self._cache.tgt_lengths[pairs].sum())

    def batch(self, pairs: Ids) -> Batch:
        """Collate these pairs."""
        return make_batch(self._cache, pairs, self._special, self._sampling)

    def _plan_of(self, epoch: int) -> BatchPlan:
        cache, seed, weights = self._cache, self._seed, self._weights
        pairs = weighted(cache.source_sizes, weights, seed, epoch) if weights else None
        lengths = cache.src_lengths, cache.tgt_lengths
        return BatchPlan(*lengths, self._tokens_per_batch, seed, epoch, self._equal_sources, pairs)

    def _growth(self, sampling: SubwordSampling) -> float:
        """How much longer the longer side of a pair becomes, on average over some pairs."""
        pairs = np.unique(np.linspace(0, len(self._cache) - 1, _GROWTH_PAIRS).astype(np.int64))
        sampled = [sampling(side, *self._cache.gather(side, pairs), pairs, 0)[1] for side in ("src", "tgt")]
        plain = np.maximum(self._cache.src_lengths[pairs], self._cache.tgt_lengths[pairs])
        return float(np.maximum(*sampled).sum() / plain.sum())


def once_each(
    cache: TokenCache, special: SpecialIds, tokens_per_batch: int, rank: int = 0, world: int = 1
) -> Iterator[Batch]:
    """Every pair once, in batches of similar length, in a fixed order: for validation. A rank has its share of them."""
    plan = BatchPlan(cache.src_lengths, cache.tgt_lengths, tokens_per_batch, seed=0, epoch=0)
    for number in range(rank, len(plan), world):
        yield make_batch(cache, plan.indices(number), special)


def widest_batch(cache: TokenCache, special: SpecialIds, tokens_per_batch: int) -> Batch:
    """The batch with the most padded tokens, both sides together; its shape is about the widest of every epoch."""
    plan = BatchPlan(cache.src_lengths, cache.tgt_lengths, tokens_per_batch, seed=0, epoch=0)
    sizes = []
    for number in range(len(plan)):
        indices = plan.indices(number)
        sizes.append(len(indices) * int(cache.src_lengths[indices].max() + cache.tgt_lengths[indices].max()))
    return make_batch(cache, plan.indices(int(np.argmax(sizes))), special)


def make_batch(cache: TokenCache, indices: Ids, special: SpecialIds, sampling: SubwordSampling | None = None) -> Batch:
    """Collate pairs of the cache, without a step of Python a pair if no pieces are sampled."""
    src_ids, src_lengths = cache.gather("src", indices)
    tgt_ids, tgt_lengths = cache.gather("tgt", indices)
    if sampling is not None:
        epoch = epoch_of(indices)
        src_ids, src_lengths = sampling("src", src_ids, src_lengths, indices, epoch)
        tgt_ids, tgt_lengths = sampling("tgt", tgt_ids, tgt_lengths, indices, epoch)
    tgt_out = _pad_flat(tgt_ids, tgt_lengths, special.pad)
    tgt_in = np.full_like(tgt_out, special.pad)
    tgt_in[:, 0] = special.bos
    shifted = np.arange(tgt_out.shape[1] - 1) < tgt_lengths[:, None] - 1  # all but each row's EOS
    np.copyto(tgt_in[:, 1:], tgt_out[:, :-1], where=shifted)
    return Batch(_pad_flat(src_ids, src_lengths, special.pad), tgt_in, tgt_out, len(tgt_ids), indices)


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> Ids:
    """Rows of ids as one int64 array (rows, longest row), padded on the right."""
    flat = np.array([piece for row in rows for piece in row], dtype=np.int64)
    return _pad_flat(flat, np.array([len(row) for row in rows]), pad_id)


def _pad_flat(flat: NDArray[np.integer], lengths: Ids, pad_id: int) -> Ids:
    """Rows that lie end to end in `flat`, of these lengths, as `pad` gives them."""
    real = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(real.shape, pad_id, dtype=np.int64)
    padded[real] = flat
    return padded


def _alike(
    src_lengths: Lengths, tgt_lengths: Lengths, order: Order, tokens_per_batch: int
) -> tuple[Order, NDArray[np.int64]]:
    """Sorted by the longer side, and among equals by how much longer the target is, upwards and downwards in turn.

    Returns: the order, and the bounds of batches.
    """
    order = _sorted_by(_turning_excess(src_lengths, tgt_lengths), order)
    longer = np.maximum(src_lengths, tgt_lengths)
    order = _sorted_by(longer, order)
    return order, _cut(longer[order], tokens_per_batch)


def _turning_excess(src_lengths: Lengths, tgt_lengths: Lengths) -> Lengths:
    """By how much the target is longer, negated where the longer side is even; shifted, so that none is negative."""
    excess = tgt_lengths - src_lengths
    np.negative(excess, out=excess, where=np.maximum(src_lengths, tgt_lengths) & 1 == 0)
    excess -= excess.min(initial=0)
    return excess


def _with_equal_sources(
    src_lengths: Lengths, tgt_lengths: Lengths, order: Order, tokens_per_batch: int
) -> tuple[Order, NDArray[np.int64]]:
    """Batches of one source length each; what would make one less than half full goes into mixed ones at the end.

    Without the mixed ones, rare lengths would make updates of a few pairs. Returns: the order, and the bounds.
    """
    order = _sorted_by(src_lengths, _sorted_by(tgt_lengths, order))
    longer = np.maximum(src_lengths, tgt_lengths)[order]
    sizes, kept, left = [0], [], []
    for start, end in pairwise([0, *np.cumsum(np.bincount(src_lengths[order])).tolist()]):
        for first, last in pairwise((start + _cut(longer[start:end], tokens_per_batch)).tolist()):
            if last == end and (last - first) * longer[first:last].max() < tokens_per_batch / 2:
                left.append(order[first:last])
            else:
                kept.append(order[first:last])
                sizes.append(last - first)
    mixed, of_mixed = _alike(src_lengths, tgt_lengths, np.concatenate([order[:0], *left]), tokens_per_batch)
    return np.concatenate([*kept, mixed]), np.concatenate([np.cumsum(sizes), len(order) - len(mixed) + of_mixed[1:]])


def _sorted_by(lengths: Lengths, order: Order) -> Order:
    """`order` stably sorted by the length of each pair: a counting sort, block by block.

    It takes 4 bytes a pair, where NumPy's own sorts take 8 for their result and 8 for themselves.
    """
    blocks = [order[start : start + _SORT_BLOCK] for start in range(0, len(order), _SORT_BLOCK)]
    pairs_of = np.zeros(int(lengths.max(initial=0)) + 1, dtype=np.int64)
    for block in blocks:
        pairs_of += np.bincount(lengths[block], minlength=len(pairs_of))
    free = np.cumsum(pairs_of) - pairs_of  # by length: where its next pair goes
    result = np.empty_like(order)
    for block in blocks:
        by_length = np.argsort(lengths[block], kind="stable")
        block = block[by_length]
        found, counts = np.unique(lengths[block], return_counts=True)
        within = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
        result[np.repeat(free[found], counts) + within] = block
        free[found] += counts
    return result


def _cut(longer: NDArray[np.int32], tokens_per_batch: int) -> NDArray[np.int64]:
    """Bounds of consecutive groups with rows * (longest of the group) <= tokens_per_batch, one row at least."""
    bounds = [0]
    while (start := bounds[-1]) < len(longer):
        most_rows = max(1, tokens_per_batch // int(longer[start]))
        widths = np.maximum.accumulate(longer[start : start + most_rows])
        fits = widths * np.arange(1, len(widths) + 1) <= tokens_per_batch
        rows = len(widths) if fits.all() else int(fits.argmin())
        bounds.append(start + max(1, rows))
    return np.array(bounds, dtype=np.int64)
