"""F3: a source row of padding alone gives no NaN, whichever SDPA backend of this CPU computes it.

`collate` never makes such a row; `tests/model/test_attention.py` asks the same of the kernels by themselves.
"""

from collections.abc import Callable

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import tiny
from nmt.model import attention


def non_finite(backend: SDPBackend, dtype: torch.dtype) -> int:
    """How many numbers of logits and gradients are not finite; the middle row has no source token."""
    model = tiny.random_bundle().model.to(dtype)
    src, tgt = torch.randint(4, 50, (3, 7)), torch.randint(4, 50, (3, 5))
    keep = torch.ones(3, 7, dtype=torch.bool)
    keep[0, 4:], keep[1] = False, False
    with sdpa_kernel(backend):  # which fails if it is not there
        logits = model(src, tgt, keep)
        logits.float().logsumexp(-1).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return sum(int((~tensor.isfinite()).sum()) for tensor in (logits, *gradients) if tensor is not None)


def test_f3_masked_rows(figure: Callable[..., None]) -> None:
    backends, dtypes = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION), (torch.float32, torch.float64, torch.bfloat16)
    found = [non_finite(backend, dtype) for backend in backends for dtype in dtypes]
    figure("f3_masked_rows", f"{sum(found)} non-finite numbers in {len(found)} settings", "0", not any(found))


def test_f3_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax over scores that are all -inf, as older kernels do it."""

    def naive(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, keep: torch.Tensor | None, **_: object
    ) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1)
        return (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1) @ v

    monkeypatch.setattr(attention, "attend", naive)
    assert non_finite(SDPBackend.MATH, torch.float32) > 0
