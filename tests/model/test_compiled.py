"""torch.compile of the layers: the same numbers, two programs for all layers and shapes, decoding left alone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters

import tiny
from nmt.config import ModelConfig
from nmt.model import compiled as regions
from nmt.model.attention import record_attention
from nmt.model.compiled import compile_problem
from nmt.model.transformer import Transformer

pytestmark = pytest.mark.skipif(
    compile_problem(torch.device("cpu")) is not None, reason="torch.compile does not work here"
)
VOCABULARY = 60


@pytest.fixture(autouse=True)
def _from_nothing() -> Iterator[None]:
    torch._dynamo.reset()
    with tiny.one_thread():
        yield
    torch._dynamo.reset()


def programs() -> int:
    """Graphs that were compiled so far."""
    return int(counters["stats"]["unique_graphs"])


def new_model(seed: int = 0, **shape: Any) -> Transformer:
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2, "dropout": 0.0, "embedding_dropout": 0.0}
    torch.manual_seed(seed)
    return Transformer(ModelConfig(**{**tiny.SHAPE, **layers, **shape}), VOCABULARY, VOCABULARY).train()


def loss_and_gradient(model: Transformer, batch: int, source: int, target: int, padded: bool) -> tuple[Tensor, Tensor]:
    """Of made-up ids, with the generators as after a seeding."""
    generator = torch.Generator().manual_seed(batch)
    src, tgt = (torch.randint(1, VOCABULARY, (batch, length), generator=generator) for length in (source, target))
    keep = torch.ones(batch, source, dtype=torch.bool)
    keep[0, source // 2 + 1 :] = False
    torch.manual_seed(1)
    loss = -model(src, tgt, keep if padded else None).log_softmax(-1)[..., 7].sum()
    model.zero_grad()
    torch.autograd.backward(loss)
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


# Equal sizes first: they must not count as one. The last ones have a single row or position.
SHAPES = [(8, 8, 8, False), (8, 8, 8, True), (5, 7, 9, False), (3, 9, 4, True), (2, 30, 31, True), (16, 2, 2, False)]
SINGLE = [(1, 5, 6, False), (1, 1, 1, False), (2, 1, 3, False)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pre", {"norm": "pre"}),
        ("post", {"norm": "post"}),
        ("rope", {"positions": "rope", "num_kv_heads": 1, "qk_norm": True}),
        ("relative", {"positions": "relative"}),
        ("shaw", {"positions": "shaw", "num_kv_heads": 1}),
    ],
)
def test_compiled_equals_eager(name: str, kind: dict[str, Any], figure: Callable[..., None]) -> None:
    plain, model = new_model(**kind), new_model(**kind)
    model.compile_layers()
    assert plain.state_dict().keys() == model.state_dict().keys()
    before, worst = programs(), 0.0
    for shape in [*SHAPES, *SINGLE]:
        for mine, theirs in zip(loss_and_gradient(model, *shape), loss_and_gradient(plain, *shape), strict=True):
            worst = max(worst, relative(mine, theirs))
    figure(f"compiled_difference_{name}", f"{worst:.0e} over {len(SHAPES + SINGLE)} shapes", "<= 1e-5", worst <= 1e-5)
    figure(
        f"compiled_programs_{name}",
        programs() - before,
        "4: two regions, with a mask and without",
        programs() - before == 4,
    )


@pytest.mark.slow
def test_dropout_keeps_its_rates_and_its_mean(figure: Callable[..., None]) -> None:
    """And with gradient checkpointing outside: the same masks again in the backward pass."""
    rate, rows = 0.3, (64, 20, 20, False)
    outputs = {}
    for checkpointing in (False, True):
        model = new_model(dropout=rate, activation_dropout=0.2)
        model.gradient_checkpointing = checkpointing
        model.compile_layers()
        outputs[checkpointing] = loss_and_gradient(model, *rows)
        other = loss_and_gradient(new_model(), *rows)
        assert relative(outputs[checkpointing][1], other[1]) > 1e-3  # dropout does something
    differing = sum(not torch.equal(a, b) for a, b in zip(outputs[False], outputs[True], strict=True))
    figure("compiled_checkpointing_differences", differing, "0 of loss and gradients, dropout on", differing == 0)

    layer = new_model(dropout=rate).encoder[0]

    def drop(ones: Tensor) -> Tensor:
        dropped: Tensor = layer.dropout(ones)
        return dropped

    program = regions.compiled(drop)
    dropped = program(torch.ones(1000, 1000))
    share = float((dropped == 0).double().mean())
    assert float((dropped[dropped != 0] - 1 / (1 - rate)).abs().max()) < 1e-6
    off = abs(share - rate)
    figure("compiled_dropout_rate_off_by", f"{off:.1e} of 1,000,000", "<= 2.5e-3", off <= 2.5e-3)


@pytest.mark.slow
def test_decoding_and_recording_use_the_modules_as_they_are() -> None:
    plain, model = new_model().eval(), new_model()
    model.compile_layers()
    loss_and_gradient(model, 4, 5, 6, False)
    model.eval()
    before = programs()
    src, tgt = torch.randint(1, VOCABULARY, (3, 5)), torch.randint(1, VOCABULARY, (3, 4))
    with torch.inference_mode():
        assert torch.equal(model(src, tgt), plain(src, tgt))
        states = [each.prefill(src) for each in (model, plain)]
        steps = [each.decode_step(tgt[:, :1], state) for each, state in zip((model, plain), states, strict=True)]
        assert torch.equal(*steps)
        with record_attention(model) as weights:
            model(src, tgt)
    assert len(weights) == 6 and all(w.isfinite().all() for w in weights.values())
    assert programs() == before


@pytest.mark.slow
def test_too_many_programs_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes on uncompiled without a word."""
    monkeypatch.setattr(regions, "_MOST_PROGRAMS", 1)
    model = new_model()
    model.compile_layers()
    loss_and_gradient(model, 4, 5, 6, False)
    with pytest.raises(FailOnRecompileLimitHit):
        loss_and_gradient(model, 4, 5, 6, True)
    monkeypatch.undo()
    new_model().compile_layers()
    assert dynamo.recompile_limit == 64 and dynamo.fail_on_recompile_limit_hit


def test_what_does_not_work_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("\n  Failed to find C compiler. \nmore")

    monkeypatch.setattr(torch, "compile", broken)
    assert compile_problem(torch.device("cpu")) == "Failed to find C compiler."
