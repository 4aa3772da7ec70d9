"""D1, D2: a token cache or tokenizer that was damaged, or left half made, is never used."""

import contextlib
import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.children import prepare_caches
from faults.mutations import KINDS, Mutation
from faults.recipe import Recipe, problems_of, scale, tree
from faults.warm import Warm


def mutate(cache: Path, name: str, rng: random.Random, kind: str | None = None) -> str:
    """Change a file of a cache. Returns: what was done."""
    path = cache / name
    same_size = [p for p in cache.rglob("*") if p.is_file() and p != path and p.stat().st_size == path.stat().st_size]
    twin = next((p for p in same_size if p.read_bytes() != path.read_bytes()), None)
    return f"{Mutation(path, rng, twin=twin, kind=kind).kind} {name}"


def prepared(recipe: Recipe, cache: Path) -> str:
    """Prepare in this process, in a second less than through the command line. Returns: what was said."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        prepare_caches(str(recipe.toml), str(cache))
    return said.getvalue()


def test_d1_every_damage_is_found(recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    whole, cache, rng = tree(recipe.cache), tmp_path / "cache", random.Random(1)
    shutil.copytree(recipe.cache, cache)
    assert "damaged" not in prepared(recipe, cache)  # the control
    names, wrong, count = sorted(whole), [], scale(150, 1000)
    for number in range(count):
        done = mutate(cache, names[number % len(names)], rng)
        try:
            said = prepared(recipe, cache)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        if "damaged" not in said or tree(cache) != whole:
            wrong.append(f"{done}: {said[-200:]}")
            shutil.rmtree(cache)
            shutil.copytree(recipe.cache, cache)
    said = f"{count - len(wrong)} of {count} found and made again {wrong[:2] or ''}".strip()
    figure("d1_cache_damage", said, "all", not wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_d1_a_run_makes_its_cache_again(warm: Warm, recipe: Recipe, tmp_path: Path, kind: str) -> None:
    names = sorted(name for name in tree(recipe.cache) if name.endswith(".tokens"))
    cache, run = tmp_path / "cache", tmp_path / "run"
    for number, name in enumerate(names[: scale(1, 99)]):
        shutil.copytree(recipe.cache, cache)
        mutate(cache, name, random.Random(number), kind)
        result = warm.run(recipe.arguments(run, cache=cache))
        assert problems_of(result, run, recipe) == []
        assert "damaged" in result.stderr and tree(cache) == tree(recipe.cache)
        shutil.rmtree(cache)
        shutil.rmtree(run)


def test_d2_killed_while_building(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    whole, log, cache = tree(recipe.cache), tmp_path / "log", tmp_path / "cache"
    build = {"toml": str(recipe.toml), "cache": str(cache)}
    counted = warm.call("children:prepare_caches", [("shim:count", {"folder": cache, "file": log})], **build)
    assert counted.code == 0 and tree(cache) == whole
    kinds = [line.split()[0] for line in log.read_text().splitlines()]
    points = [(number, False) for number in range(len(kinds))]
    points += [(number, True) for number, kind in enumerate(kinds) if kind == "write"]
    points, wrong = points[:: scale(3, 1)], []
    for number, half in points:
        shutil.rmtree(cache)
        kill = ("shim:kill_at", {"folder": cache, "operation": number, "half": half})
        assert warm.call("children:prepare_caches", [kill], **build).code == -9
        prepared(recipe, cache)
        if tree(cache) != whole or any(".tmp-" in path.name for path in cache.iterdir()):
            wrong.append(f"operation {number} ({kinds[number]}{', half' * half})")
    said = f"{len(points) - len(wrong)} of {len(points)} {wrong[:3] or ''}".strip()
    figure("d2_killed_while_building", said, "all", not wrong and len(points) > 15)


def test_d2_a_run_killed_while_building_ends_the_same(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    rng = random.Random(2)
    for number in rng.sample(range(40), scale(1, 20)):
        run, cache = tmp_path / f"run-{number}", tmp_path / f"cache-{number}"
        kill = ("shim:kill_at", {"folder": cache, "operation": number, "half": rng.random() < 0.5})
        assert warm.run(recipe.arguments(run, cache=cache), [kill]).code == -9
        assert problems_of(warm.run(recipe.arguments(run, cache=cache)), run, recipe) == []
