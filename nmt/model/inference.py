"""A model's weights prepared once for translating: packed for the processor, in half precision, or as 8-bit integers.

8-bit products are sums of integers and so exact: they do not depend on how many rows are multiplied together. That is
why a line's translation in `int8` depends on the line alone.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.model.transformer import Transformer

Precision = Literal["fp32", "bf16", "fp16", "int8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}

_MOST_INPUT, _MOST_WEIGHT = 127, 63
_ZERO = 128  # what stands for 0 in an input of unsigned bytes

FIXED_ROWS = 64  # of every matrix product in the deterministic mode


def default_precision(device: torch.device) -> Precision:
    """A fixed table: bf16 on CUDA, int8 on a CPU that has the kernel, else fp32."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "int8" if device.type == "cpu" and int8_works() else "fp32"


def int8_works() -> bool:
    """Whether this build of torch multiplies bytes with its own packed weights (oneDNN, x86)."""
    return bool(torch._C._has_mkldnn and torch.cpu._is_avx2_supported())


@torch.no_grad()
def prepare(model: Transformer, precision: Precision, deterministic: bool = False) -> None:
    """Replace the linear layers of `model`, which can then translate but not be trained.

    Args:
        deterministic: every matrix product gets FIXED_ROWS rows, so that a row's result cannot depend on how many
            there are.
    """
    model.requires_grad_(False)
    if precision in _HALF:
        model.to(_HALF[precision])
    packed = next(model.parameters()).device.type == "cpu" and precision in ("fp32", "int8")
    parents = [
        (parent, name) for parent in model.modules() for name, child in parent.named_children() if is_linear(child)
    ]
    for parent, name in parents:
        layer = getattr(parent, name)
        if packed:
            layer = Int8Linear(layer) if precision == "int8" else PackedLinear(layer)
        setattr(parent, name, FixedRows(layer) if deterministic and precision != "int8" else layer)


def is_linear(module: nn.Module) -> bool:
    """Whether it is a layer that `prepare` replaces."""
    return type(module) is nn.Linear


class PackedLinear(nn.Module):
    """`nn.Linear` in fp32, with its weight laid out as oneDNN wants it, once instead of at every call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (..., in) to (..., out)."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


class Int8Linear(nn.Module):
    """`nn.Linear` on bytes: weights scaled once for each output, inputs for each row as they come.

    Inputs are scaled to -127 … 127 and weights to -63 … 63: processors without VNNI add two products in 16 bits, and
    2 * 255 * 63 still fits. (With 127 they would be cut off, silently.)
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        weight = linear.weight.detach().float()
        scale_O = weight.abs().amax(1).clamp_(min=torch.finfo(torch.float32).tiny) / _MOST_WEIGHT
        whole = (weight / scale_O[:, None]).round().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(whole, None)
        self._scale_O, self._zeros_O = scale_O, torch.zeros(len(scale_O), dtype=torch.int64)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (..., in) to (..., out), fp32."""
        x_NI = x.flatten(0, -2)
        scale_N1 = x_NI.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny) / _MOST_INPUT
        bytes_NI = (x_NI / scale_N1).round_().to(torch.int8).view(torch.uint8).bitwise_xor_(_ZERO)
        product_NO = torch.ops.onednn.qlinear_pointwise(
            bytes_NI,
            1.0,
            _ZERO,
            self._weight,
            self._scale_O,
            self._zeros_O,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        y_NO = product_NO.mul_(scale_N1) if self._bias is None else torch.addcmul(self._bias, product_NO, scale_N1)
        return y_NO.view(*x.shape[:-1], self.out_features)


class FixedRows(nn.Module):
    """A linear layer that is given FIXED_ROWS rows at a time, the last ones filled up with zeros."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self._linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (..., in) to (..., out)."""
        x_NI = x.flatten(0, -2)
        filled_NI = F.pad(x_NI, (0, 0, 0, -len(x_NI) % FIXED_ROWS))
        y_NO = torch.cat([self._linear(rows) for rows in torch.split(filled_NI, FIXED_ROWS)])[: len(x_NI)]
        return y_NO.view(*x.shape[:-1], -1)
