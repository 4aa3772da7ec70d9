"""The output layer and label-smoothed cross-entropy in one, as a sum.

Shapes: B batch, S source, T target, N real target positions, C positions of a chunk, D d_model, V vocabulary.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.data.batching import Batch, Ids
from nmt.errors import DataError
from nmt.model.seq2seq import Seq2Seq

AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_CHUNK_LOGITS = {"cpu": 1 << 22}  # of a chunk, 16 MB; between a half and twice as many made little difference
_CHUNK_LOGITS_ELSEWHERE = 1 << 27  # 512 MB in fp32
_ROWS = 64  # chunks have a multiple of it, if they have as many: for a new number oneDNN prepares itself for 30 ms


def label_smoothed_nll(
    states_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    smoothing: float,
    dtype: torch.dtype | None = None,
    bias_V: Tensor | None = None,
) -> Tensor:
    """The loss of Szegedy et al. 2016 for logits = states weight^T + bias, summed over the targets: a scalar, in nats.

    The logits exist for a chunk of positions at a time, and become the gradient at once, in the forward pass (as in
    Liger's fused linear cross-entropy). A sum, so that micro-batches add up; the caller divides by the number of
    tokens of the whole update.

    Args:
        dtype: of the matrix products; default: that of the states. The softmax is computed in fp32 at least.
    """
    dtype = dtype or states_ND.dtype
    loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        states_ND, weight_VD, targets_N, smoothing, dtype, bias_V
    )
    return loss


class _ChunkedLoss(torch.autograd.Function):
    """With z = W h + b, p = softmax(z), target t and e the smoothing: loss = -log p_t + e (z_t - mean(z)).

    dloss/dz = p - (1 - e) onehot(t) - e/V. The last term is the same for all of the vocabulary, so it is left out of
    the chunks, and what it adds to the gradients (and the mean to the loss) is computed once for all positions.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        states_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        bias_V: Tensor | None,
    ) -> Tensor:
        learning = any(ctx.needs_input_grad)
        exact = torch.promote_types(states_ND.dtype, torch.float32)
        num_targets, vocab_size = len(targets_N), len(weight_VD)
        rows = _rows_of_a_chunk(states_ND.device.type, vocab_size)
        filling = -num_targets % min(rows, _ROWS)  # states of zeros, whose gradients nobody asks for
        h_ND, w_VD = F.pad(states_ND.to(dtype), (0, 0, 0, filling)), weight_VD.to(dtype)
        targets_N = F.pad(targets_N, (0, filling))
        mean_w_D, sum_h_D = weight_VD.to(exact).mean(0), states_ND.to(exact).sum(0)
        loss = -smoothing * (sum_h_D @ mean_w_D)
        bias_exact_V = None if bias_V is None else bias_V.to(exact)
        grad_b_V = None if bias_exact_V is None else torch.zeros_like(bias_exact_V)
        if bias_exact_V is not None:
            loss = loss - smoothing * num_targets * bias_exact_V.mean()
        grad_h_ND = torch.empty_like(h_ND, dtype=states_ND.dtype) if learning else None
        grad_w_VD = torch.zeros_like(weight_VD) if learning else None
        for start in range(0, num_targets, rows):
            h_CD, target_C1 = h_ND[start : start + rows], targets_N[start : start + rows, None]
            real = min(rows, num_targets - start)
            logits_CV = (h_CD @ w_VD.t()).to(exact)
            if bias_exact_V is not None:
                logits_CV += bias_exact_V
            target_logit_C1, log_p_CV = logits_CV.gather(1, target_C1), logits_CV.log_softmax(1)
            del logits_CV
            loss = loss + (smoothing * target_logit_C1 - log_p_CV.gather(1, target_C1))[:real].sum()
            if grad_h_ND is None or grad_w_VD is None:
                continue
            p_CV = log_p_CV.exp_()
            p_CV.scatter_add_(1, target_C1, torch.full_like(target_logit_C1, smoothing - 1))
            if grad_b_V is not None:
                grad_b_V += p_CV[:real].sum(0)
            grad_CV = p_CV.to(dtype)
            grad_h_ND[start : start + rows] = grad_CV @ w_VD
            if dtype == grad_w_VD.dtype:
                grad_w_VD.addmm_(grad_CV.t(), h_CD)
            else:
                grad_w_VD += grad_CV.t() @ h_CD
        if grad_h_ND is not None and grad_w_VD is not None:
            grad_h_ND = grad_h_ND[:num_targets]
            grad_h_ND -= smoothing * mean_w_D
            grad_w_VD -= smoothing / vocab_size * sum_h_D
            if bias_V is not None and grad_b_V is not None:
                grad_b_V = (grad_b_V - smoothing / vocab_size * num_targets).to(bias_V.dtype)
            ctx.save_for_backward(grad_h_ND, grad_w_VD, grad_b_V)
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        grad_h_ND, grad_w_VD, grad_b_V = ctx.saved_tensors
        grad_bias_V = None if grad_b_V is None else grad_b_V * grad
        return grad_h_ND * grad, grad_w_VD * grad, None, None, None, grad_bias_V


def _rows_of_a_chunk(device_type: str, vocab_size: int) -> int:
    rows = max(1, _CHUNK_LOGITS.get(device_type, _CHUNK_LOGITS_ELSEWHERE) // vocab_size)
    return rows if rows < _ROWS else rows - rows % _ROWS


def batch_loss(model: Seq2Seq, batch: Batch, pad: int, smoothing: float, precision: str) -> Tensor:
    """Run the model on a batch, under autocast unless `precision` is fp32. Returns: the summed loss.

    Raises: DataError (an id beyond the vocabulary).
    """
    _refuse_unknown_ids(batch, batch.src, model.src_embedding.num_embeddings)
    _refuse_unknown_ids(batch, batch.tgt_out, model.tgt_embedding.num_embeddings)
    device = next(model.parameters()).device
    tgt_out = batch.tgt_out.ravel()
    real = np.flatnonzero(tgt_out != pad)
    src_BS, tgt_in_BT, targets_N = (_on(device, ids) for ids in (batch.src, batch.tgt_in, tgt_out[real]))
    src_keep_BS = src_BS != pad if (batch.src == pad).any() else None
    dtype = AUTOCAST[precision]
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        states_ND = model.states(src_BS, tgt_in_BT, src_keep_BS).flatten(0, 1)
    if len(real) < len(tgt_out):  # padding does not go through the output layer, half of a small model's work
        states_ND = states_ND.index_select(0, _on(device, real))
    return label_smoothed_nll(states_ND, model.output.weight, targets_N, smoothing, dtype, model.output.bias)


def _on(device: torch.device, ids: Ids) -> Tensor:
    """The ids there. A GPU copies them by itself, from page-locked memory, while the host goes on."""
    tensor = torch.from_numpy(ids)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _refuse_unknown_ids(batch: Batch, ids: Ids, vocab_size: int) -> None:
    """Name the pair, which an IndexError, or a GPU's failed assertion, would not."""
    rows = (ids >= vocab_size).any(axis=1)
    if rows.any():
        raise DataError(
            f"Pair {int(batch.indices[rows][0]):,} of the token cache holds the piece id {int(ids.max()):,}, the "
            f"vocabulary only {vocab_size:,}: the cache was damaged, on disk or in memory, after it was checked at "
            f"the start. Run the same command again: it is checked, and built anew if it is not whole."
        )
