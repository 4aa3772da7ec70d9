"""Label-smoothed cross-entropy, as a sum. Shapes: B batch, S source, T target, V vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.data.batching import Batch, Ids
from nmt.errors import DataError
from nmt.model.transformer import Transformer

AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def label_smoothed_nll(logits_BTV: Tensor, tgt_out_BT: Tensor, pad: int, smoothing: float) -> Tensor:
    """The loss of Szegedy et al. 2016, summed over all targets that are not `pad`: scalar, natural logarithm.

    A sum, so that micro-batches add up; the caller divides by the number of tokens of the whole update.
    """
    logits_NV = logits_BTV.flatten(0, 1)
    return F.cross_entropy(
        logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)),
        tgt_out_BT.flatten(),
        ignore_index=pad,
        label_smoothing=smoothing,
        reduction="sum",
    )


def batch_loss(model: Transformer, batch: Batch, pad: int, smoothing: float, precision: str) -> Tensor:
    """Run the model on a batch, under autocast unless `precision` is fp32. Returns: the summed loss.

    Raises: DataError (an id beyond the vocabulary).
    """
    _refuse_unknown_ids(batch, batch.src, model.src_embedding.num_embeddings)
    _refuse_unknown_ids(batch, batch.tgt_out, model.tgt_embedding.num_embeddings)
    device = next(model.parameters()).device
    src_BS, tgt_in_BT, tgt_out_BT = (
        torch.from_numpy(ids).to(device) for ids in (batch.src, batch.tgt_in, batch.tgt_out)
    )
    src_keep_BS = src_BS != pad if (batch.src == pad).any() else None
    with torch.autocast(device.type, dtype=AUTOCAST[precision], enabled=AUTOCAST[precision] is not None):
        logits_BTV = model(src_BS, tgt_in_BT, src_keep_BS)
    return label_smoothed_nll(logits_BTV, tgt_out_BT, pad, smoothing)


def _refuse_unknown_ids(batch: Batch, ids: Ids, vocab_size: int) -> None:
    """Name the pair, which an IndexError, or a GPU's failed assertion, would not."""
    rows = (ids >= vocab_size).any(axis=1)
    if rows.any():
        raise DataError(
            f"Pair {int(batch.indices[rows][0]):,} of the token cache holds the piece id {int(ids.max()):,}, the "
            f"vocabulary only {vocab_size:,}: the cache was damaged, on disk or in memory, after it was checked at "
            f"the start. Run the same command again: it is checked, and built anew if it is not whole."
        )
