"""R4: the same updates by one rank, two and four, from the start or changed on the way."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from faults import worlds
from faults.recipe import Recipe, scale
from faults.warm import Hook, Warm
from nmt.bundle import list_checkpoints

UPDATES = scale(15, 60)
STOPS = scale(6, 20), scale(9, 41)  # one of them where no validation is
NOTHING = "0 missing, 0 duplicate, 0 reordered"
NO_DROPOUT = ("--set", "model.dropout=0.0", "--set", f"training.max_updates={UPDATES}")


def accumulation(number: int) -> tuple[str, str]:
    return "--set", f"training.accumulation={number}"


def train(warm: Warm, recipe: Recipe, folder: Path, world: int, *options: object, hooks: tuple[Hook, ...] = ()) -> int:
    """Runs of all ranks, which record their pairs. Returns: the code they end with."""
    noting = ("rank_hooks:note_pairs", {"file": folder / f"pairs-of-{world}"})
    results = worlds.run(warm, recipe.arguments(folder / "run", *NO_DROPOUT, *options), world, [noting, *hooks])
    (code,) = {result.code for result in results}
    assert code in (0, 143), results[0].stderr
    return code


def stream(folder: Path) -> list[str]:
    """What all ranks of all starts recorded, "number update pairs" a line, by number of the micro-batch."""
    lines = [line for file in folder.glob("pairs-of-*") for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: int(line.split()[0]))


def compare(expected: list[str], found: list[str]) -> str:
    numbers = [line.split()[0] for line in found]
    missing = len({line.split()[0] for line in expected} - set(numbers))
    others = len(set(found) - set(expected))
    return f"{missing} missing, {len(numbers) - len(set(numbers))} duplicate, {others} reordered"


def losses(folder: Path) -> list[float]:
    found = [line["loss"] for line in worlds.records(folder / "run") if line["kind"] == "update"]
    assert len(found) == UPDATES
    return found


def furthest(ones: list[float], others: list[float]) -> float:
    return max(abs(one - other) / abs(one) for one, other in zip(ones, others, strict=True))


@pytest.fixture(scope="module")
def alone(warm: Warm, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one rank."""
    folder = tmp_path_factory.mktemp("alone")
    assert train(warm, recipe, folder, 1, *accumulation(4)) == 0
    return folder


def test_r4_same_updates_in_every_world(
    warm: Warm, recipe: Recipe, alone: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    expected = stream(alone)
    assert len(expected) == 4 * UPDATES
    said, relative = [], []
    for world, each in ((2, 2), (4, 1)):
        folder = tmp_path / str(world)
        folder.mkdir()
        assert train(warm, recipe, folder, world, *accumulation(each)) == 0
        said.append(compare(expected, stream(folder)))
        relative.append(furthest(losses(alone), losses(folder)))
    found = f"{4 * UPDATES} micro-batches, 2 and 4 ranks against 1: {'; '.join(said)}"
    figure("r4_streams", found, NOTHING, set(said) == {NOTHING})
    figure("r4_losses", f"{max(relative):.1e} relative", "<= 1e-6", max(relative) <= 1e-6)


def test_r4_one_rank_becomes_two_and_four(
    warm: Warm, recipe: Recipe, alone: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    changed = (*accumulation(4), "--allow-changed", "world")
    for world, update in zip((1, 2), STOPS, strict=True):
        stop = ("rank_hooks:signal_after", {"update": update, "rank": world - 1, "number": int(signal.SIGTERM)})
        assert train(warm, recipe, tmp_path, world, *changed, hooks=(stop,)) == 143
        unasked = worlds.run(warm, recipe.arguments(tmp_path / "run", *NO_DROPOUT, *accumulation(4)), 2 * world)
        assert {result.code for result in unasked} == {2}
        said = "".join(result.stderr for result in unasked)
        assert said.count("--allow-changed world") == 1 and f"one of {2 * world}. Start as many as before" in said
    assert train(warm, recipe, tmp_path, 4, *changed) == 0
    said, relative = compare(stream(alone), stream(tmp_path)), furthest(losses(alone), losses(tmp_path))
    figure("r4_changed_on_the_way", said, NOTHING, said == NOTHING)
    figure("r4_changed_losses", f"{relative:.1e} relative", "<= 1e-6", relative <= 1e-6)


def test_r4_control_a_rank_with_another_share(
    warm: Warm, recipe: Recipe, alone: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    assert train(warm, recipe, tmp_path, 2, *accumulation(2), hooks=(("rank_hooks:own_order", {"rank": 1}),)) == 0
    said = compare(stream(alone), stream(tmp_path))
    half = 2 * UPDATES
    figure("r4_control", said, "half of them missing", said == f"{half} missing, {half} duplicate, 0 reordered")


def test_r4_more_ranks_than_micro_batches(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    """A rank without a share of the update goes along."""
    stop = ("rank_hooks:signal_after", {"update": 5, "rank": 0, "number": int(signal.SIGTERM)})
    assert train(warm, recipe, tmp_path, 1, *accumulation(1), hooks=(stop,)) == 143
    assert train(warm, recipe, tmp_path, 2, *accumulation(1), "--allow-changed", "world") == 0
    assert [line.split()[0] for line in stream(tmp_path)] == [str(number) for number in range(UPDATES)]
    assert len(losses(tmp_path)) == UPDATES


def test_r4_unequal_token_counts(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    """Two ranks with a micro-batch each are one rank with two: the mean is over all tokens, not over ranks."""
    ends = []
    for world in (1, 2):
        folder = tmp_path / str(world)
        folder.mkdir()
        assert train(warm, recipe, folder, world, *accumulation(3 - world)) == 0
        last = list_checkpoints(folder / "run")[-1]
        assert json.loads((last / "state.json").read_bytes())["update"] == UPDATES
        ends.append(load_file(last / "model.safetensors"))
    sizes = [len(line.split()) for line in stream(tmp_path / "2")]
    assert len(set(sizes)) > 1  # the ranks' shares were not equal
    furthest_apart = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0])
    assert all(torch.isfinite(tensor).all() for tensor in ends[0].values())
    figure("r4_unequal_tokens", f"{furthest_apart:.1e} in final weights", "<= 1e-6", furthest_apart <= 1e-6)
