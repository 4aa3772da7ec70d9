"""C6: two `nmt train` on one run folder."""

import time
from collections.abc import Callable
from pathlib import Path

from faults.recipe import Recipe, assert_finished
from faults.warm import Warm


def test_c6_the_second_is_refused(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    run = tmp_path / "run"
    first = warm.start(recipe.arguments(run))
    while not (run / "log.jsonl").exists() and first.running():
        time.sleep(0.01)
    second = warm.run(recipe.arguments(run))
    assert first.running()
    assert f"Another nmt train is using {run}" in second.stderr
    assert_finished(first.wait(), run, recipe)
    figure("c6_second_trainer", f"code {second.code}", "2", second.code == 2)
    figure("c6_second_trainer_s", f"{second.seconds:.2f}", "< 1", second.seconds < 1)
    assert warm.run(recipe.arguments(run)).code == 0  # the control: the lock goes with its holder
