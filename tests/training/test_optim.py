"""The learning rate against hand values, and who decays."""

import itertools
import math

import pytest
import torch

from nmt.config import TrainingConfig
from nmt.training.optim import learning_rate, make_optimizer
from tiny import random_bundle


def config(schedule: str, warmup: int = 10, **changes: object) -> TrainingConfig:
    return TrainingConfig(
        **{"learning_rate": 0.8, "warmup_updates": warmup, "schedule": schedule, "max_updates": 110, **changes}
    )


@pytest.mark.parametrize(
    ("schedule", "update", "rate"),
    [
        ("constant", 1, 0.08),
        ("constant", 5, 0.4),
        ("constant", 10, 0.8),
        ("constant", 5000, 0.8),
        ("inverse_sqrt", 1, 0.08),
        ("inverse_sqrt", 9, 0.72),
        ("inverse_sqrt", 10, 0.8),
        ("inverse_sqrt", 40, 0.4),
        ("inverse_sqrt", 1000, 0.08),
        ("linear", 5, 0.4),
        ("linear", 10, 0.8),
        ("linear", 60, 0.4),
        ("linear", 85, 0.2),
        ("linear", 110, 0.0),
        ("linear", 500, 0.0),
        ("cosine", 5, 0.4),
        ("cosine", 10, 0.8),
        ("cosine", 60, 0.4),
        ("cosine", 35, 0.8 * (0.5 + 0.5 * math.cos(math.pi / 4))),
        ("cosine", 110, 0.0),
        ("cosine", 500, 0.0),
    ],
)
def test_hand_values(schedule: str, update: int, rate: float) -> None:
    assert learning_rate(update, config(schedule)) == pytest.approx(rate, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "linear", "cosine"])
def test_without_warm_up_the_first_rate_is_near_the_peak(schedule: str) -> None:
    assert learning_rate(1, config(schedule, warmup=0)) == pytest.approx(0.8, rel=0.01)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "linear", "cosine"])
def test_pure_and_never_above_the_peak(schedule: str) -> None:
    recipe = config(schedule)
    forth = [learning_rate(update, recipe) for update in range(1, 200)]
    back = [learning_rate(update, recipe) for update in range(199, 0, -1)]
    assert forth == back[::-1]
    assert max(forth) == forth[9] == 0.8
    assert all(a >= b for a, b in itertools.pairwise(forth[9:]))


def test_a_warm_up_longer_than_the_run() -> None:
    assert learning_rate(110, config("linear", warmup=1000)) == pytest.approx(0.088)


def test_matrices_decay_and_vectors_do_not() -> None:
    model = random_bundle().model
    optimizer = make_optimizer(model, config("constant", weight_decay=0.5, beta1=0.8, beta2=0.95, epsilon=1e-7))
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.5, 0.0)
    assert {p.dim() for p in plain["params"]} == {1} and all(p.dim() > 1 for p in decayed["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))
    assert optimizer.defaults["betas"] == (0.8, 0.95) and optimizer.defaults["eps"] == 1e-7
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1.0 if parameter.dim() == 1 else 1.0 - 0.8 * 0.5
        torch.testing.assert_close(parameter.detach(), factor * before[name])
