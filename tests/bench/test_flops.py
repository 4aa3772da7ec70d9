"""`training_flops` against torch's own counter, where nothing is padded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from flops import training_flops
from nmt.config import ModelConfig
from nmt.model.transformer import Transformer

VOCABULARY = 70


def counted(config: ModelConfig, batch: int, source: int, target: int) -> int:
    """By torch, of one forward and backward pass; attention by matrix products, whose causal half is computed too."""
    model = Transformer(config, VOCABULARY, VOCABULARY).train()
    src, tgt = torch.randint(1, VOCABULARY, (batch, source)), torch.randint(1, VOCABULARY, (batch, target))
    with FlopCounterMode(display=False) as counter, sdpa_kernel([SDPBackend.MATH]):
        torch.autograd.backward(model(src, tgt).sum())
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"norm": "post", "tied_embeddings": "none"},
        {"activation": "swiglu", "num_encoder_layers": 3},
        {"num_decoder_layers": 1, "d_ff": 20, "num_heads": 2},
    ],
)
def test_it_counts_what_torch_counts(shape: dict[str, Any], figure: Callable[..., None]) -> None:
    small = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 32, "num_heads": 4, "d_ff": 48}
    config = ModelConfig(**{**small, **shape})
    worst = 0.0
    for batch, source, target in ((3, 7, 5), (1, 4, 9), (5, 12, 12)):
        ours = training_flops(config, VOCABULARY, [source] * batch, [target] * batch)
        half = 12 * config.d_model * config.num_decoder_layers * batch * target**2 / 2
        theirs = counted(config, batch, source, target)
        worst = max(worst, abs(ours + half - theirs) / theirs)
        assert abs(ours - theirs) / theirs > 1e-3  # the control: the half that causal attention leaves out is seen
    names = "_".join(f"{value}" for value in shape.values()) or "plain"
    figure(f"flops_off_by_{names}", f"{worst:.1e}", "<= 1e-9, the causal half added", worst <= 1e-9)


def test_padding_counts_nothing() -> None:
    config = ModelConfig()
    parts = [training_flops(config, 1000, [length], [length + 1]) for length in (3, 30)]
    assert training_flops(config, 1000, [3, 30], [4, 31]) == pytest.approx(sum(parts))


def test_the_parameters_are_those_of_the_model() -> None:
    """Base, one token each side, attention aside: six times all matrices but the source's embedding."""
    config = ModelConfig(tied_embeddings="none")
    model = Transformer(config, 100, VOCABULARY)
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name)
    attention = 12 * 512 * (6 + 6 * 1.5)
    assert training_flops(config, VOCABULARY, [1], [1]) == pytest.approx(6 * matrices + attention)
