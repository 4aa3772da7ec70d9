"""The loss against a naive formula, and accumulation against one batch; all in float64."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.data.batching import pad
from nmt.training.loss import label_smoothed_nll
from tiny import one_thread, random_bundle

PAD = 0


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def case(seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 7, 13, dtype=torch.float64, generator=rng)
    targets = torch.randint(1, 13, (4, 7), generator=rng)
    targets[0, 3:] = PAD
    targets[2, 6:] = PAD
    return logits, targets


def naive(logits: Tensor, targets: Tensor, smoothing: float) -> float:
    """The sum, over real targets, of the cross-entropy with (1 - e) at the target plus e / V everywhere."""
    total = 0.0
    for row, ids in zip(logits.numpy(), targets.numpy(), strict=True):
        for scores, target in zip(row, ids, strict=True):
            if target != PAD:
                log_probs = scores - np.log(np.exp(scores).sum())
                total -= (1 - smoothing) * log_probs[target] + smoothing * log_probs.mean()
    return float(total)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_naive_formula(seed: int, smoothing: float) -> None:
    logits, targets = case(seed)
    found = float(label_smoothed_nll(logits, targets, PAD, smoothing))
    assert found == pytest.approx(naive(logits, targets, smoothing), rel=1e-12)
    assert found != pytest.approx(naive(logits, targets, smoothing + 0.01), rel=1e-12)  # the control


@pytest.mark.parametrize("seed", range(3))
def test_without_smoothing_it_is_the_negative_log_likelihood(seed: int) -> None:
    logits, targets = case(seed)
    real = targets != PAD
    nll = F.nll_loss(logits[real].log_softmax(-1), targets[real], reduction="sum")
    torch.testing.assert_close(label_smoothed_nll(logits, targets, PAD, 0.0), nll, rtol=1e-12, atol=0.0)
    cross_entropy = F.cross_entropy(logits[real], targets[real], reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(label_smoothed_nll(logits, targets, PAD, 0.1), cross_entropy, rtol=1e-12, atol=0.0)


def test_padding_counts_for_nothing() -> None:
    logits, targets = case(1)
    logits.requires_grad_()
    label_smoothed_nll(logits, targets, PAD, 0.1).backward()
    assert logits.grad is not None
    assert (logits.grad[targets == PAD] == 0).all()
    assert (logits.grad[targets != PAD] != 0).all()
    with torch.no_grad():
        other = logits.clone()
        other[targets == PAD] = 1e3
        assert torch.equal(label_smoothed_nll(other, targets, PAD, 0.1), label_smoothed_nll(logits, targets, PAD, 0.1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    logits, targets = case(2)
    found = label_smoothed_nll(logits.to(dtype), targets, PAD, 0.1)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(naive(logits.to(dtype).double(), targets, 0.1), rel=1e-5)


def test_two_micro_batches_give_the_gradient_of_one_batch() -> None:
    model = random_bundle(dropout=0.0, embedding_dropout=0.0).model.double().train()
    rng = np.random.default_rng(1)
    sources = [rng.integers(4, 40, n).tolist() for n in (3, 9, 5, 7)]
    targets = [rng.integers(4, 40, n).tolist() for n in (8, 2, 6, 4)]

    def gradient(groups: list[list[int]], num_tokens: list[int]) -> Tensor:
        model.zero_grad()
        for group, divisor in zip(groups, num_tokens, strict=True):
            src = torch.from_numpy(pad([sources[i] for i in group], PAD))
            out = torch.from_numpy(pad([targets[i] for i in group], PAD))
            tgt_in = torch.cat([torch.full((len(group), 1), 2), out[:, :-1]], dim=1)
            loss = label_smoothed_nll(model(src, tgt_in, src != PAD), out, PAD, 0.1) / divisor
            loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    whole = gradient([[0, 1, 2, 3]], [20])
    torch.testing.assert_close(gradient([[0, 1], [2, 3]], [20, 20]), whole, rtol=0.0, atol=1e-12)
    mean_of_means = gradient([[0, 1, 2], [3]], [2 * 16, 2 * 4])  # the control: each micro-batch by its own tokens
    assert float((mean_of_means - whole).abs().max()) > 1e-6
