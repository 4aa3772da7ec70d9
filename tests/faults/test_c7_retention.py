"""C7: what a kill in the middle of deleting or replacing leaves must not be taken for something else.

C1 covers the deletion of checkpoints; here are the final bundle of a run that goes on, and entries moved aside.
"""

import os
import shutil
from pathlib import Path

from faults.recipe import Recipe, problems_of, scale
from faults.warm import Warm


def test_c7_a_bundle_half_deleted(warm: Warm, recipe: Recipe, halfway: Path, tmp_path: Path) -> None:
    log, run = tmp_path / "log", tmp_path / "run"
    shutil.copytree(halfway, run)
    to_36 = recipe.arguments(run, "--set", "training.max_updates=36")  # the bundle goes with the save of update 35
    assert warm.run(to_36, [("shim:count", {"folder": run, "file": log})]).code == 0
    operations = log.read_text().splitlines()
    points = [n for n, operation in enumerate(operations) if operation.split()[1].split("/")[0].startswith("bundle")]
    codes = []
    for number in points[: scale(5, 8)]:  # of the old one's end; the others are of the new one's making
        shutil.rmtree(run)
        shutil.copytree(halfway, run)
        assert warm.run(to_36, [("shim:kill_at", {"folder": run, "operation": number})]).code == -9
        codes.append(warm.run(["translate", "--model", run, "--input", recipe.folder / "train.en"]).code)
    assert set(codes) == {0}


def test_c7_moved_aside_by_a_process_whose_number_lives_again(
    warm: Warm, recipe: Recipe, halfway: Path, tmp_path: Path
) -> None:
    """A kill between the two renames of a replaced checkpoint; then, as in a container, the number is another's."""
    run = tmp_path / "run"
    shutil.copytree(halfway, run)
    for folder in (run / "checkpoints").iterdir():
        folder.rename(folder.with_name(f"{folder.name}.old-{os.getpid()}"))
    result = warm.run(recipe.arguments(run))
    assert problems_of(result, run, recipe) == []
    assert "resuming from" in result.stderr
