"""Dropout whose random bits do not hold up a CPU.

On a CPU torch draws one Bernoulli number an element, in one thread: up to a fifth of a training step. Here four
elements share one 64-bit word, 16 bits each. Elsewhere it is `F.dropout`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


def drop(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability `rate`, and scale the others up so that the mean stays. Shape: any, kept.

    On a CPU the rate is rounded to a multiple of 2^-16, and the scale is that of the rounded rate.
    """
    if rate == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # a compiler draws in its own way
        return F.dropout(x, rate)
    dropped_levels = min(round(rate * _LEVELS), _LEVELS - 1)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    levels = words.view(torch.int16)[: x.numel()].view(x.shape)  # uniform on [-2^15, 2^15)
    keep = (levels >= dropped_levels - _LEVELS // 2).to(torch.promote_types(x.dtype, torch.float32))
    return (x * keep.mul_(_LEVELS / (_LEVELS - dropped_levels))).to(x.dtype)


class Dropout(nn.Module):
    """`drop` while training, nothing otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Shape: any, kept."""
        return drop(x, self.rate) if self.training else x

    def extra_repr(self) -> str:
        """The rate, for print(model)."""
        return f"{self.rate}"
