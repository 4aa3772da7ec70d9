"""R1, R2: stopped at any update, and resumed in a new process, a run ends as if it had never been stopped."""

import ast
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from faults.recipe import Recipe, differences, fingerprint, scale
from faults.warm import Hook, Warm

LENGTH = scale(28, 60)  # updates


class Runs:
    """One run folder and the processes that work on it one after another."""

    def __init__(self, warm: Warm, recipe: Recipe, folder: Path, *settings: str) -> None:
        self.warm, self.recipe, self.folder = warm, recipe, folder
        self._settings = [argument for setting in settings for argument in ("--set", setting)]

    def go(self, *hooks: Hook, code: int = 0, more: Sequence[str] = ()) -> str:
        """Start or resume. Returns: stderr."""
        noting = ("hooks:note_pairs", {"file": self.folder.with_suffix(".pairs")})
        result = self.warm.run(self.recipe.arguments(self.folder, *self._settings, *more), [*hooks, noting])
        assert result.code == code, result.stderr
        return result.stderr

    def outcome(self) -> dict[str, Any]:
        """The fingerprint, and the pairs of all micro-batches in the order of training."""
        return {**fingerprint(self.folder), "pairs": self.folder.with_suffix(".pairs").read_text().split("\n")}


@pytest.fixture(scope="module")
def whole(warm: Warm, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of a run that is not stopped."""
    runs = Runs(warm, recipe, tmp_path_factory.mktemp("whole") / "run", f"training.max_updates={LENGTH}")
    runs.go()
    outcome = runs.outcome()
    assert len(outcome["pairs"]) == 2 * LENGTH + 1
    assert LENGTH < 60 or differences(recipe.expected, outcome) == []
    return outcome


def stop(update: int, inside: bool = False) -> Hook:
    return ("hooks:stop_inside" if inside else "hooks:stop_after", {"update": update})


def epoch_ends(recipe: Recipe) -> list[int]:
    """The updates that reach into a new epoch."""
    epochs = [ast.literal_eval(line)[1:3] for line in recipe.expected["log"] if line.startswith("['update'")]
    return [update for (_, before), (update, now) in itertools.pairwise(epochs) if now != before]


@pytest.mark.timeout(scale(300, 3600))
def test_r1_resume_points(
    warm: Warm, recipe: Recipe, whole: dict[str, Any], tmp_path: Path, figure: Callable[..., None]
) -> None:
    """In full each point in a run of its own; else one run is stopped at all the points."""
    ends, every = epoch_ends(recipe), scale(0, 1)
    points = list(range(1, 60)) if every else sorted({1, 2, 7, 13, 14, 16, 20, 27, *ends[:2]})
    assert len(ends) >= 5 and set(points) >= set(ends[:2]) and {update % 2 for update in points} == {0, 1}
    wrong = []
    for chain in [[update] for update in points] if every else [points]:
        runs = Runs(warm, recipe, tmp_path / f"at-{chain[0]}", f"training.max_updates={LENGTH}")
        for update in chain:
            said = runs.go(stop(update, inside=update % 2 == 0), code=143)
            assert f"Stopped by a signal after update {update};" in said
        assert f"update {chain[-1]}, " in runs.go()
        wrong += [f"{chain}: {part}" for part in differences(whole, runs.outcome())]
    figure("r1_resume_points", f"{len(points)} points, {len(wrong)} differences {wrong or ''}".strip(), "0", not wrong)


def test_r1_a_logged_mean_spans_a_resume(
    warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]
) -> None:
    settings = ("training.log_every=4", "training.max_updates=21")
    stopped, through = (Runs(warm, recipe, tmp_path / name, *settings) for name in ("stopped", "through"))
    through.go()
    stopped.go(stop(6), code=143)
    stopped.go(stop(13), code=143)
    stopped.go()
    wrong = differences(through.outcome(), stopped.outcome())
    figure("r1_log_every_4", f"2 resumes, {len(wrong)} differences {wrong or ''}".strip(), "0", not wrong)


@pytest.mark.parametrize(("hook", "seen_in"), [("no_seeding", "weights"), ("lose_position", "pairs")])
def test_r1_control(
    warm: Warm, recipe: Recipe, tmp_path: Path, hook: str, seen_in: str, figure: Callable[..., None]
) -> None:
    """Without one part of the mechanism the same comparison fails."""
    broken = (f"hooks:{hook}", {})
    through, stopped = (Runs(warm, recipe, tmp_path / name, "training.max_updates=14") for name in ("one", "two"))
    through.go(broken)
    stopped.go(broken, stop(10), code=143)
    stopped.go(broken)
    wrong = differences(through.outcome(), stopped.outcome())
    figure(f"r1_control_{hook}", f"differs in {', '.join(wrong)}", "differs", {seen_in, "weights", "log"} <= {*wrong})


@pytest.mark.timeout(scale(300, 3600))
def test_r2_chains(
    warm: Warm, recipe: Recipe, whole: dict[str, Any], tmp_path: Path, figure: Callable[..., None]
) -> None:
    rng, wrong, chains = random.Random(2), [], scale(3, 20)
    for number in range(chains):
        runs = Runs(warm, recipe, tmp_path / str(number), f"training.max_updates={LENGTH}")
        first, second = sorted(rng.sample(range(1, LENGTH), 2))
        if number % 2:  # its limit is reached, of which the second process finds nothing more to do
            first -= first % 7
            limit = ["--set", f"training.max_updates={first or 7}"]
            runs.go(more=limit)
            assert "this run has ended" in runs.go(more=limit)
            second = max(second, 8)
        else:
            runs.go(stop(first), code=143)
            assert "Stopped by a signal; what is complete" in runs.go(("hooks:stop_at_the_start", {}), code=143)
        runs.go(stop(second), code=143)
        runs.go()
        wrong += [f"{number}: {part}" for part in differences(whole, runs.outcome())]
    said = f"{chains} chains of 3 resumes, {len(wrong)} differences {wrong or ''}".strip()
    figure("r2_chains", said, "0", not wrong)
