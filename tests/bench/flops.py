"""The floating-point operations of training, counted from the shape of the model; padding counts nothing."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.config import ModelConfig


def training_flops(
    model: ModelConfig,
    vocab_size: int,
    src_lengths: Sequence[int] | NDArray[np.integer],
    tgt_lengths: Sequence[int] | NDArray[np.integer],
) -> float:
    """Of the forward and backward passes over these pairs.

    Six for each matmul parameter that a token passes (two forward, four backward): the embedding look-up is none, the
    output layer is one; source tokens pass the encoder and the keys and values of the cross-attention, target tokens
    the rest. Attention: 4 * d_model for each pair of positions and layer forward, three times that with the backward
    pass; causal attention has half the pairs.

    Args:
        vocab_size: of the target.
        src_lengths, tgt_lengths: real tokens of each sentence, end or begin of sentence included.
    """
    src, tgt = np.asarray(src_lengths, dtype=np.float64), np.asarray(tgt_lengths, dtype=np.float64)
    d, hidden = model.d_model, model.d_ff * (3 if model.activation == "swiglu" else 2)
    feed_forward = d * hidden
    src_parameters = model.num_encoder_layers * (4 * d * d + feed_forward) + model.num_decoder_layers * 2 * d * d
    tgt_parameters = model.num_decoder_layers * (4 * d * d + 2 * d * d + feed_forward) + d * vocab_size
    pairs = model.num_encoder_layers * (src**2).sum()
    pairs += model.num_decoder_layers * ((src * tgt).sum() + (tgt**2).sum() / 2)
    return float(6 * (src_parameters * src.sum() + tgt_parameters * tgt.sum()) + 12 * d * pairs)
