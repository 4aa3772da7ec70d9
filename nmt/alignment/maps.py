"""Attention weights of a sentence pair, by a forced pass through the model with the plain kernel."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.bundle import Bundle
from nmt.model.attention import record_attention


@torch.inference_mode()
def cross_attention(bundle: Bundle, src_ids: Sequence[int], tgt_ids: Sequence[int]) -> NDArray[np.float64]:
    """What each target token looked at when it was predicted.

    Args:
        src_ids, tgt_ids: pieces of the pair, EOS last.
    Returns: weights (layers, heads, target, source); each row sums to 1; row t is of tgt_ids[t].
    """
    model, bos = bundle.model, bundle.tokenizer.special.bos
    device = next(model.parameters()).device
    with record_attention(model) as weights:
        model(torch.tensor([src_ids], device=device), torch.tensor([[bos, *tgt_ids[:-1]]], device=device))
    layers = [weights[f"decoder.{layer}.cross_attention"][0] for layer in range(len(model.decoder))]
    return torch.stack(layers).cpu().double().numpy()
