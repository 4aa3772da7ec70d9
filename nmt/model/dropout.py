"""Dropout whose random bits do not hold up a CPU.

On a CPU torch draws one Bernoulli number an element, in one thread: up to a fifth of a training step. Here four
elements share one 64-bit word, 16 bits each, of a generator that torch's own seeds. Elsewhere it is `F.dropout`.
"""

from typing import Any

import numpy as np
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
    scale, least = _LEVELS / (_LEVELS - dropped_levels), dropped_levels - _LEVELS // 2
    levels = _levels(x.numel()).view(x.shape)
    if x.element_size() == levels.element_size():
        masked: Tensor = _Masked.apply(x, levels.ge_(least).neg_(), scale)  # type: ignore[no-untyped-call]
        return masked
    return x * (levels >= least).to(x.dtype).mul_(scale)


def _levels(count: int) -> Tensor:
    """So many numbers, uniform on [-2^15, 2^15): int16. Seeded from torch's default generator."""
    seed = int(torch.empty((), dtype=torch.int64).random_().numpy())  # int(tensor) would count as reading a device
    words = np.random.SFC64(seed).random_raw((count + 3) // 4)
    return torch.from_numpy(words.view(np.int16))[:count]


class _Masked(torch.autograd.Function):
    """A product with 0 or `scale`, for floats of 16 bits: a multiplication would widen, compute and narrow again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        """`mask`: int16, all bits set where an element is kept."""
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return _masked(x, mask, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return _masked(grad, mask, ctx.scale), None, None


def _masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return (x.view(torch.int16) & mask).view(x.dtype).mul_(scale)


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
