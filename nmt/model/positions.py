"""Sinusoidal positions of any length (Vaswani et al. 2017, section 3.5). Shapes: L positions, D d_model."""

import math

import torch
from torch import Tensor, nn


def sinusoidal(length: int, d_model: int) -> Tensor:
    """The table PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same): float64 (L, D)."""
    position_L1 = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000.0) / d_model))
    table_LD = torch.empty(length, d_model, dtype=torch.float64)
    table_LD[:, 0::2] = torch.sin(position_L1 * frequency)
    table_LD[:, 1::2] = torch.cos(position_L1 * frequency)
    return table_LD


class SinusoidalPositions(nn.Module):
    """The table of `sinusoidal`, made in the dtype and on the device of what it is added to, and grown when too short.

    No buffer: `module.half()` would round the rounded table again, and a later growth would then change its values.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self._table_LD = torch.empty(0, d_model)

    def forward(self, start: int, length: int, like: Tensor) -> Tensor:
        """Positions start … start + length - 1 in the dtype and on the device of `like`. Shape: (length, D)."""
        table_LD = self._table_LD
        if start + length > len(table_LD) or table_LD.dtype != like.dtype or table_LD.device != like.device:
            longest = max(256, 2 * (start + length), len(table_LD))
            self._table_LD = table_LD = sinusoidal(longest, self.d_model).to(like)
        return table_LD[start : start + length]
