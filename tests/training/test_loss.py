"""The loss against a naive formula, and accumulation against one batch; all in float64."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.data.batching import Batch, pad
from nmt.training import loss as loss_module
from nmt.training.loss import batch_loss, label_smoothed_nll
from tiny import one_thread, random_bundle

PAD = 0


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


VOCABULARY = 13


def case(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """States (9, 5), the output layer's weight (13, 5) and targets (9,)."""
    rng = torch.Generator().manual_seed(seed)
    states, weight = (torch.randn(rows, 5, dtype=torch.float64, generator=rng) for rows in (9, VOCABULARY))
    return states, weight, torch.randint(0, VOCABULARY, (9,), generator=rng)


def naive(logits: Tensor, targets: Tensor, smoothing: float) -> float:
    """The sum, over targets, of the cross-entropy with (1 - e) at the target plus e / V everywhere."""
    total = 0.0
    for scores, target in zip(logits.numpy(), targets.numpy(), strict=True):
        log_probs = scores - np.log(np.exp(scores).sum())
        total -= (1 - smoothing) * log_probs[target] + smoothing * log_probs.mean()
    return float(total)


def plain(states: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(states @ weight.T, targets, reduction="sum", label_smoothing=smoothing)


def loss_and_gradients(
    loss: Callable[..., Tensor], states: Tensor, weight: Tensor, targets: Tensor, smoothing: float, **options: object
) -> list[Tensor]:
    leaves = [states.clone().requires_grad_(), weight.clone().requires_grad_()]
    total = loss(*leaves, targets, smoothing, **options)
    (0.37 * total).backward()  # as the caller divides
    return [total.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_naive_formula(seed: int, smoothing: float) -> None:
    states, weight, targets = case(seed)
    found = float(label_smoothed_nll(states, weight, targets, smoothing))
    logits = states @ weight.T
    assert found == pytest.approx(naive(logits, targets, smoothing), rel=1e-12)
    assert found != pytest.approx(naive(logits, targets, smoothing + 0.01), rel=1e-12)  # the control


def test_chunks_equal_the_plain_loss_and_its_gradients(
    monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    worst = 0.0
    for seed, rows, smoothing in itertools.product(range(5), (1, 2, 4, 8, 9, 100), (0.0, 0.1, 0.7)):
        monkeypatch.setitem(loss_module._CHUNK_LOGITS, "cpu", rows * VOCABULARY)
        chunked, whole = (loss_and_gradients(f, *case(seed), smoothing) for f in (label_smoothed_nll, plain))
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(chunked, whole, strict=True)))
    figure("chunked_loss_difference", f"{worst:.1e}", "<= 1e-10, fp64, loss and gradients", worst <= 1e-10)
    other = loss_and_gradients(plain, *case(4), 0.701)  # the control
    assert float((other[2] - whole[2]).abs().max()) > 1e-5


def test_logits_of_any_size_stay_finite() -> None:
    states, weight, targets = case(3)
    huge = loss_and_gradients(label_smoothed_nll, 1e4 * states, weight, targets, 0.1)
    for found, expected in zip(huge, loss_and_gradients(plain, 1e4 * states, weight, targets, 0.1), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_chunks_have_few_sizes_and_little_memory() -> None:
    for vocab_size in (2, 4000, 10_000, 60_000):
        rows = loss_module._rows_of_a_chunk("cpu", vocab_size)
        assert rows % loss_module._ROWS == 0 < rows
        assert rows * vocab_size <= loss_module._CHUNK_LOGITS["cpu"]
    assert loss_module._rows_of_a_chunk("cpu", 1_000_000) == 4  # a vocabulary of this size keeps the limit
    assert loss_module._rows_of_a_chunk("cpu", 1 << 30) == 1


def test_nothing_is_kept_where_no_gradient_is_wanted() -> None:
    states, weight, targets = case(2)
    with torch.inference_mode():
        assert not label_smoothed_nll(states, weight, targets, 0.1).requires_grad
    assert label_smoothed_nll(states[:0], weight, targets[:0], 0.1) == 0.0


def test_the_bias_of_the_output_layer_counts(monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]) -> None:
    worst = 0.0
    for rows, smoothing in itertools.product((1, 4, 100), (0.0, 0.1)):
        monkeypatch.setitem(loss_module._CHUNK_LOGITS, "cpu", rows * VOCABULARY)
        states, weight, targets = case(3)
        results = []
        for chunked in (True, False):
            leaves = [t.clone().requires_grad_() for t in (states, weight, torch.linspace(-2, 3, VOCABULARY).double())]
            if chunked:
                loss = label_smoothed_nll(leaves[0], leaves[1], targets, smoothing, bias_V=leaves[2])
            else:
                logits = leaves[0] @ leaves[1].T + leaves[2]
                loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
            results.append([loss.detach(), *torch.autograd.grad(0.37 * loss, leaves)])
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(*results, strict=True)))
        assert (
            float((results[0][0] - label_smoothed_nll(states, weight, targets, smoothing)).abs()) > 0.1
        )  # the control
    figure("chunked_loss_bias_difference", f"{worst:.1e}", "<= 1e-10, fp64, loss and gradients", worst <= 1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """Products in half precision, from weights and to gradients in fp32."""
    states, weight, targets = (t.float() if t.is_floating_point() else t for t in case(2))
    found = loss_and_gradients(label_smoothed_nll, states, weight, targets, 0.1, dtype=dtype)
    assert {tensor.dtype for tensor in found} == {torch.float32}
    for half, full in zip(found, loss_and_gradients(plain, states, weight, targets, 0.1), strict=True):
        torch.testing.assert_close(half, full, rtol=3e-2, atol=3e-2)


def test_padding_counts_for_nothing() -> None:
    bundle = random_bundle(dropout=0.0, embedding_dropout=0.0)
    model = bundle.model.double().train()
    rows = [[5, 6, 7, 3], [8, 3], [9, 10, 3]]

    def gradients(width: int) -> Tensor:
        model.zero_grad()
        src, out = (np.full((3, width), PAD) for _ in range(2))
        for place, row in enumerate(rows):
            src[place, : len(row)] = out[place, : len(row)] = row
        tgt_in = np.concatenate([np.full((3, 1), 2), out[:, :-1]], axis=1)
        loss = batch_loss(model, Batch(src, tgt_in, out, 9, np.arange(3)), PAD, 0.1, "fp32")
        loss.backward()
        return torch.cat([loss.detach()[None], *(p.grad.flatten() for p in model.parameters() if p.grad is not None)])

    narrow = gradients(4)
    torch.testing.assert_close(gradients(7), narrow, rtol=0.0, atol=1e-12)
    rows[1] = [8, 11, 3]  # the control
    assert float((gradients(7) - narrow).abs().max()) > 1e-6


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
            states = model.states(src, tgt_in, src != PAD)[out != PAD]
            loss = label_smoothed_nll(states, model.output.weight, out[out != PAD], 0.1) / divisor
            loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    whole = gradient([[0, 1, 2, 3]], [20])
    torch.testing.assert_close(gradient([[0, 1], [2, 3]], [20, 20]), whole, rtol=0.0, atol=1e-12)
    mean_of_means = gradient([[0, 1, 2], [3]], [2 * 16, 2 * 4])  # the control: each micro-batch by its own tokens
    assert float((mean_of_means - whole).abs().max()) > 1e-6
