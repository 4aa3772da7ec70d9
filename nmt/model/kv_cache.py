"""Keys and values kept between decoding steps.

Shapes: B sentences, N rows of a beam search (B * beam), H heads, T positions, S source, K head dim.
"""

from dataclasses import dataclass

from torch import Tensor

KeyValue = tuple[Tensor, Tensor]  # keys and values, each (rows, H, positions, K)

_FIRST_CAPACITY = 32


class LayerCache:
    """Self-attention keys and values of one decoder layer, in a buffer that doubles when full."""

    def __init__(self) -> None:
        self.length = 0
        self._buffer: Tensor | None = None  # (2, N, H, capacity, K)

    def append(self, k_NH1K: Tensor, v_NH1K: Tensor) -> KeyValue:
        """Add one position. Returns: all keys and values so far, (N, H, length, K) views."""
        if self._buffer is None or self.length == self._buffer.shape[3]:
            self._grow(k_NH1K)
        assert self._buffer is not None
        self._buffer[0, :, :, self.length] = k_NH1K[:, :, 0]
        self._buffer[1, :, :, self.length] = v_NH1K[:, :, 0]
        self.length += 1
        return self._buffer[0, :, :, : self.length], self._buffer[1, :, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Make row i a copy of what was row rows[i]; the number of rows may change."""
        if self._buffer is not None:
            filled = self._buffer[:, :, :, : self.length].index_select(1, rows)
            if len(rows) != self._buffer.shape[1]:
                self._buffer = filled.new_zeros(2, len(rows), *self._buffer.shape[2:])
            self._buffer[:, :, :, : self.length] = filled

    def _grow(self, like_NH1K: Tensor) -> None:
        rows, heads, _, head_dim = like_NH1K.shape
        capacity = _FIRST_CAPACITY if self._buffer is None else 2 * self._buffer.shape[3]
        grown = like_NH1K.new_zeros(2, rows, heads, capacity, head_dim)
        if self._buffer is not None:
            grown[:, :, :, : self.length] = self._buffer
        self._buffer = grown


@dataclass
class DecoderState:
    """All that decoding one more position needs.

    Attributes:
        cross: each layer's projected memory, at B rows: beams share their sentence's.
        memory_keep: bool (B, 1, 1, S), or None if nothing is padded.
        layers: each layer's self-attention cache, at N rows.
        step: positions decoded so far.
    """

    cross: list[KeyValue]
    memory_keep: Tensor | None
    layers: list[LayerCache]
    step: int = 0

    def reorder(self, rows_N: Tensor) -> None:
        """Row i goes on from the row that was rows_N[i], of the same sentence; the number of rows may change."""
        for layer in self.layers:
            layer.select(rows_N)

    def keep_sentences(self, sentences: Tensor, rows: Tensor) -> None:
        """Go on with `sentences` alone, row i from the row that was rows[i]."""
        self.cross = [(k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.cross]
        if self.memory_keep is not None:
            self.memory_keep = self.memory_keep.index_select(0, sentences)
        self.reorder(rows)
