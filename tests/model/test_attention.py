"""Both attention kernels against softmax written out, key by key."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.model import attention
from nmt.model.attention import attend, attend_fused, attend_plain, record_attention
from nmt.model.transformer import Transformer

Kernel = Callable[..., Tensor]


def plain_output(*tensors: Tensor, keep: Tensor | None = None, causal: bool = False) -> Tensor:
    return attend_plain(*tensors, keep=keep, causal=causal)[0]


def written_out(q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None, causal: bool = False) -> Tensor:
    """exp(q·k / sqrt(K)) / sum of the same, over the keys that each query may see; zeros if it may see none."""
    rows = []
    for b, h, t in np.ndindex(*q.shape[:3]):
        seen = [
            s
            for s in range(k.shape[2])
            if (not causal or s <= t) and (keep is None or bool(keep.expand(*q.shape[:3], k.shape[2])[b, h, t, s]))
        ]
        exps = [torch.exp((q[b, h, t] * k[b, h, s]).sum() / math.sqrt(q.shape[3])) for s in seen]
        rows.append(sum((e * v[b, h, s] for e, s in zip(exps, seen, strict=True)), 0 * q[b, h, t]) / (sum(exps) or 1))
    return torch.stack(rows).view(*q.shape)


def random_case(rng: np.random.Generator) -> tuple[list[Tensor], Tensor, dict[str, Tensor | bool]]:
    """q, k, v; the gradient that comes in; the mask: none, causal, padding or one for each query (with empty rows)."""
    batch, heads, queries, keys, head_dim = (int(rng.integers(1, high)) for high in (4, 4, 5, 6, 9))
    kind = rng.choice(["none", "causal", "padding", "each"])
    mask: dict[str, Tensor | bool] = {}
    if kind == "causal":
        keys, mask = queries, {"causal": True}
    elif kind == "padding":
        mask = {"keep": torch.from_numpy(rng.random((batch, 1, 1, keys)) < 0.6)}
    elif kind == "each":
        mask = {"keep": torch.from_numpy(rng.random((batch, heads, queries, keys)) < 0.5)}
    shapes = [(batch, heads, length, head_dim) for length in (queries, keys, keys, queries)]
    *tensors, incoming = (torch.from_numpy(rng.normal(size=shape)) for shape in shapes)
    return tensors, incoming, mask


def output_and_gradients(
    kernel: Kernel, tensors: list[Tensor], incoming: Tensor, **mask: Tensor | bool
) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output = kernel(*leaves, **mask)
    gradients = torch.autograd.grad(output, leaves, incoming, allow_unused=True, materialize_grads=True)
    return [output.detach(), *gradients]


def max_difference(kernel: Kernel, cases: int) -> float:
    """From the written-out formula, over outputs and gradients."""
    rng, worst = np.random.default_rng(1), 0.0
    for _ in range(cases):
        tensors, incoming, mask = random_case(rng)
        expected = output_and_gradients(written_out, tensors, incoming, **mask)
        for ours, theirs in zip(output_and_gradients(kernel, tensors, incoming, **mask), expected, strict=True):
            worst = max(worst, float((ours - theirs).abs().max()))
    return worst


@pytest.mark.parametrize("kernel", [attend_fused, plain_output])
def test_kernels_equal_the_formula(figure: Callable[..., None], kernel: Kernel) -> None:
    worst = max_difference(kernel, 60)
    figure(
        f"{kernel.__name__}_max_difference",
        f"{worst:.0e} over 60 masks",
        "fp64 <= 1e-10, with gradients",
        worst <= 1e-10,
    )


def test_the_comparison_sees_a_wrong_scale(figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **kw: fused(*args, **kw, scale=1.0))
    monkeypatch.setattr(attention, "math", SimpleNamespace(sqrt=lambda _: 1.0))
    seen = sum(max_difference(kernel, 10) > 1e-3 for kernel in (attend_fused, plain_output))
    figure("attention_wrong_scale_seen", f"{seen}/2 kernels", "2/2", seen == 2)


def test_the_comparison_sees_a_lost_mask(figure: Callable[..., None]) -> None:
    lost = max_difference(lambda *tensors, **_: attend_fused(*tensors), 10)
    figure("attention_lost_mask_difference", f"{lost:.1f}", "> 1e-3", lost > 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [attend_fused, plain_output])
def test_a_query_without_keys_gets_zeros(kernel: Kernel, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tensors = [torch.randn(3, 2, 4, 8, dtype=dtype) for _ in range(3)]
    keep = torch.rand(3, 2, 4, 4) < 0.5
    keep[0], keep[1, :, 2] = False, False  # a whole sentence; one query of another
    output, *gradients = output_and_gradients(kernel, tensors, torch.ones(3, 2, 4, 8, dtype=dtype), keep=keep)
    empty = ~keep.any(-1)
    assert (output[empty] == 0).all()
    assert (output[~empty] != 0).any(-1).all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][empty] == 0).all()


def test_the_plain_kernel_weighs_only_what_is_kept() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        tensors, _, mask = random_case(rng)
        _, weights = attend_plain(*tensors, **mask)
        keep = mask.get("keep", torch.ones(weights.shape[-2:], dtype=torch.bool))
        keep = (keep.tril() if "causal" in mask else keep).expand(weights.shape)
        assert (weights[~keep] == 0).all()
        torch.testing.assert_close(weights.sum(-1), keep.any(-1).double(), rtol=0, atol=1e-14)


def test_dropout_acts_on_the_mix_and_not_on_the_returned_weights() -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    whole, weights = attend_plain(q, k, v)
    dropped, same_weights = attend_plain(q, k, v, dropout=0.5)
    assert torch.equal(weights, same_weights)
    assert not torch.allclose(whole, dropped)
    assert not torch.allclose(whole, attend_fused(q, k, v, dropout=0.5))


@pytest.mark.parametrize(
    ("queries", "keys", "dropout", "learning", "chosen"),
    [
        (5, 48, 0.0, True, "plain"),
        (5, 49, 0.0, True, "fused"),
        (5, 200, 0.1, True, "plain"),
        (15, 200, 0.0, False, "plain"),
        (16, 8, 0.0, False, "fused"),
    ],
)
def test_the_rule_of_which_kernel_runs(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, dropout: float, learning: bool, chosen: str
) -> None:
    ran = []
    for name in ("fused", "plain"):
        monkeypatch.setattr(attention, f"attend_{name}", lambda *_, name=name, **__: ran.append(name) or [None])
    q, k = torch.zeros(1, 1, queries, 4, requires_grad=learning), torch.zeros(1, 1, keys, 4)
    attend(q, k, k, dropout=dropout)
    assert ran == [chosen]


def test_recording_gives_weights_and_the_same_logits(
    random_model: Callable[..., Transformer], random_source: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    rng = np.random.default_rng(3)
    model = random_model(rng, num_encoder_layers=1, num_decoder_layers=2)
    (src, keep), tgt = random_source(rng, 3), torch.from_numpy(rng.integers(0, 11, (3, 5)))
    with torch.no_grad():
        logits = model(src, tgt, keep)
        with record_attention(model) as recorded:
            torch.testing.assert_close(model(src, tgt, keep), logits, rtol=0, atol=1e-10)
        assert recorded.keys() == {
            "encoder.0.self_attention",
            *(f"decoder.{layer}.{kind}_attention" for layer in (0, 1) for kind in ("self", "cross")),
        }
        for name, weights in recorded.items():
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3], dtype=torch.double))
            if "cross" in name:
                assert weights.shape[2:] == (5, src.shape[1])
                assert (weights.masked_select(~keep[:, None, None]) == 0).all()
        assert torch.equal(model(src, tgt, keep), logits)  # the fused kernel again


def test_recording_stops_when_the_block_fails(random_model: Callable[..., Transformer]) -> None:
    model = random_model(np.random.default_rng(4))
    with pytest.raises(RuntimeError, match="stop"), record_attention(model) as recorded:
        model(torch.ones(1, 2).long(), torch.ones(1, 2).long())
        raise RuntimeError("stop")
    assert recorded == {}
    assert not any(getattr(module, "recording", False) for module in model.modules())
