"""Label-smoothed cross-entropy, as a sum. Shapes: B batch, T target, V vocabulary."""

import torch.nn.functional as F
from torch import Tensor


def label_smoothed_nll(logits_BTV: Tensor, tgt_out_BT: Tensor, pad: int, smoothing: float) -> Tensor:
    """The loss of Szegedy et al. 2016, summed over all targets that are not `pad`: scalar, natural logarithm.

    A sum, so that micro-batches and ranks add up; the caller divides by the number of tokens of the whole update.
    """
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).float() if logits_BTV.dtype.itemsize < 4 else logits_BTV.flatten(0, 1),
        tgt_out_BT.flatten(),
        ignore_index=pad,
        label_smoothing=smoothing,
        reduction="sum",
    )
