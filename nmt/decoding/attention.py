"""What each token of given translations looks at in the source: cross-attention of a forced pass, in batches."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.data.batching import pad
from nmt.model.maps import attention_maps
from nmt.model.seq2seq import Seq2Seq
from nmt.text.tokenizer import SpecialIds

MOST_WEIGHTS = 2**19  # a head, in a batch


@torch.inference_mode()
def forced_attention(
    models: Sequence[Seq2Seq], special: SpecialIds, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[NDArray[np.float32] | None]:
    """Attention weights for word alignment, one array a pair.

    The mean of the heads in the upper half of the layers, when the token was predicted: on the toy corpus that agrees
    with 96 % of the gold alignments, all layers with 91 %, the steps at which the token is read with 10 %.

    Args:
        pairs: source and target ids, EOS last.
    Returns: (target tokens, source tokens), EOS left out; None for a pair too long to be looked at, with more than
        MOST_WEIGHTS.
    """
    found: list[NDArray[np.float32] | None] = [None] * len(pairs)
    for batch in _batches(pairs):
        device = next(models[0].parameters()).device
        src_BS = torch.from_numpy(pad([pairs[place][0] for place in batch], special.pad)).to(device)
        tgt_in = [[special.bos, *pairs[place][1][:-1]] for place in batch]
        tgt_in_BT = torch.from_numpy(pad(tgt_in, special.pad)).to(device)
        lengths_B = torch.tensor([len(pairs[place][0]) for place in batch], device=device)
        keep_BS = torch.arange(src_BS.shape[1], device=device) < lengths_B[:, None]
        weights_BTS = torch.stack([_of_model(model, src_BS, tgt_in_BT, keep_BS) for model in models]).mean(0)
        for row, place in enumerate(batch):
            src, tgt = pairs[place]
            found[place] = weights_BTS[row, : len(tgt) - 1, : len(src) - 1].cpu().numpy()
    return found


def _of_model(model: Seq2Seq, src_BS: torch.Tensor, tgt_in_BT: torch.Tensor, keep_BS: torch.Tensor) -> torch.Tensor:
    """Mean of the heads in the upper half of the layers. Shape: (B, T, S)."""
    layers = attention_maps(model, src_BS, tgt_in_BT, keep_BS).cross
    upper = layers[len(layers) // 2 :]
    return torch.stack([layer.float().mean(1) for layer in upper]).mean(0)


def _batches(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Iterator[list[int]]:
    """Pairs of similar length, by their places, such that none of them is longer than MOST_WEIGHTS allow."""
    batch: list[int] = []
    longest_src = longest_tgt = 0
    for place in sorted(range(len(pairs)), key=lambda place: (len(pairs[place][0]), place)):
        src, tgt = map(len, pairs[place])
        if src * tgt > MOST_WEIGHTS:
            continue
        width = max(longest_src, src), max(longest_tgt, tgt)
        if batch and (len(batch) + 1) * width[0] * width[1] > MOST_WEIGHTS:
            yield batch
            batch, width = [], (src, tgt)
        batch.append(place)
        longest_src, longest_tgt = width
    if batch:
        yield batch
