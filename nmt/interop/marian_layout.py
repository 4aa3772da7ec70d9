"""How MarianMT of Hugging Face transformers writes down the post-norm Transformer that ours is, too.

- Positions. There a position is [all sines | all cosines], here sine and cosine alternate. Embeddings, norms and the
  sides of matrices that face the residual stream are permuted to match, which changes no number that comes out.
- Projections of queries, keys and values are three matrices there; here they are one.
- Piece ids are those of vocab.json; the SentencePiece models are numbered anew (`nmt.interop.renumber`).
- There is no BOS. The decoder starts with `decoder_start_token_id`, which is <pad>: it is BOS here.
"""

from typing import Any

import torch
from torch import Tensor

# Ours to theirs. Several names: rows of ours, block by block.
_MODULES = {
    "self_attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.out": ("self_attn.out_proj",),
    "self_attention_norm": ("self_attn_layer_norm",),
    "cross_attention.q": ("encoder_attn.q_proj",),
    "cross_attention.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.out": ("encoder_attn.out_proj",),
    "cross_attention_norm": ("encoder_attn_layer_norm",),
    "feed_forward.up": ("fc1",),
    "feed_forward.down": ("fc2",),
    "feed_forward_norm": ("final_layer_norm",),
}
EMBEDDING, BIAS = "model.shared.weight", "final_logits_bias"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
# What a config may say, where another value (or, for the first, none) is another architecture.
REQUIRED: dict[str, tuple[Any, Any]] = {  # key: the value needed, the value meant by silence
    "model_type": ("marian", None),
    "scale_embedding": (True, False),
    "static_position_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
    "add_bias_logits": (False, False),
    "extra_pos_embeddings": (0, 0),
    "share_encoder_decoder_embeddings": (True, True),
    "tie_word_embeddings": (True, True),
}


def their_names(name: str) -> tuple[str, ...]:
    """Theirs of one of our tensors."""
    if name == "src_embedding.weight":
        return (EMBEDDING,)
    if name == "output.bias":
        return (BIAS,)
    stack, layer, rest = name.split(".", 2)
    module, kind = rest.rsplit(".", 1)
    return tuple(f"model.{stack}.layers.{layer}.{each}.{kind}" for each in _MODULES[module])


def residual_order(d_model: int) -> Tensor:
    """Which of their residual dimensions each of ours is: sine 0, cosine 0, sine 1, … Shape: (D,)."""
    return torch.arange(d_model).view(2, -1).t().flatten()


def permuted(name: str, tensor: Tensor, order_D: Tensor) -> Tensor:
    """One of our tensors with its residual dimensions in another order."""
    module, kind = name.rsplit(".", 1)
    if module.endswith(("norm", ".out", ".down")):  # what a layer adds to the residual stream
        return tensor[order_D]
    if kind == "weight":  # embeddings, and what reads the residual stream
        return tensor[:, order_D]
    return tensor
