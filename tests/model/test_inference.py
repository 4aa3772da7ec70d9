"""Weights prepared for translating: 8-bit products against whole numbers, packed and fixed rows against `nn.Linear`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nmt.model import inference
from nmt.model.inference import FixedRows, Int8Linear, PackedLinear, int8_works

Figure = Callable[..., None]
needs_int8 = pytest.mark.skipif(not int8_works(), reason="no int8 kernel here")
packs = pytest.mark.skipif(not torch._C._has_mkldnn, reason="no oneDNN here")
ROWS = range(1, 301)


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(inputs)
    return nn.Linear(inputs, outputs, bias).requires_grad_(False)


def whole_sums(layer: nn.Linear, x_NI: Tensor, most_weight: int) -> tuple[Tensor, Tensor]:
    """The sums of products of whole numbers, int64, and what each counts, float64.

    By the definition, but that inputs are scaled by the reciprocal and rounded where bytes are: what is nearly a half
    may go the other way.
    """
    scale_O1 = layer.weight.abs().amax(1, keepdim=True) / most_weight
    scale_N1 = x_NI.abs().amax(1, keepdim=True) / 127
    bytes_NI = (x_NI * scale_N1.reciprocal() + 128).round().long() - 128
    sums_NO = bytes_NI @ (layer.weight * scale_O1.reciprocal()).round().long().T
    return sums_NO, scale_N1.double() * scale_O1.double().T


def sum_errors(layer: nn.Linear, x_NI: Tensor) -> int:
    """Sums that are not the exact ones, the three float32 roundings that follow them aside."""
    sums_NO, unit_NO = whole_sums(layer, x_NI, inference._MOST_WEIGHT)
    off_NO = (Int8Linear(layer)(x_NI).double() / unit_NO - sums_NO).abs()
    return int((off_NO > 4e-7 * sums_NO.abs()).sum())


@needs_int8
def test_int8_sums_are_exact(figure: Figure) -> None:
    wrong = count = 0
    for inputs, outputs in ((1, 1), (7, 5), (64, 96), (512, 512), (2048, 33)):
        for rows in (1, 5, 64):
            x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
            wrong += sum_errors(linear(inputs, outputs, bias=False), x)
            count += rows * outputs
    figure("int8_sums", f"{wrong} of {count} are wrong", "0", wrong == 0)


def extreme() -> tuple[nn.Linear, Tensor]:
    """All pairs of products as large as they can be: 255 * 63 twice, or with every sign."""
    layer = linear(512, 4, bias=False)
    signs = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    layer.weight.copy_(signs.repeat(1, 256))
    return layer, torch.cat([signs.repeat(1, 256), torch.ones(1, 512)])


@needs_int8
def test_int8_is_never_cut_off(figure: Figure) -> None:
    wrong = sum_errors(*extreme())
    figure("int8_saturation", f"{wrong} of 20 extreme sums are wrong", "0", wrong == 0)


@needs_int8
@pytest.mark.skipif(torch.cpu._is_vnni_supported(), reason="VNNI adds in 32 bits")
def test_the_saturation_check_sees_weights_of_127(monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    monkeypatch.setattr(inference, "_MOST_WEIGHT", 127)
    wrong = sum_errors(*extreme())
    figure("int8_saturation_control", f"{wrong} of 20 are wrong with weights up to 127", "> 0", wrong > 0)


@needs_int8
def test_int8_is_near_the_layer_itself() -> None:
    layer, x = linear(64, 96), torch.randn(4, 5, 64)
    off = (Int8Linear(layer)(x) - layer(x)).abs().max()
    assert 0 < off < 0.05 * layer(x).abs().max()
    zeros = Int8Linear(layer)(torch.zeros(2, 64))
    assert torch.equal(zeros, layer.bias.expand(2, -1))


def rows_changed(layer: nn.Module, x_NI: Tensor) -> int:
    """Numbers of rows with which any row's result is another by a bit."""
    whole = layer(x_NI)
    return sum(not torch.equal(layer(x_NI[:rows]), whole[:rows]) for rows in ROWS)


@needs_int8
def test_int8_rows_know_no_other_rows(figure: Figure) -> None:
    changed = rows_changed(Int8Linear(linear(64, 96)), torch.randn(len(ROWS), 64))
    figure("int8_rows_changed", f"{changed} of {len(ROWS)} numbers of rows", "0", changed == 0)


@packs
def test_packed_is_the_layer_itself(figure: Figure) -> None:
    worst = 0.0
    for bias in (True, False):
        layer, x = linear(512, 96, bias), torch.randn(3, 7, 512)
        worst = max(worst, float((PackedLinear(layer)(x) - layer(x)).abs().max()))
    figure("packed_linear_difference", f"{worst:.0e}", "<= 1e-5", worst <= 1e-5)


@packs
def test_fixed_rows_know_no_other_rows(figure: Figure) -> None:
    layer, x = linear(512, 96), torch.randn(len(ROWS), 512)
    changed = [rows_changed(FixedRows(each), x) for each in (layer, PackedLinear(layer))]
    freely = rows_changed(layer, x)
    assert float((FixedRows(layer)(x) - layer(x)).abs().max()) <= 1e-5
    assert FixedRows(layer)(x[:12].view(3, 4, 512)).shape == (3, 4, 96)
    figure(
        "fixed_rows_changed",
        f"{sum(changed)} of {2 * len(ROWS)} numbers of rows; {freely} when not fixed",
        "0; > 0",
        sum(changed) == 0 and freely > 0,
    )
