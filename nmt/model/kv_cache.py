"""Keys and values kept between decoding steps.

The position of a prefix lies in a slot of its sentence. A table says in which; attention masks the slots of others. So
nothing moves when prefixes are reordered, and a slot that no prefix needs any more is written again: a sentence has as
many slots as its prefixes have different positions, few more than T where they parted late.

Shapes: B sentences, W prefixes of a sentence (the beam), T positions so far, S source, H heads, K head dim, C slots.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

KeyValue = tuple[Tensor, Tensor]  # keys and values, each (B, H, positions, K)

_FIRST_CAPACITY = 32
_WIDTH_STEP, _LEAST_WIDTH = 8, 16
_LEAST_PRODUCTS = 400  # fewer of them in a matrix product, and torch takes another kernel


def even_width(length: int, head_dim: int) -> int:
    """How many keys attention is given for `length` of them; the rest are masked.

    A multiple of 8, and 16 at least. Attention's sums then have the same bits at every width, with a mask that is there
    even if nothing is to be masked, so that a sentence's do not depend on the rest of its batch: found by trial with
    AVX2, watched by `make bench-invariance`.
    """
    length = max(length, _LEAST_WIDTH, -(-_LEAST_PRODUCTS // head_dim))
    return -(-length // _WIDTH_STEP) * _WIDTH_STEP


class Slots:
    """Where each position of each prefix lies: one table for all layers.

    Attributes:
        length: positions so far.
        newest_BW: the slots of the newest position.
        count: C, the slots that attention reads: an even width, so that some may not be in use.
    """

    def __init__(self, width: int, head_dim: int) -> None:
        self.length = self.count = 0
        self.newest_BW = torch.empty(0)
        self._width, self._head_dim = width, head_dim
        self._table_BWT: Tensor | None = None
        self._distances: Tensor | None = None  # which all layers ask for

    def advance(self, like_BW: Tensor) -> None:
        """Give the next position of every prefix a slot. Of `like_BW` only shape and device matter."""
        self.length += 1
        self._distances = None
        if self._width == 1:  # a slot is a position
            self.newest_BW = torch.full_like(like_BW, self.count)
            self.count += 1
            return
        self.newest_BW = self._lowest_free(like_BW)
        newest_BW1 = self.newest_BW[..., None]
        self._table_BWT = newest_BW1 if self._table_BWT is None else torch.cat([self._table_BWT, newest_BW1], dim=2)
        self.count = even_width(int(self._table_BWT.max()) + 1, self._head_dim)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """What is added to attention's scores: 0 where a slot is of the prefix. None if there is one prefix a sentence.

        Shape: (B, 1, W, C).
        """
        if self._width == 1:
            return None
        assert self._table_BWT is not None
        batch, prefixes, _ = self._table_BWT.shape
        never, device = torch.finfo(dtype).min / 2, self._table_BWT.device
        bias_BWC = torch.full((batch, prefixes, self.count), never, dtype=dtype, device=device)
        return bias_BWC.scatter_(2, self._table_BWT, 0.0)[:, None]

    def distances(self) -> Tensor:
        """Of every slot's position to the newest one; those of slots in use count. int64 (1, C), or (B, W, C)."""
        if self._distances is None:
            self._distances = self._new_distances()
        return self._distances

    def _new_distances(self) -> Tensor:
        device = self.newest_BW.device
        of_positions_T = torch.arange(1 - self.length, 1, device=device)
        if self._width == 1:
            return of_positions_T[None]
        assert self._table_BWT is not None
        distance_BWC = torch.zeros(*self._table_BWT.shape[:2], self.count, dtype=torch.long, device=device)
        return distance_BWC.scatter_(2, self._table_BWT, of_positions_T.expand_as(self._table_BWT))

    def reorder(self, parents_BW: Tensor) -> None:
        """See `DecoderState.reorder`."""
        if self._width == 1:
            return
        assert self._table_BWT is not None
        positions = self._table_BWT.shape[2]
        self._table_BWT = self._table_BWT.gather(1, parents_BW[..., None].expand(-1, -1, positions))

    def keep_sentences(self, sentences: Tensor, moved: Tensor) -> None:
        """See `DecoderState.keep_sentences`; `moved` are the places that hold another sentence than before."""
        if self._table_BWT is not None:
            self._table_BWT = keep_rows(self._table_BWT, sentences, moved)

    def _lowest_free(self, like_BW: Tensor) -> Tensor:
        """The lowest slots of each sentence that none of its prefixes needs; no other sentence changes that. (B, W)."""
        batch, prefixes = like_BW.shape
        used_BC = like_BW.new_zeros(batch, self.count + prefixes, dtype=torch.bool)
        if self._table_BWT is not None:
            used_BC.scatter_(1, self._table_BWT.flatten(1), True)
        free_so_far_BC = (~used_BC).cumsum(1)
        wanted_BW = torch.arange(1, prefixes + 1, device=like_BW.device).expand(batch, -1).contiguous()
        return torch.searchsorted(free_so_far_BC, wanted_BW)


class LayerCache:
    """Self-attention keys and values of one decoder layer, in a buffer that doubles."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._buffer: Tensor | None = None  # (2, B, H, capacity, K)
        self._defined = 0  # slots that hold numbers

    def write(self, k_BHWK: Tensor, v_BHWK: Tensor) -> KeyValue:
        """Put the newest position of every prefix into its slot. Returns: all slots in use, views (B, H, C, K)."""
        count, newest_BW = self.slots.count, self.slots.newest_BW
        if self._buffer is None or count > self._buffer.shape[3]:
            self._grow(k_BHWK)
        assert self._buffer is not None
        if count > self._defined:  # a slot that was never written has a weight of 0, which must not meet NaN
            self._buffer[:, :, :, self._defined : count] = 0
            self._defined = count
        keys, values = self._buffer
        sentences_B1 = torch.arange(len(newest_BW), device=newest_BW.device)[:, None]
        keys[sentences_B1, :, newest_BW] = k_BHWK.transpose(1, 2)
        values[sentences_B1, :, newest_BW] = v_BHWK.transpose(1, 2)
        return keys[:, :, :count], values[:, :, :count]

    def keep_sentences(self, sentences: Tensor, moved: Tensor) -> None:
        """See `Slots.keep_sentences`."""
        if self._buffer is not None:
            for defined in self._buffer[:, :, :, : self._defined]:
                keep_rows(defined, sentences, moved)
            self._buffer = self._buffer[:, : len(sentences)]

    def _grow(self, like_BHWK: Tensor) -> None:
        batch, heads, _, head_dim = like_BHWK.shape
        capacity = max(_FIRST_CAPACITY, self.slots.count, 0 if self._buffer is None else 2 * self._buffer.shape[3])
        grown = like_BHWK.new_empty(2, batch, heads, capacity, head_dim)
        if self._buffer is not None:
            grown[:, :, :, : self._defined] = self._buffer[:, :, :, : self._defined]
        self._buffer = grown


@dataclass
class DecoderState:
    """All that decoding one more position needs.

    Attributes:
        cross: each layer's projected memory; the prefixes of a sentence share it.
        memory_bias: (B, 1, 1, S), which masks padding; None if nothing is padded.
        slots: where each position lies in the layers' caches.
        layers: each layer's self-attention cache.
    """

    cross: list[KeyValue]
    memory_bias: Tensor | None
    slots: Slots
    layers: list[LayerCache]

    def advance(self, tokens_BW: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Make room for the next position of every prefix. Returns: see `Slots.bias`."""
        self.slots.advance(tokens_BW)
        return self.slots.bias(dtype)

    def reorder(self, parents_BW: Tensor) -> None:
        """Prefix w of sentence b goes on from what was prefix parents_BW[b, w] of it; there may be more than before."""
        self.slots.reorder(parents_BW)

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with `sentences` alone, in that order. Those that stay where they are are not copied."""
        moved = (sentences != torch.arange(len(sentences), device=sentences.device)).nonzero()[:, 0]
        self.cross = [(keep_rows(k, sentences, moved), keep_rows(v, sentences, moved)) for k, v in self.cross]
        if self.memory_bias is not None:
            self.memory_bias = keep_rows(self.memory_bias, sentences, moved)
        self.slots.keep_sentences(sentences, moved)
        for layer in self.layers:
            layer.keep_sentences(sentences, moved)


def keep_rows(rows: Tensor, kept: Tensor, moved: Tensor) -> Tensor:
    """The rows numbered `kept`, written over the first ones; only the places `moved` change."""
    rows[moved] = rows[kept[moved]]
    return rows[: len(kept)]
