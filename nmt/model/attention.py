"""Scaled dot-product attention and its two uses: over oneself, and over the encoder's output.

Two kernels give the same numbers: `attend_fused`, PyTorch's (SDPA, which picks flash where the hardware has it), and
`attend_plain`, matrix products that also return the weights. `attend` takes the faster one by a fixed rule. Boolean
masks are `*_keep`, True = may attend. A query that may attend to nothing gets zeros from both. While decoding, masks
are `*_bias`: numbers made once for all layers (see `as_bias`) that are added to the scores.

Shapes: B batch, Q queries, S keys, T target, D d_model, H heads, K head dim, W prefixes of a sentence (the beam).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.model.dropout import drop
from nmt.model.kv_cache import KeyValue, LayerCache
from nmt.model.packing import Packing


def attend(
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
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
    if _plain_is_faster(q_BHQK, k_BHSK.shape[2], dropout):
        return attend_plain(q_BHQK, k_BHSK, v_BHSK, keep=keep, causal=causal, dropout=dropout)[0]
    return attend_fused(q_BHQK, k_BHSK, v_BHSK, keep=keep, causal=causal, dropout=dropout)


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
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """`attend` by SDPA."""
    return F.scaled_dot_product_attention(q_BHQK, k_BHSK, v_BHSK, attn_mask=keep, dropout_p=dropout, is_causal=causal)


def attend_plain(
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`attend` by matrix products. Returns: output (B, H, Q, K) and weights before dropout (B, H, Q, S)."""
    scale = 1 / math.sqrt(q_BHQK.shape[-1])
    if keep is not None and keep.is_floating_point():
        weights_BHQS = torch.add(keep, q_BHQK @ k_BHSK.transpose(-2, -1), alpha=scale).softmax(-1)
        return weights_BHQS @ v_BHSK, weights_BHQS
    scores_BHQS = (q_BHQK * scale) @ k_BHSK.transpose(-2, -1)  # the smaller of the two scaled
    if causal:
        assert keep is None, "causal goes without keep"
        keep = torch.ones(scores_BHQS.shape[-2:], dtype=torch.bool, device=q_BHQK.device).tril()
    if keep is not None:
        scores_BHQS = scores_BHQS + as_bias(keep, scores_BHQS.dtype)  # which is cheaper than filling
    weights_BHQS = scores_BHQS.softmax(-1)
    if keep is not None and not causal:
        weights_BHQS = weights_BHQS * keep.any(-1, keepdim=True)
    return drop(weights_BHQS, dropout) @ v_BHSK, weights_BHQS


def as_bias(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as numbers to be added to scores: 0, or half of the lowest number.

    Not -inf: half of the lowest number cannot overflow, and a row without any key has a defined softmax and gradient.
    """
    return torch.zeros_like(keep, dtype=dtype).masked_fill_(~keep, torch.finfo(dtype).min / 2)


class _Attention(nn.Module):
    """What both uses share: heads, dropout, the output projection, recording."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.out = nn.Linear(d_model, d_model)
        self.recording = False
        self.weights_BHQS: Tensor | None = None  # of the last call while recording

    def _split(self, x_BQD: Tensor) -> Tensor:
        """(B, Q, D) to (B, H, Q, K)."""
        batch, queries, _ = x_BQD.shape
        return x_BQD.view(batch, queries, self.num_heads, -1).transpose(1, 2)

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
        if self.recording:
            mixed_BHQK, self.weights_BHQS = attend_plain(q_BHQK, *key_value, keep=keep, causal=causal, dropout=dropout)
        else:
            mixed_BHQK = attend(q_BHQK, *key_value, keep=keep, causal=causal, dropout=dropout)
        mixed_BQD = mixed_BHQK.transpose(1, 2).flatten(2)
        projected: Tensor = self.out(mixed_BQD if packing is None else packing.pack(mixed_BQD))
        return projected


class SelfAttention(_Attention):
    """Multi-head attention of a sequence over itself."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(
        self, x_BQD: Tensor, keep: Tensor | None = None, causal: bool = False, packing: Packing | None = None
    ) -> Tensor:
        """Shape: (B, Q, D) to (B, Q, D), or with `packing` (N, D) to (N, D). `keep`: bool, or a bias, (B, 1, 1, Q)."""
        q, k, v = self._project(x_BQD, packing)
        return self._mix(q, (k, v), keep, causal, packing)

    def step(self, x_BWD: Tensor, cache: LayerCache, bias: Tensor | None) -> Tensor:
        """The newest position of each prefix, over itself and what is cached of its sentence.

        Args:
            bias: (B, 1, W, C), which slots are of the prefix; None if all are.
        Shape: (B, W, D) to (B, W, D).
        """
        q, k, v = self._project(x_BWD)
        return self._mix(q, cache.write(k, v), bias)

    def _project(self, x_BQD: Tensor, packing: Packing | None = None) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(x_BQD)
        q, k, v = (qkv if packing is None else packing.pad(qkv)).chunk(3, dim=-1)
        return self._split(q), self._split(k), self._split(v)


class CrossAttention(_Attention):
    """Multi-head attention of the target over the encoder's output (`memory`)."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.q = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(d_model, 2 * d_model)

    def project_memory(self, memory_BSD: Tensor, packing: Packing | None = None) -> KeyValue:
        """Keys and values of the memory, (N, D) with `packing`. Shapes: two of (B, H, S, K)."""
        kv = self.kv(memory_BSD)
        k, v = (kv if packing is None else packing.pad(kv)).chunk(2, dim=-1)
        return self._split(k), self._split(v)

    def forward(self, x_BQD: Tensor, key_value: KeyValue, keep: Tensor | None = None) -> Tensor:
        """Attend over the memory, from Q positions, or from the newest position of Q prefixes.

        Shape: (B, Q, D) to (B, Q, D). `keep`: bool, or a bias, (B, 1, 1, S).
        """
        return self._mix(self._split(self.q(x_BQD)), key_value, keep)


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within the block the model attends by the plain kernel; afterwards the dict maps module names to weights.

    Yields a dict that is filled when the block ends: name to (B, H, Q, S) weights of that module's last call.
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, _Attention)}
    recorded: dict[str, Tensor] = {}
    for module in modules.values():
        module.recording = True
    try:
        yield recorded
        recorded.update({name: m.weights_BHQS for name, m in modules.items() if m.weights_BHQS is not None})
    finally:
        for module in modules.values():
            module.recording, module.weights_BHQS = False, None
