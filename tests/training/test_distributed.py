"""Ranks: alone they are nothing; the pieces that several are made of."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nmt.errors import ConfigError, NmtError
from nmt.training import distributed
from nmt.training.distributed import Ranks, checksum


def model_of(*shapes: tuple[int, ...], seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Module()
    for number, shape in enumerate(shapes):
        model.register_parameter(f"p{number}", nn.Parameter(torch.randn(shape, generator=generator)))
    return model


def test_alone_everything_is_the_identity() -> None:
    ranks = Ranks()
    values, lines = [1.5, -2.0, 0.1], ["a", "", "ü\n"]
    assert ranks.first and list(ranks.share(5)) == [0, 1, 2, 3, 4]
    assert ranks.total(values) == values and ranks.largest(values) == values
    assert ranks.collect(lines) == [lines]
    assert ranks.from_first("name", lambda: "made") == "made"
    error = ConfigError("why")
    assert ranks.agreed(error) is error
    model = model_of((2, 3))
    ranks.sum_gradients(model)
    assert next(model.parameters()).grad is None  # untouched
    with ranks.joined(torch.device("cpu"), 1.0):
        assert ranks.collect(lines) == [lines]


def test_alone_an_error_of_the_first_is_raised_as_it_is() -> None:
    def fail() -> str:
        raise ConfigError("why")

    with pytest.raises(ConfigError, match="why"):
        Ranks().from_first("name", fail)


def test_only_rank_0_says_why() -> None:
    error = Ranks(rank=1, world=2).agreed(ConfigError("why"))
    assert isinstance(error, ConfigError) and str(error) == "" and error.exit_code == 2
    assert str(Ranks(rank=0, world=2).agreed(NmtError("why"))) == "why"


def test_place_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(key, raising=False)
    assert vars(Ranks.from_environment()) == vars(Ranks(0, 1, 0))
    for key, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(key, value)
    ranks = Ranks.from_environment()
    assert (ranks.rank, ranks.world, ranks.local_rank, ranks.first) == (5, 8, 1, False)


@given(st.integers(1, 16), st.integers(0, 64))
def test_shares_are_a_partition(world: int, count: int) -> None:
    shares = [list(Ranks(rank, world).share(count)) for rank in range(world)]
    assert sorted(number for share in shares for number in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(4, 400))
def test_buckets_hold_every_gradient_once(sizes: list[int], most: int) -> None:
    parameters = list(model_of(*((size,) for size in sizes)).parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "BUCKET_BYTES", most)
        buckets = list(distributed._buckets(parameters))
    gradients = [gradient for bucket in buckets for gradient in bucket]
    assert [id(gradient) for gradient in gradients] == [id(parameter.grad) for parameter in parameters]
    for bucket in buckets:  # as many as fit, and never one more
        assert sum(gradient.nbytes for gradient in bucket[:-1]) < most
    for bucket in buckets[:-1]:
        assert sum(gradient.nbytes for gradient in bucket) >= most


@settings(max_examples=300)
@given(st.data())
def test_checksum_changes_with_any_one_bit(data: st.DataObject) -> None:
    model = model_of((3, 5), (7,), (1,), (2, 2, 2), seed=data.draw(st.integers(0, 9)))
    before = checksum(model)
    parameter = data.draw(st.sampled_from(list(model.parameters())))
    place = data.draw(st.integers(0, parameter.numel() - 1))
    bit = data.draw(st.integers(0, 31))
    bits = parameter.detach().view(torch.int32).flatten()
    assert bits.data_ptr() == parameter.data_ptr()  # a view: the weight itself changes
    flip = -(2**31) if bit == 31 else 1 << bit
    bits[place] ^= flip
    assert checksum(model) != before
    bits[place] ^= flip
    assert checksum(model) == before


def test_checksum_counts_as_whole_numbers() -> None:
    """NaN and infinity have bits too, and nothing is rounded away beside large weights."""
    model = model_of((4,))
    seen = set()
    for value in (0.0, -0.0, float("nan"), float("inf"), 1e30, 1e-45):
        with torch.no_grad():
            next(model.parameters())[1] = value
        seen.add(checksum(model))
    assert len(seen) == 6


@pytest.mark.parametrize("ask", [lambda r: r.total([1.0]), lambda r: r.largest([1.0])])
def test_alone_nothing_is_communicated(ask: Callable[[Ranks], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed.dist, "all_reduce", None)
    assert ask(Ranks()) == [1.0]
