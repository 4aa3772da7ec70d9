"""Keys and values kept between decoding steps.

Every position of every prefix is written once and never moved: when prefixes are reordered, a table of slots says where
the positions of each one lie, and attention masks the others of its sentence.

Shapes: B sentences, W prefixes of a sentence (the beam), T positions so far, S source, H heads, K head dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

KeyValue = tuple[Tensor, Tensor]  # keys and values, each (B, H, positions, K)

_FIRST_CAPACITY = 32


class LayerCache:
    """Self-attention keys and values of one decoder layer: `width` slots a position, in a buffer that doubles."""

    def __init__(self, width: int) -> None:
        self.length = 0
        self._width = width
        self._buffer: Tensor | None = None  # (2, B, H, capacity, width, K)

    def append(self, k_BHWK: Tensor, v_BHWK: Tensor) -> KeyValue:
        """Add one position of W <= `width` prefixes. Returns: all so far, (B, H, length * width, K) views."""
        if self._buffer is None or self.length == self._buffer.shape[3]:
            self._grow(k_BHWK)
        assert self._buffer is not None
        written = self._buffer[:, :, :, self.length, : k_BHWK.shape[2]]
        written[0], written[1] = k_BHWK, v_BHWK
        self.length += 1
        keys, values = self._buffer[:, :, :, : self.length].flatten(3, 4)
        return keys, values

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with `sentences` alone."""
        if self._buffer is not None:
            self._buffer = self._buffer.index_select(1, sentences)

    def _grow(self, like_BHWK: Tensor) -> None:
        batch, heads, _, head_dim = like_BHWK.shape
        capacity = _FIRST_CAPACITY if self._buffer is None else 2 * self._buffer.shape[3]
        # Zeros, for slots that are never written are multiplied by a weight of 0.
        grown = like_BHWK.new_zeros(2, batch, heads, capacity, self._width, head_dim)
        if self._buffer is not None:
            grown[:, :, :, : self.length] = self._buffer
        self._buffer = grown


@dataclass
class DecoderState:
    """All that decoding one more position needs.

    Attributes:
        cross: each layer's projected memory; the prefixes of a sentence share it.
        memory_keep: bool (B, 1, 1, S), or None if nothing is padded.
        layers: each layer's self-attention cache.
        width: the most prefixes a sentence will have.
        step: positions decoded so far.
        slots_BWT: where the positions of each prefix lie; None before the first step.
    """

    cross: list[KeyValue]
    memory_keep: Tensor | None
    layers: list[LayerCache]
    width: int
    step: int = 0
    slots_BWT: Tensor | None = None

    def advance(self, tokens_BW: Tensor) -> Tensor | None:
        """Give the next position of every prefix a slot. Returns: bool (B, 1, W, T * width), who may see which slot."""
        batch, prefixes = tokens_BW.shape
        newest_BW1 = torch.arange(prefixes, device=tokens_BW.device).expand(batch, -1)[..., None]
        earlier = [] if self.slots_BWT is None else [self.slots_BWT]
        self.slots_BWT = torch.cat([*earlier, newest_BW1], dim=2)
        self.step += 1
        if self.width == 1:
            return None
        slots = torch.arange(self.width, device=tokens_BW.device)
        return (self.slots_BWT[..., None] == slots).flatten(2)[:, None]

    def reorder(self, parents_BW: Tensor) -> None:
        """Prefix w of sentence b goes on from what was prefix parents_BW[b, w] of it; there may be more than before."""
        assert self.slots_BWT is not None
        self.slots_BWT = self.slots_BWT.gather(1, parents_BW[..., None].expand(-1, -1, self.step))

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with `sentences` alone."""
        self.cross = [(k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.cross]
        if self.memory_keep is not None:
            self.memory_keep = self.memory_keep.index_select(0, sentences)
        if self.slots_BWT is not None:
            self.slots_BWT = self.slots_BWT.index_select(0, sentences)
        for layer in self.layers:
            layer.keep_sentences(sentences)
