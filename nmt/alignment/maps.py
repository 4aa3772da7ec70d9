"""Attention weights of a sentence pair, by a forced pass through the model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.bundle import Bundle
from nmt.errors import DataError
from nmt.model.maps import attention_maps


class PairMaps(NamedTuple):
    """Weights (layers, heads, queries, keys), EOS last on both sides; each row sums to 1. None: the model has no such.

    Attributes:
        encoder: of source tokens over the source.
        decoder: of target tokens over the target, shifted: query t, which predicted tgt_ids[t], and key t are the
            token before it (at first BOS).
        cross: of target tokens over the source: row t is what was looked at when tgt_ids[t] was predicted.
    """

    encoder: NDArray[np.float64] | None
    decoder: NDArray[np.float64] | None
    cross: NDArray[np.float64]


def pair_maps(bundle: Bundle, src_ids: Sequence[int], tgt_ids: Sequence[int]) -> PairMaps:
    """What was looked at while the pair was force-decoded.

    Args:
        src_ids, tgt_ids: its pieces, EOS last.
    Raises: DataError, if they are more than the positions that the model has learned.
    """
    _refuse_too_long(bundle, max(len(src_ids), len(tgt_ids)))
    bos, device = bundle.tokenizer.special.bos, next(bundle.model.parameters()).device
    src_BS = torch.tensor([src_ids], device=device)
    maps = attention_maps(bundle.model, src_BS, torch.tensor([[bos, *tgt_ids[:-1]]], device=device))
    encoder, decoder, cross = (torch.cat(layers).cpu().double().numpy() if layers else None for layers in maps)
    assert cross is not None, "every model has cross-attention"
    return PairMaps(encoder, decoder, cross)


def _refuse_too_long(bundle: Bundle, pieces: int) -> None:
    most = bundle.model.max_positions
    if most is not None and pieces > most:
        raise DataError(f"A side of the pair has {pieces:,} pieces, but this model has learned {most:,} positions.")
