"""R3: two ranks stopped, or robbed of rank 0, and resumed: bit-equal to the run that never stopped."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults import worlds
from faults.recipe import Recipe, fingerprint, scale
from faults.warm import Warm
from faults.worlds import LENGTH, UPDATES


@dataclass(frozen=True)
class Together:
    """The uninterrupted run of two ranks: its folder, its fingerprint, and the weights of its ranks."""

    run: Path
    expected: dict[str, Any]
    weights: list[str]


@pytest.fixture(scope="module")
def together(warm: Warm, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Together:
    folder = tmp_path_factory.mktemp("together")
    worlds.finish(warm, recipe, folder / "run", hooks=[("rank_hooks:note_weights", {"file": folder / "weights"})])
    mine, other = worlds.notes(folder / "weights", 2)
    assert mine == other and len(mine) == UPDATES // 7 + 1 + bool(UPDATES % 7)
    return Together(folder / "run", fingerprint(folder / "run"), mine)


def stop_and_resume(warm: Warm, recipe: Recipe, folder: Path, update: int, rank: int, together: Together) -> list[str]:
    """What differs after a stop at an update, by a signal to one rank."""
    noting = ("rank_hooks:note_weights", {"file": folder / "weights"})
    signals = ("rank_hooks:signal_after", {"update": update, "rank": rank, "number": int(signal.SIGTERM)})
    arguments = recipe.arguments(folder / "run", *LENGTH)
    stopped = worlds.run(warm, arguments, hooks=[noting, signals])
    assert [result.code for result in stopped] == [143, 143], stopped
    said = f"nmt: Stopped by a signal after update {update};"
    assert [said in result.stderr for result in stopped] == [True, False]
    worlds.finish(warm, recipe, folder / "run", hooks=[noting])
    # A stop at a validation lets it begin twice, with the same weights.
    mine, other = (list(dict.fromkeys(lines)) for lines in worlds.notes(folder / "weights", 2))
    wrong = worlds.parts_that_differ(together.expected, folder / "run")
    return wrong + ["ranks differ"] * (mine != other) + ["weights on the way"] * (mine != together.weights)


def test_r3_stop_and_resume(
    warm: Warm, recipe: Recipe, together: Together, tmp_path: Path, figure: Callable[..., None]
) -> None:
    updates = random.Random(3).sample(range(1, UPDATES), scale(2, 10))
    wrong = []
    for place, update in enumerate(updates):
        problems = stop_and_resume(warm, recipe, tmp_path / str(update), update, place % 2, together)
        wrong += [f"update {update}: {', '.join(problems)}"] if problems else []
    said = f"{len(wrong)} of {len(updates)} points x 2 ranks differ {wrong or ''}".strip()
    figure("r3_two_ranks", said, "0", not wrong)


def test_r3_rank_0_is_killed(
    warm: Warm, recipe: Recipe, together: Together, tmp_path: Path, figure: Callable[..., None]
) -> None:
    updates = random.Random(33).sample(range(1, UPDATES), scale(1, 5))
    slowest, wrong = 0.0, []
    for update in updates:
        run = tmp_path / str(update)
        kill = ("rank_hooks:signal_after", {"update": update, "rank": 0, "number": int(signal.SIGKILL)})
        first, second = worlds.start(warm, recipe.arguments(run, *LENGTH), hooks=[kill])
        assert first.wait().code == -signal.SIGKILL
        killed = time.monotonic()
        other = second.wait()
        slowest = max(slowest, time.monotonic() - killed)
        assert other.code == 1 and "and rank 0 ended or cannot be reached. What was saved" in other.stderr
        assert other.stderr.count("nmt: ") == 1 and "Traceback" not in other.stderr
        worlds.finish(warm, recipe, run)
        wrong += worlds.parts_that_differ(together.expected, run)
    said = f"{len(updates)} deaths of rank 0, the other ended within {slowest:.1f} s, {len(wrong)} differences"
    figure("r3_rank_0_killed", said, "0, < 10 s", not wrong and slowest < 10)


def test_r3_control_another_seed_on_one_rank(
    warm: Warm, recipe: Recipe, together: Together, tmp_path: Path, figure: Callable[..., None]
) -> None:
    worlds.finish(warm, recipe, tmp_path / "run", hooks=[("rank_hooks:other_seed", {"rank": 1})])
    wrong = worlds.parts_that_differ(together.expected, tmp_path / "run")
    figure(
        "r3_control", f"{', '.join(wrong)} differ", "weights, moments, log", {"weights", "moments", "log"} <= {*wrong}
    )


def test_r3_a_run_that_has_ended(warm: Warm, recipe: Recipe, together: Together) -> None:
    """The same command once more ends at once, on both ranks."""
    results = worlds.run(warm, recipe.arguments(together.run, *LENGTH))
    assert [result.code for result in results] == [0, 0], results
    assert ["this run has ended" in result.stderr for result in results] == [True, False]
    assert worlds.parts_that_differ(together.expected, together.run) == []
