"""Padded batches without their padding.

Everything in a layer but attention treats each position alone, so padding need not pass it.

Shapes: B batch, S source, N real positions of the batch, D any width.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Which positions of a padded batch are real.

    Attributes:
        shape: (B, S).
        places_N: their places in the flattened batch.
    """

    shape: tuple[int, int]
    places_N: Tensor

    @classmethod
    def of(cls, keep_BS: Tensor) -> "Packing":
        """Of a mask that is True on real positions."""
        batch, length = keep_BS.shape
        return cls((batch, length), keep_BS.flatten().nonzero()[:, 0])

    def pack(self, x_BSD: Tensor) -> Tensor:
        """Shape: (B, S, D) to (N, D)."""
        return x_BSD.flatten(0, 1)[self.places_N]

    def pad(self, x_ND: Tensor) -> Tensor:
        """With zeros. Shape: (N, D) to (B, S, D)."""
        batch, length = self.shape
        x_BSD = x_ND.new_zeros(batch * length, x_ND.shape[-1])
        x_BSD[self.places_N] = x_ND
        return x_BSD.view(batch, length, -1)
