"""How a Transformer knows the order of its tokens.

Two kinds are added to the embeddings: `SinusoidalPositions` and `LearnedPositions`. Three act inside self-attention:
`rotate` turns queries and keys (RoPE); `T5Bias` and `ShawBias` add to the scores what depends on the distance, which
is the position of the key minus that of the query.

Shapes: L positions, D d_model, B batch, H heads, Q queries, S keys, K head dim.
"""

import math

import torch
from torch import Tensor, nn

_BASE = 10_000.0  # of sines, and of rotations


def sinusoidal(length: int, d_model: int) -> Tensor:
    """The table PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same): float64 (L, D)."""
    position_L1 = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(_BASE) / d_model))
    table_LD = torch.empty(length, d_model, dtype=torch.float64)
    table_LD[:, 0::2] = torch.sin(position_L1 * frequency)
    table_LD[:, 1::2] = torch.cos(position_L1 * frequency)
    return table_LD


class SinusoidalPositions(nn.Module):
    """The table of `sinusoidal` (Vaswani et al. 2017, section 3.5), of any length.

    Made in the dtype and on the device of what it is added to, and grown when too short. No buffer: `module.half()`
    would round the rounded table again, and a later growth would then change its values.
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


class LearnedPositions(nn.Module):
    """A trained vector for each position (Gehring et al. 2017), up to a limit."""

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.table_LD = nn.Parameter(torch.empty(max_positions, d_model))

    def forward(self, start: int, length: int, like: Tensor) -> Tensor:
        """Positions start … start + length - 1; only padding may stand beyond the limit. Shape: (length, D)."""
        places_L = torch.arange(start, start + length, device=like.device).clamp(max=len(self.table_LD) - 1)
        return self.table_LD[places_L].to(like.dtype)


Turns = tuple[Tensor, Tensor]  # cosines and sines, each (Q, K/2)


def turns(start: int, length: int, like_BHQK: Tensor) -> Turns:
    """By what `rotate` turns positions start … start + length - 1: in fp32 at least."""
    exact = torch.promote_types(like_BHQK.dtype, torch.float32)
    head_dim, device = like_BHQK.shape[-1], like_BHQK.device
    frequency = torch.exp(torch.arange(0, head_dim, 2, dtype=exact, device=device) * (-math.log(_BASE) / head_dim))
    angles = torch.arange(start, start + length, dtype=exact, device=device)[:, None] * frequency
    return angles.cos(), angles.sin()


def rotate(x_BHQK: Tensor, by: Turns) -> Tensor:
    """RoPE (Su et al. 2021, equation 34): number i of the first half and of the second are turned by an angle.

    It is position * 10000^(-2i/K), so that the product of a query and a key depends on their distance alone.
    Shape: kept.
    """
    cos_QK, sin_QK = by
    first, second = x_BHQK.to(cos_QK.dtype).chunk(2, dim=-1)
    turned = torch.cat([first * cos_QK - second * sin_QK, second * cos_QK + first * sin_QK], dim=-1)
    return turned.to(x_BHQK.dtype)


def distances(queries: int, keys: int, device: torch.device) -> Tensor:
    """Of every key to every query, both from the first position on. int64 (Q, S)."""
    return torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]


_T5_BUCKETS, _T5_FARTHEST = 32, 128


def t5_bucket(distance: Tensor, buckets: int) -> Tensor:
    """Which of `buckets` a distance of 0 or more falls into: half are of one distance each, the others grow.

    From 128 on all are in the last one (Raffel et al. 2020, section 2.1, and their code).
    """
    single = buckets // 2
    growth = (distance.clamp(min=1) / single).log() / math.log(_T5_FARTHEST / single)
    grown = single + (growth * (buckets - single) + 1e-4).long()  # what is whole may be a little below after rounding
    return torch.where(distance < single, distance, grown.clamp(max=buckets - 1))


class T5Bias(nn.Module):
    """A trained number for each head and range of distances, added to the scores; each layer has its own.

    Args:
        causal: no key comes after its query. Else half of the ranges are for those that do.
    """

    def __init__(self, num_heads: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.table_NH = nn.Parameter(torch.empty(_T5_BUCKETS, num_heads))

    def forward(self, q_BHQK: Tensor, distance_QS: Tensor) -> Tensor:
        """Shape: distances (Q, S) to (H, Q, S), or (B, Q, S) to (B, H, Q, S)."""
        one_way = _T5_BUCKETS if self.causal else _T5_BUCKETS // 2
        bucket_QS = t5_bucket(distance_QS.abs(), one_way)
        if not self.causal:
            bucket_QS = bucket_QS + (distance_QS > 0) * one_way
        return self.table_NH[bucket_QS].movedim(-1, -3)


_SHAW_FARTHEST = 16


class ShawBias(nn.Module):
    """A trained key for each distance, clipped at 16 either way (Shaw et al. 2018, equation 4).

    Their vectors for values are left out: with those of the keys they changed nothing (their table 3).
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.table_NK = nn.Parameter(torch.empty(2 * _SHAW_FARTHEST + 1, head_dim))

    def forward(self, q_BHQK: Tensor, distance_QS: Tensor) -> Tensor:
        """Shape: distances (Q, S), or (B, Q, S), to (B, H, Q, S)."""
        by_distance_BHQN = (q_BHQK / math.sqrt(q_BHQK.shape[-1])) @ self.table_NK.t()
        place = distance_QS.clamp(-_SHAW_FARTHEST, _SHAW_FARTHEST) + _SHAW_FARTHEST
        place = place if place.dim() == 2 else place[:, None]
        return by_distance_BHQN.gather(-1, place.expand(*q_BHQK.shape[:-1], place.shape[-1]))
