"""Shared by the fault tests: the fork server, the recipe and its uninterrupted run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.recipe import Recipe, make_recipe
from faults.warm import Warm


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with Warm(tmp_path_factory.mktemp("warm")) as server:
        yield server


@pytest.fixture(scope="session")
def recipe(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The tiny run, made once without any interruption."""
    return make_recipe(warm, tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="session")
def halfway(warm: Warm, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended at update 28 and can go on; copy it."""
    run = tmp_path_factory.mktemp("halfway") / "run"
    assert warm.run(recipe.arguments(run, "--set", "training.max_updates=28")).code == 0
    return run
