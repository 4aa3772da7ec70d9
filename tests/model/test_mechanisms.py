"""Positions, grouped heads and normed queries against their papers' formulas, written out; outputs and gradients."""

import cmath
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model import attention, positions
from nmt.model.attention import CrossAttention, HeadNorm, SelfAttention
from nmt.model.build import build_model
from nmt.model.positions import LearnedPositions, Turns, rotate, t5_bucket, turns

POSITIONS = ("sinusoidal", "learned", "rope", "relative", "shaw")
INSIDE = ("sinusoidal", "rope", "relative", "shaw")  # the first does nothing inside attention, and nor do learned ones


def turned(x_BQK: Tensor) -> Tensor:
    """RoPE as complex numbers: x[i] + j x[i + K/2] times exp(j * position * 10000^(-2i/K))."""
    half = x_BQK.shape[-1] // 2
    factors = [[cmath.exp(1j * place * 10_000 ** (-i / half)) for i in range(half)] for place in range(x_BQK.shape[-2])]
    pairs = torch.complex(x_BQK[..., :half], x_BQK[..., half:]) * torch.tensor(factors, dtype=torch.complex128)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def bucket_written_out(distance: int, buckets: int) -> int:
    """Of T5, in whole numbers: beyond single + floor(log(d / single) / log(128 / single) * (buckets - single))."""
    single = buckets // 2
    if distance < single:
        return distance
    more = [k for k in range(1, single) if (128 // single) ** k * single**single <= distance**single]
    return single + max(more, default=0)


def t5_place(distance: int, causal: bool) -> int:
    """The row of T5's table: half of the 32 are for keys after the query where there can be any."""
    if causal:
        return bucket_written_out(max(0, -distance), 32)
    return bucket_written_out(abs(distance), 16) + 16 * (distance > 0)


def written_out(
    module: SelfAttention | CrossAttention,
    config: ModelConfig,
    x_BQD: Tensor,
    memory_BSD: Tensor,
    keep_BS: Tensor,
    causal: bool,
) -> Tensor:
    """What a multi-head attention gives, head by head. Cross-attention has no positions."""
    heads, groups, width = config.num_heads, config.kv_heads, config.head_dim
    kind = config.positions if isinstance(module, SelfAttention) else "none"
    if isinstance(module, SelfAttention):
        weight, bias = module.qkv.weight, module.qkv.bias
    else:
        weight, bias = (torch.cat([getattr(module.q, name), getattr(module.kv, name)]) for name in ("weight", "bias"))

    def head(of: Tensor, first: int, gain: Tensor | None) -> Tensor:
        x = of @ weight[first : first + width].T + bias[first : first + width]
        return x if gain is None else x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain

    queries, keys = range(x_BQD.shape[1]), range(memory_BSD.shape[1])
    distances = [[s - t for s in keys] for t in queries]
    seen_QS = torch.tensor([[d <= 0 or not causal for d in row] for row in distances])
    mixed = []
    for h in range(heads):
        g = h // (heads // groups)
        q = head(x_BQD, h * width, module.q_norm.weight if config.qk_norm else None)
        k = head(memory_BSD, (heads + g) * width, module.k_norm.weight if config.qk_norm else None)
        v = head(memory_BSD, (heads + groups + g) * width, None)
        if kind == "rope":
            q, k = turned(q), turned(k)
        scores_BQS = torch.einsum("bqk,bsk->bqs", q, k)
        if kind == "shaw":
            places = [[max(-16, min(16, d)) + 16 for d in row] for row in distances]
            scores_BQS = scores_BQS + torch.einsum("bqk,qsk->bqs", q, module.relative.table_NK[torch.tensor(places)])
        scores_BQS = scores_BQS / math.sqrt(width)
        if kind == "relative":
            places = [[t5_place(d, causal) for d in row] for row in distances]
            scores_BQS = scores_BQS + module.relative.table_NH[torch.tensor(places), h]
        exps_BQS = scores_BQS.exp() * keep_BS[:, None] * seen_QS
        mixed.append(torch.einsum("bqs,bsk->bqk", exps_BQS / exps_BQS.sum(-1, keepdim=True), v))
    return torch.cat(mixed, dim=-1) @ module.out.weight.T + module.out.bias


def random_numbers(module: nn.Module, rng: np.random.Generator, scale: float = 0.5) -> nn.Module:
    """Every parameter drawn anew, so that no zero or one hides a mistake."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0, scale, parameter.shape)))
    return module


def random_config(rng: np.random.Generator, kind: str) -> ModelConfig:
    heads = int(rng.choice([1, 2, 4]))
    kv_heads = int(rng.choice([each for each in (1, 2, 4) if heads % each == 0]))
    width, qk_norm = heads * int(rng.choice([2, 4, 6])), bool(rng.random() < 0.5)
    return ModelConfig(
        d_model=width, num_heads=heads, num_kv_heads=kv_heads, qk_norm=qk_norm, positions=kind, attention_dropout=0.0
    )


def compared(outputs: Iterator[Tensor], leaves: list[Tensor], rng: np.random.Generator) -> float:
    """The largest difference of two outputs, and of the gradients of all leaves through them."""
    ours, theirs = outputs
    incoming = torch.from_numpy(rng.normal(size=ours.shape))
    gradients = [
        torch.autograd.grad(each, leaves, incoming, allow_unused=True, materialize_grads=True)
        for each in (ours, theirs)
    ]
    pairs = [(ours, theirs), *zip(*gradients, strict=True)]
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


def self_attention_difference(kind: str, cases: int) -> float:
    """From the formula written out, encoder's with padding and decoder's, over outputs and gradients."""
    rng, worst = np.random.default_rng(1), 0.0
    for case in range(cases):
        config, causal = random_config(rng, kind), bool(case % 2)
        module = random_numbers(SelfAttention(config, causal).double(), rng)
        # Distances beyond 16 are clipped or share a bucket: one case in eight has them.
        length = 24 if case % 8 < 2 else int(rng.integers(1, 7))
        x = torch.from_numpy(rng.normal(size=(2, length, config.d_model))).requires_grad_()
        keep = torch.arange(length) < torch.tensor([length, 1 if causal else max(1, length - 2)])[:, None]
        seen = torch.ones_like(keep) if causal else keep  # a decoder's padding is on the right, where it does not look
        ours = module(x, None if causal else keep[:, None, None])
        theirs = written_out(module, config, x, x, seen, causal)
        worst = max(worst, compared(iter((ours, theirs)), [x, *module.parameters()], rng))
    return worst


@pytest.mark.parametrize("kind", INSIDE)
def test_self_attention_equals_the_formula(kind: str, figure: Callable[..., None]) -> None:
    worst = self_attention_difference(kind, 10)
    figure(f"{kind}_max_difference", f"{worst:.0e} over 10 shapes", "fp64 <= 1e-10, with gradients", worst <= 1e-10)


def test_cross_attention_equals_the_formula(figure: Callable[..., None]) -> None:
    rng, worst = np.random.default_rng(2), 0.0
    for _ in range(10):
        config = random_config(rng, "rope")
        module = random_numbers(CrossAttention(config).double(), rng)
        x, memory = (torch.from_numpy(rng.normal(size=(2, n, config.d_model))).requires_grad_() for n in (3, 5))
        keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        ours = module(x, module.project_memory(memory), keep[:, None, None])
        theirs = written_out(module, config, x, memory, keep, causal=False)
        worst = max(worst, compared(iter((ours, theirs)), [x, memory, *module.parameters()], rng))
    shown = f"{worst:.0e} over 10 shapes"
    figure("grouped_cross_attention_max_difference", shown, "fp64 <= 1e-10, with gradients", worst <= 1e-10)


def turn_backwards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attention, "rotate", lambda x, by: rotate(x, (by[0], -by[1])))


def turn_keys_alone(patch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10**6))
    patch.setattr(attention, "rotate", lambda x, by: rotate(x, by) if next(calls) % 2 else x)


def start_at_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(positions, "t5_bucket", lambda distance, buckets: t5_bucket(distance + 1, buckets))


def take_both_sides_for_one(patch: pytest.MonkeyPatch) -> None:
    distances = positions.distances
    patch.setattr(attention, "distances", lambda *shape: -distances(*shape).abs())


def clip_earlier(patch: pytest.MonkeyPatch) -> None:
    distances = positions.distances
    patch.setattr(attention, "distances", lambda *shape: distances(*shape).clamp(-15, 15))


def leave_out_the_scale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(positions, "math", SimpleNamespace(sqrt=lambda _: 1.0))


def mix_up_groups(patch: pytest.MonkeyPatch) -> None:
    split = SelfAttention._keys
    patch.setattr(SelfAttention, "_keys", lambda self, k: split(self, k).flip(1))


def norm_without_gain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeadNorm, "forward", lambda self, x: nn.functional.rms_norm(x, self.normalized_shape))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (turn_backwards, "rope"),
        (turn_keys_alone, "rope"),
        (start_at_one, "relative"),
        (take_both_sides_for_one, "relative"),
        (take_both_sides_for_one, "shaw"),
        (clip_earlier, "shaw"),
        (leave_out_the_scale, "shaw"),
        (mix_up_groups, "sinusoidal"),
        (norm_without_gain, "sinusoidal"),
    ],
)
def test_the_formula_sees(
    fault: Callable[[pytest.MonkeyPatch], None], kind: str, figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    difference = self_attention_difference(kind, 4)
    figure(f"{kind}_{fault.__name__}_difference", f"{difference:.1e}", "> 1e-3", difference > 1e-3)


def shift_difference(by: Callable[..., Turns]) -> float:
    """How much the products of rotated queries and keys change when all positions move by as many places."""
    rng, worst = np.random.default_rng(3), 0.0
    for shift in (1, 7, 100, 5000):
        q, k = (torch.from_numpy(rng.normal(size=(2, 3, 6, 8))) for _ in range(2))
        scores = [rotate(q, by(start, 6, q)) @ rotate(k, by(start, 6, k)).transpose(-2, -1) for start in (0, shift)]
        worst = max(worst, float((scores[0] - scores[1]).abs().max()))
    return worst


def test_rotated_scores_depend_on_the_distance_alone(figure: Callable[..., None]) -> None:
    def uneven(start: int, length: int, like: Tensor) -> Turns:
        angles = torch.arange(start, start + length, dtype=like.dtype)[:, None].sqrt().expand(-1, 4)
        return angles.cos(), angles.sin()

    worst, control = shift_difference(turns), shift_difference(uneven)
    shown = f"{worst:.0e}; {control:.1f} with angles of roots"
    figure("rope_shift_difference", shown, "<= 1e-10; > 0.1", worst <= 1e-10 and control > 0.1)
    x = torch.randn(1, 1, 6, 8, dtype=torch.double)
    torch.testing.assert_close(rotate(x, turns(0, 6, x)).norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(rotate(x, turns(0, 1, x)), x)  # position 0 is where it was


@pytest.mark.parametrize("buckets", [16, 32])
def test_buckets_are_t5s(buckets: int) -> None:
    far = torch.arange(3000)
    expected = [bucket_written_out(distance, buckets) for distance in far.tolist()]
    assert t5_bucket(far, buckets).tolist() == expected
    assert t5_bucket(far, buckets - 2).tolist() != expected  # what the comparison is there to see
    assert sorted(set(expected)) == list(range(buckets))


def test_learned_positions_are_rows_of_their_table() -> None:
    module = random_numbers(LearnedPositions(20, 6).double(), np.random.default_rng(4))
    like = torch.zeros(1, dtype=torch.double)
    for start, length in [(0, 20), (3, 5), (19, 1)]:
        assert torch.equal(module(start, length, like), module.table_LD[start : start + length])
    module(3, 5, like).sum().backward()
    assert module.table_LD.grad is not None
    assert module.table_LD.grad.sum(-1).tolist() == [0.0] * 3 + [6.0] * 5 + [0.0] * 12


@pytest.mark.parametrize("module", [SelfAttention, CrossAttention])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads_are_heads_with_equal_keys_and_values(module: type[nn.Module], groups: int) -> None:
    """GQA is multi-head attention whose rows of keys and values are repeated; with all its heads it is that itself."""
    rng, shape = np.random.default_rng(5), {"d_model": 16, "num_heads": 4, "attention_dropout": 0.0}
    extra = (True,) if module is SelfAttention else ()
    grouped = random_numbers(module(ModelConfig(**shape, num_kv_heads=groups), *extra).double(), rng)
    whole = module(ModelConfig(**shape), *extra).double()
    weights = dict(grouped.state_dict())
    if groups == 4:
        assert {name: each.shape for name, each in weights.items()} == {
            name: each.shape for name, each in whole.state_dict().items()
        }
    for name, tensor in weights.items():
        before = {"qkv": 16, "kv": 0}.get(name.split(".")[0])
        if before is not None:
            by_head = tensor[before:].unflatten(0, (2, groups, 4)).repeat_interleave(4 // groups, dim=1)
            weights[name] = torch.cat([tensor[:before], by_head.flatten(0, 2)])
    whole.load_state_dict(weights)
    x = torch.from_numpy(rng.normal(size=(2, 5, 16)))
    outputs = [m(x) if m.__class__ is SelfAttention else m(x, m.project_memory(x)) for m in (grouped, whole)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)


@torch.no_grad()
def encoded(kind: str, src_BS: Tensor, keep_BS: Tensor) -> Tensor:
    shape = {"num_encoder_layers": 2, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 24}
    config = ModelConfig(**shape, positions=kind)
    model = random_numbers(build_model(config, 30, 30).double().eval(), np.random.default_rng(6))
    return model.encode(src_BS, keep_BS)


@pytest.mark.parametrize("kind", POSITIONS)
def test_what_a_position_is(kind: str, figure: Callable[..., None]) -> None:
    """Of all kinds the order of a source matters; of some only distances do, so that it may begin anywhere."""
    src = torch.randint(30, (3, 40), generator=torch.Generator().manual_seed(1))
    real = torch.ones_like(src, dtype=torch.bool)
    begun_later = nn.functional.pad(src, (3, 0)), nn.functional.pad(real, (3, 0))
    here = encoded(kind, src, real)
    moved = float((encoded(kind, *begun_later)[:, 3:] - here).abs().max())
    turned_round = float((encoded(kind, src.flip(1), real).flip(1) - here).abs().max())
    alone = kind in ("rope", "relative", "shaw")
    ok = turned_round > 1e-2 and (moved < 1e-10 if alone else moved > 1e-2)
    shown = f"{moved:.0e} begun later, {turned_round:.0e} turned round"
    figure(f"{kind}_order", shown, "<= 1e-10, > 1e-2" if alone else "> 1e-2, > 1e-2", ok)
