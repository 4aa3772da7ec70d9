"""The CPU's dropout from random words: rate, independence, mean, gradient, repeatability."""

import math

import pytest
import torch
from torch import Tensor

from nmt.model.dropout import Dropout

LEVELS = 1 << 16


def dropped(rate: float, count: int, seed: int = 0) -> Tensor:
    """Which of `count` ones are dropped."""
    torch.manual_seed(seed)
    return Dropout(rate).train()(torch.ones(count)) == 0.0


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_the_rate_and_the_mean_are_kept(rate: float) -> None:
    count = 1 << 20
    torch.manual_seed(int(rate * 1000))
    exact = round(rate * LEVELS) / LEVELS
    out = Dropout(rate).train()(torch.ones(count))
    sigma = math.sqrt(exact * (1 - exact) / count)
    assert abs(float((out == 0).double().mean()) - exact) < 4 * sigma
    assert abs(float(out.double().mean()) - 1.0) < 4 * sigma / (1 - exact)
    assert set(out.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - exact)))}


def test_the_rate_test_would_see_a_wrong_rate() -> None:
    count, sigma = 1 << 20, math.sqrt(0.3 * 0.7 / (1 << 20))
    assert abs(float(dropped(0.31, count).double().mean()) - 0.3) > 4 * sigma


def test_neighbours_are_independent() -> None:
    words = 1 << 18
    of_word = dropped(0.3, 4 * words).view(words, 4).double()  # the four elements that share a 64-bit word
    correlation = torch.corrcoef(of_word.T)
    off_diagonal = correlation[~torch.eye(4, dtype=torch.bool)]
    assert float(off_diagonal.abs().max()) < 4 / math.sqrt(words)
    shifted = torch.corrcoef(torch.stack([of_word[:-1, 3], of_word[1:, 0]]))[0, 1]  # and those of two words
    assert abs(float(shifted)) < 4 / math.sqrt(words)
    dependent = torch.corrcoef(torch.stack([of_word[:, 0], of_word[:, 0] * of_word[:, 1]]))[0, 1]
    assert float(dependent) > 0.1  # the control


def test_not_training_and_rate_zero_are_the_identity() -> None:
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert Dropout(0.5).train()(x) is not x


def test_the_gradient_is_scaled_as_the_output() -> None:
    torch.manual_seed(3)
    x = (torch.rand(7, 11, dtype=torch.float64) + 0.5).requires_grad_()
    out = Dropout(0.4).train()(x)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (out / x).detach(), rtol=1e-14, atol=0.0)
    assert (x.grad == 0).any() and (x.grad > 1).any()


def test_reseeding_repeats_and_going_on_does_not() -> None:
    first, again, other = dropped(0.3, 999, seed=5), dropped(0.3, 999, seed=5), dropped(0.3, 999, seed=6)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    following = Dropout(0.3).train()(torch.ones(999)) == 0
    assert not torch.equal(following, other)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2,), (3,), (5,), (7,), (3, 5, 7), (2, 0, 3)])
def test_any_size(shape: tuple[int, ...]) -> None:
    out = Dropout(0.5).train()(torch.ones(shape))
    assert out.shape == shape
    assert ((out == 0) | (out == 2)).all()


def test_a_transposed_input_keeps_its_shape() -> None:
    x = torch.arange(1.0, 13.0).view(3, 4).T
    out = Dropout(0.5).train()(x)
    assert ((out == 0) | (out == 2 * x)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_kept(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    out = Dropout(0.25).train()(torch.ones(100_000, dtype=dtype))
    assert out.dtype == dtype
    assert abs(float((out == 0).double().mean()) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 100_000)
    assert float(out.max()) == pytest.approx(4 / 3, rel=4e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_are_masked_exactly_as_by_a_product(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = torch.randn(5, 33, 7).to(dtype).transpose(0, 2).requires_grad_()
    grad = torch.randn(7, 33, 5).to(dtype)
    out = Dropout(0.3).train()(x)
    out.backward(grad)
    kept, scale = out != 0, LEVELS / (LEVELS - round(0.3 * LEVELS))
    assert 0.6 < float(kept.double().mean()) < 0.8
    assert torch.equal(out, torch.where(kept, x * scale, 0.0))  # the scale is no rounded one
    assert torch.equal(x.grad, torch.where(kept, grad * scale, 0.0))


@pytest.mark.parametrize("rate", [1e-9, 0.999999, math.nextafter(1.0, 0.0)])
def test_rates_at_the_ends_stay_finite(rate: float) -> None:
    out = Dropout(rate).train()(torch.ones(10_000))
    assert torch.isfinite(out).all()
