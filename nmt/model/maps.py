"""What every attention of a model looked at in a forced pass: one whose target is given.

Shapes: B batch, S source, T target, H heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nmt.model.attention import attention_modules, record_attention
from nmt.model.seq2seq import Seq2Seq

_CROSS = "cross_attention"  # how the names of such modules end
_ACTIVATIONS = 8  # a position, times d_model: what one layer holds at once, about


class AttentionMaps(NamedTuple):
    """Weights by layer, the lowest first; each row sums to 1. A kind of attention that the model has not is empty.

    Attributes:
        encoder: each (B, H, S, S), a source token over the source.
        decoder: each (B, H, T, T), a target position over those up to itself.
        cross: each (B, H, T, S), a target position over the source: row t is of what was predicted at t.
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


@torch.inference_mode()
def attention_maps(
    model: Seq2Seq, src_BS: Tensor, tgt_in_BT: Tensor, src_keep_BS: Tensor | None = None
) -> AttentionMaps:
    """The maps of a pass through an encoder-decoder model, as `states` takes its arguments."""
    with record_attention(model) as weights:
        model.states(src_BS, tgt_in_BT, src_keep_BS)
    kinds = {"encoder": "self_attention", "decoder": "self_attention", "": _CROSS}
    found = (
        [each for name, each in weights.items() if name.startswith(part) and name.endswith(kind)]
        for part, kind in kinds.items()
    )
    return AttentionMaps(*found)


@torch.inference_mode()
def cross_attention(
    model: Seq2Seq, src_BS: Tensor, tgt_in_BT: Tensor, src_keep_BS: Tensor | None = None
) -> list[Tensor]:
    """`attention_maps(...).cross` alone: no other weights are kept, which of long sources are many more."""
    with record_attention(model, only=_CROSS) as weights:
        model.states(src_BS, tgt_in_BT, src_keep_BS)
    return list(weights.values())


def numbers_of_cross_attention(model: Seq2Seq, src_length: int, tgt_length: int) -> int:
    """How many numbers `cross_attention` has in memory at once for a sentence pair, about, its result included."""
    heads = [module.num_heads for module in attention_modules(model, _CROSS).values()]
    one_layer = max(heads) * max(src_length, tgt_length) ** 2  # of self-attention, where the kernel keeps its scores
    activations = _ACTIVATIONS * model.src_embedding.embedding_dim * (src_length + tgt_length)
    return sum(heads) * src_length * tgt_length + one_layer + activations
