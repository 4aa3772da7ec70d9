"""The tools of this folder do what the fault tests take for granted."""

import time

import pytest

from faults.recipe import Recipe
from faults.warm import Warm


def test_children_run_the_command_line(warm: Warm) -> None:
    assert warm.run(["--version"]).stdout.startswith("nmt ")
    assert warm.run(["train"]).code == 2
    began = time.monotonic()
    children = [warm.start(["--version"]) for _ in range(10)]
    assert [child.wait().code for child in children] == [0] * 10
    assert time.monotonic() - began < 5


def test_the_recipe_crosses_epochs(recipe: Recipe) -> None:
    state = recipe.expected["state"]
    assert state["update"] == 60 and 5 <= state["epoch"] <= 9
    assert recipe.expected["checkpoints"][-3:] == ["ckpt-000049", "ckpt-000056", "ckpt-000060"]
    assert len(recipe.expected["log"]) == 60 + 9


def test_a_child_that_hangs_is_killed(warm: Warm) -> None:
    with pytest.raises(TimeoutError):
        warm.call("children:hang", timeout_s=0.2)
