"""Scaled dot-product attention and its two uses: over oneself, and over the encoder's output.

Two kernels give the same numbers: `attend_fused`, PyTorch's (SDPA, which picks flash where the hardware has it), and
`attend_plain`, matrix products that also return the weights. `attend` takes the faster one by a fixed rule. Boolean
masks are `*_keep`, True = may attend; with one, a query that may attend to nothing gets zeros from both. Numbers that
are added to the scores are `*_bias`: masks while decoding, made once for all layers (see `as_bias`), and relative
positions.

Keys and values may have fewer heads than queries (grouped-query attention, Ainslie et al. 2023; with one head
multi-query attention, Shazeer 2019): H / G heads of queries in a row share one of them.

Shapes: B batch, Q queries, S keys, T target, D d_model, H heads, G heads of keys and values, K head dim, C slots of a
cache, W prefixes of a sentence (the beam).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.dropout import drop
from nmt.model.kv_cache import KeyValue, LayerCache
from nmt.model.packing import Packing
from nmt.model.positions import ShawBias, T5Bias, distances, rotate, turns


def attend(
    q_BHQK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k^T / sqrt(K)) v (Vaswani et al. 2017, equation 1).

    Args:
        keep: bool, or what `as_bias` made of it, broadcastable to (B, H, Q, S); not together with `causal`, so that
            flash can run.
        causal: query t sees keys 0 … t; Q = S.
        dropout: probability of each weight to be dropped.
    Returns: (B, H, Q, K); zeros for a query without any key, which SDPA promises since torch 2.5.
    """
    if _plain_is_faster(q_BHQK, k_BGSK.shape[2], dropout):
        return attend_plain(q_BHQK, k_BGSK, v_BGSK, keep=keep, causal=causal, dropout=dropout)[0]
    return attend_fused(q_BHQK, k_BGSK, v_BGSK, keep=keep, causal=causal, dropout=dropout)


_SHORT_KEYS = 48
_FEW_QUERIES = 15  # fewer than the least width of a padded source, so that the encoder has one kernel


def _plain_is_faster(q_BHQK: Tensor, keys: int, dropout: float) -> bool:
    """The fixed rule, from measurements of forward and backward at 16, 50 and 220 keys, fp32, in both head sizes.

    On a CPU, SDPA has no fused kernel with dropout and draws its mask in one thread; without dropout its backward is
    the slower one on short rows, and so is its forward with few queries, as in a decoding step. Not in a compiled
    layer, which would be another program for short rows.
    """
    if q_BHQK.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if not q_BHQK.requires_grad:
        return q_BHQK.shape[2] <= _FEW_QUERIES
    return dropout > 0 or keys <= _SHORT_KEYS


def attend_fused(
    q_BHQK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """`attend` by SDPA."""
    grouped = k_BGSK.shape[1] < q_BHQK.shape[1]
    return F.scaled_dot_product_attention(
        q_BHQK, k_BGSK, v_BGSK, attn_mask=keep, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
    )


def attend_plain(
    q_BHQK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`attend` by matrix products. Returns: output (B, H, Q, K) and weights before dropout (B, H, Q, S)."""
    scale = 1 / math.sqrt(q_BHQK.shape[-1])
    if keep is not None and keep.is_floating_point():
        weights_BHQS = _softmax(torch.add(keep, _by_group(q_BHQK, k_BGSK.transpose(-2, -1)), alpha=scale))
        return _by_group(drop(weights_BHQS, dropout), v_BGSK), weights_BHQS
    scores_BHQS = _by_group(q_BHQK * scale, k_BGSK.transpose(-2, -1))  # the smaller of the two scaled
    if causal:
        assert keep is None, "causal goes without keep"
        keep = causal_keep(q_BHQK.shape[2], q_BHQK.device)
    if keep is not None:
        scores_BHQS = scores_BHQS + as_bias(keep, scores_BHQS.dtype)  # which is cheaper than filling
    weights_BHQS = _softmax(scores_BHQS)
    if keep is not None and not causal:
        weights_BHQS = weights_BHQS * keep.any(-1, keepdim=True)
    return _by_group(drop(weights_BHQS, dropout), v_BGSK), weights_BHQS


def _softmax(scores_BHQS: Tensor) -> Tensor:
    """Over the keys. In training on a CPU, scores of 16 bits go through fp32: in half or a third of the time.

    Not rows of fewer than 16, for which torch has no fast way in fp32.
    """
    slow = scores_BHQS.requires_grad and scores_BHQS.device.type == "cpu" and scores_BHQS.element_size() == 2
    if slow and scores_BHQS.shape[-1] >= 16:
        return scores_BHQS.softmax(-1, dtype=torch.float32).to(scores_BHQS.dtype)
    return scores_BHQS.softmax(-1)


def _by_group(left_BHQX: Tensor, right_BGXY: Tensor) -> Tensor:
    """Matrix products in which the heads of a group share the right side. Shape: (B, H, Q, Y)."""
    batch, heads, queries, _ = left_BHQX.shape
    groups = right_BGXY.shape[1]
    if groups == heads:
        return left_BHQX @ right_BGXY
    product = left_BHQX.reshape(batch, groups, heads // groups * queries, -1) @ right_BGXY
    return product.view(batch, heads, queries, -1)


def causal_keep(length: int, device: torch.device) -> Tensor:
    """Bool (Q, Q): query t sees keys 0 … t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def as_bias(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as numbers to be added to scores: 0, or half of the lowest number.

    Not -inf: half of the lowest number cannot overflow, and a row without any key has a defined softmax and gradient.
    """
    return torch.zeros_like(keep, dtype=dtype).masked_fill_(~keep, torch.finfo(dtype).min / 2)


_NORM_EPS = 1e-6


class AttentionModule(nn.Module):
    """What can tell its weights: see `record_attention`.

    Attributes:
        num_heads: H of these weights.
        recorded: while recording, the weights of each call, (B, H, Q, S).
    """

    num_heads = 1

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[Tensor] | None = None


class HeadNorm(nn.RMSNorm):
    """Of queries or keys, with the gain in their dtype, which under autocast is the narrower: torch warns of two."""

    def forward(self, x_BHQK: Tensor) -> Tensor:
        """Shape: (B, H, Q, K), kept."""
        return F.rms_norm(x_BHQK, self.normalized_shape, self.weight.to(x_BHQK.dtype), self.eps)


class _MultiHead(AttentionModule):
    """What both uses share: heads, dropout, norms of queries and keys, the output projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.kv_dim = config.kv_heads * config.head_dim
        self.dropout = config.attention_dropout
        self.out = nn.Linear(config.d_model, config.d_model)
        # On each head, with gains (Henry et al. 2020; Dehghani et al. 2023): scores cannot grow without bound.
        self.q_norm = HeadNorm(config.head_dim, eps=_NORM_EPS) if config.qk_norm else None
        self.k_norm = HeadNorm(config.head_dim, eps=_NORM_EPS) if config.qk_norm else None

    def _queries(self, q_BQD: Tensor) -> Tensor:
        """Shape: (B, Q, D) to (B, H, Q, K)."""
        q_BHQK = self._split(q_BQD)
        return q_BHQK if self.q_norm is None else cast(Tensor, self.q_norm(q_BHQK))

    def _keys(self, k_BSD: Tensor) -> Tensor:
        """Shape: (B, S, G * K) to (B, G, S, K)."""
        k_BGSK = self._split(k_BSD)
        return k_BGSK if self.k_norm is None else cast(Tensor, self.k_norm(k_BGSK))

    def _split(self, x_BQD: Tensor) -> Tensor:
        """(B, Q, heads * K) to (B, heads, Q, K)."""
        batch, queries, _ = x_BQD.shape
        return x_BQD.view(batch, queries, -1, self.head_dim).transpose(1, 2)

    def _mix(
        self,
        q_BHQK: Tensor,
        key_value: KeyValue,
        keep: Tensor | None = None,
        causal: bool = False,
        packing: Packing | None = None,
    ) -> Tensor:
        """Attend, join the heads, project. Returns: (B, Q, D), or (N, D) with `packing`."""
        dropout = self.dropout if self.training else 0.0
        if self.recorded is not None:
            mixed_BHQK, weights_BHQS = attend_plain(q_BHQK, *key_value, keep=keep, causal=causal, dropout=dropout)
            self.recorded.append(weights_BHQS)
        else:
            mixed_BHQK = attend(q_BHQK, *key_value, keep=keep, causal=causal, dropout=dropout)
        mixed_BQD = mixed_BHQK.transpose(1, 2).flatten(2)
        projected: Tensor = self.out(mixed_BQD if packing is None else packing.pack(mixed_BQD))
        return projected


class SelfAttention(_MultiHead):
    """Multi-head attention of a sequence over itself.

    Args:
        causal: a position sees itself and those before, as in a decoder.
    """

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        super().__init__(config)
        self.causal = causal
        self.qkv = nn.Linear(config.d_model, config.d_model + 2 * self.kv_dim)
        self.rotary = config.positions == "rope"
        self.relative: T5Bias | ShawBias | None = None
        if config.positions == "relative":
            self.relative = T5Bias(config.num_heads, causal)
        elif config.positions == "shaw":
            self.relative = ShawBias(config.head_dim)

    def forward(self, x_BQD: Tensor, keep: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        """Shape: (B, Q, D) to (B, Q, D), or with `packing` (N, D) to (N, D). `keep`: bool, or a bias, (B, 1, 1, Q)."""
        q, k, v = self._project(x_BQD, 0, packing)
        if self.relative is None:
            return self._mix(q, (k, v), keep, self.causal, packing)
        length, device = q.shape[2], q.device
        bias = self.relative(q, distances(length, length, device)).to(q.dtype)
        bias = _masked(bias, causal_keep(length, device) if self.causal else keep)
        return self._mix(q, (k, v), bias, packing=packing)

    def step(self, x_BWD: Tensor, cache: LayerCache, bias: Tensor | None) -> Tensor:
        """The newest position of each prefix, over itself and what is cached of its sentence.

        Args:
            bias: (B, 1, W, C), which slots are of the prefix; None if all are.
        Shape: (B, W, D) to (B, W, D).
        """
        q, k, v = self._project(x_BWD, cache.slots.length - 1, at_once=True)
        if self.relative is not None:
            bias = _masked(self.relative(q, cache.slots.distances()).to(q.dtype), bias)
        return self._mix(q, cache.write(k, v), bias)

    def _project(
        self, x_BQD: Tensor, start: int, packing: Packing | None = None, at_once: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of positions from `start` on, or all of that one."""
        qkv = self.qkv(x_BQD)
        sizes = [qkv.shape[-1] - 2 * self.kv_dim, self.kv_dim, self.kv_dim]
        q, k, v = (qkv if packing is None else packing.pad(qkv)).split(sizes, dim=-1)
        q, k, v = self._queries(q), self._keys(k), self._split(v)
        if self.rotary:
            by = turns(start, 1 if at_once else q.shape[2], like_BHQK=q)
            q, k = rotate(q, by), rotate(k, by)
        return q, k, v


class CrossAttention(_MultiHead):
    """Multi-head attention of the target over the encoder's output (`memory`)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.q = nn.Linear(config.d_model, config.d_model)
        self.kv = nn.Linear(config.d_model, 2 * self.kv_dim)

    def project_memory(self, memory_BSD: Tensor, packing: Packing | None = None) -> KeyValue:
        """Keys and values of the memory, (N, D) with `packing`. Shapes: two of (B, G, S, K)."""
        kv = self.kv(memory_BSD)
        k, v = (kv if packing is None else packing.pad(kv)).chunk(2, dim=-1)
        return self._keys(k), self._split(v)

    def forward(self, x_BQD: Tensor, key_value: KeyValue, keep: Tensor | None = None) -> Tensor:
        """Attend over the memory, from Q positions, or from the newest position of Q prefixes.

        Shape: (B, Q, D) to (B, Q, D). `keep`: bool, or a bias, (B, 1, 1, S).
        """
        return self._mix(self._queries(self.q(x_BQD)), key_value, keep)


def _masked(bias: Tensor, keep: Tensor | None) -> Tensor:
    """A bias with a mask, bool or itself a bias, in it."""
    if keep is None:
        return bias
    return bias + (keep if keep.is_floating_point() else as_bias(keep, bias.dtype))


def attention_modules(model: nn.Module, only: str = "") -> dict[str, AttentionModule]:
    """What of a model can tell its weights, by name, the bottom layer first; those whose name ends with `only`."""
    named = ((name, module) for name, module in model.named_modules() if name.endswith(only))
    return {name: module for name, module in named if isinstance(module, AttentionModule)}


@contextmanager
def record_attention(model: nn.Module, only: str = "") -> Iterator[dict[str, Tensor]]:
    """Within the block the model attends by the plain kernel; afterwards the dict maps module names to weights.

    With `only` those modules alone do whose name ends with it.

    Yields a dict that is filled when the block ends: name to (B, H, Q, S), the weights of that module's calls one after
    the other, as if each were of later queries.
    """
    modules = attention_modules(model, only)
    recorded: dict[str, Tensor] = {}
    for module in modules.values():
        module.recorded = []
    try:
        yield recorded
        recorded.update({name: torch.cat(m.recorded, dim=2) for name, m in modules.items() if m.recorded})
    finally:
        for module in modules.values():
            module.recorded = None
