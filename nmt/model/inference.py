"""A model's weights prepared once for translating: packed for the processor, in half precision, or as 8-bit integers.

8-bit products are sums of integers and so exact: they do not depend on how many rows are multiplied together. That is
why a line's translation in `int8` depends on the line alone.
"""

import warnings
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.seq2seq import Seq2Seq

Precision = Literal["fp32", "bf16", "fp16", "int8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}

_ENGINE = "fbgemm"
_MOST_INPUT, _MOST_WEIGHT = 127, 63
_ZERO = 128  # what stands for 0 in an input of unsigned bytes

# Narrower models lose more by 8 bits, and the time for scaling and rounding is what the products gain.
_LEAST_INT8_WIDTH = 256

_LEAST_PACKED = 2**18  # numbers of a weight that is packed; a call costs 45 microseconds more, which must pay

FIXED_ROWS = 64  # of every matrix product, where its result must not depend on how many rows there are


def default_precision(device: torch.device, model: ModelConfig) -> Precision:
    """A fixed table: bf16 on CUDA, int8 on a CPU that has the kernel for models wide enough to profit, else fp32.

    A recurrent model stays in fp32: what it rounds goes into every later step.
    """
    if model.type == "rnn":
        return "fp32"
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "int8" if device.type == "cpu" and model.d_model >= _LEAST_INT8_WIDTH and int8_works() else "fp32"


def int8_works() -> bool:
    """Whether this build of torch multiplies bytes (by FBGEMM, on x86)."""
    return _ENGINE in torch.backends.quantized.supported_engines and hasattr(torch, "quantize_per_channel")


def has_fixed_rows(precision: Precision, deterministic: bool) -> bool:
    """Whether matrix products are to have one number of rows.

    In 8 bits they are exact anyway. In fp32 the number of rows changes the last bits, which changes no translation but
    where it is asked for; in half precision it would change many.
    """
    return precision in _HALF or (deterministic and precision != "int8")


@torch.no_grad()
def prepare(model: Seq2Seq, precision: Precision, fixed_rows: bool = False) -> None:
    """Replace the linear layers of `model`, which can then translate but not be trained.

    Args:
        fixed_rows: every matrix product gets FIXED_ROWS rows, so that a row's result cannot depend on how many there
            are.
    """
    model.requires_grad_(False)
    if precision in _HALF:
        model.to(_HALF[precision])
    packs = next(model.parameters()).device.type == "cpu" and torch._C._has_mkldnn
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                layer: nn.Module = child
                if precision == "int8":
                    layer = Int8Linear(child)
                elif precision == "fp32" and packs and child.weight.numel() >= _LEAST_PACKED:
                    layer = PackedLinear(child)
                setattr(parent, name, FixedRows(layer) if fixed_rows else layer)


class PackedLinear(nn.Module):
    """`nn.Linear` in fp32, with its weight laid out as oneDNN wants it, once instead of at every call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
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
        scale_O = _at_least_tiny(weight.abs().amax(1)) / _MOST_WEIGHT
        self._weight = _pack_bytes(weight, scale_O)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Shape: (..., in) to (..., out), fp32."""
        x_NI = x.flatten(0, -2)
        largest_N1 = torch.maximum(x_NI.amax(1, keepdim=True), -x_NI.amin(1, keepdim=True))
        scale_N1 = _at_least_tiny(largest_N1) / _MOST_INPUT
        scaled_NI = x_NI * scale_N1.reciprocal()
        # Rounds its input to bytes, multiplies, and scales the sums by the weights' scales.
        product_NO = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            scaled_NI, 1.0, _ZERO, self._weight
        )
        y_NO = product_NO.mul_(scale_N1) if self._bias is None else torch.addcmul(self._bias, product_NO, scale_N1)
        return y_NO.view(*x.shape[:-1], self.out_features)


def _at_least_tiny(x: Tensor) -> Tensor:
    return x.clamp_(min=torch.finfo(torch.float32).tiny)


def _pack_bytes(weight_OI: Tensor, scale_O: Tensor) -> object:
    """The weight as bytes, laid out as FBGEMM wants it."""
    engine = torch.backends.quantized.engine
    zeros_O = torch.zeros(len(scale_O), dtype=torch.int64)
    torch.backends.quantized.engine = _ENGINE
    try:
        with warnings.catch_warnings():  # of torch >= 2.13, which will take these types away one day
            warnings.simplefilter("ignore")
            whole_OI = torch.quantize_per_channel(weight_OI, scale_O.double(), zeros_O, 0, torch.qint8)
            return torch.ops.quantized.linear_prepack(whole_OI, None)
    finally:
        torch.backends.quantized.engine = engine


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
