"""C1, C7: SIGKILL at every file-system operation of a checkpoint's save and of retention."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.children import kept, made_up_state, save_made_up
from faults.recipe import tree
from faults.warm import Warm
from nmt.bundle import list_checkpoints
from nmt.storage.atomic import remove_stale
from nmt.storage.manifest import damage
from nmt.training.checkpoint import newest_whole

SAVES = "children:save_made_up"
# The checkpoints there are, the one being saved, the one saved next.
SCENARIOS = {
    "none": ((), 7, 14),
    "older": ((7, 14, 21), 28, 35),  # of which 7 is deleted, and 14 stays as the best
    "again": ((7, 14), 14, 21),  # a signal right after a save: the same update once more
}


def committed(folder: Path, updates: tuple[int, ...]) -> dict[str, dict[str, bytes]]:
    """Every checkpoint's bytes, as saved without a fault."""
    for update in updates:
        save_made_up(folder, update, keep_last=99)
    return {path.name: tree(path) for path in list_checkpoints(folder)}


def crash(warm: Warm, run: Path, update: int, number: int, half: bool, hooks: list[Any]) -> bool:
    """Save, killed at an operation. Returns: whether there was one of that number."""
    kill = ("shim:kill_at", {"folder": run / "checkpoints", "operation": number, "half": half})
    result = warm.call(SAVES, [kill, *hooks], run=str(run), update=update)
    assert result.code in (-9, 0), result.stderr
    return result.code == -9


def violations(run: Path, before: tuple[int, ...], update: int, whole: dict[str, dict[str, bytes]]) -> list[str]:
    """What is wrong with a run folder after a crash, as its next run finds it."""
    remove_stale(run / "checkpoints")
    newest, torn = newest_whole(run)
    allowed = {f"ckpt-{u:06d}" for u in (*before[-1:], update)}
    found = [f"torn: {folder.name}: {problem}" for folder, problem in torn]
    if newest is None:
        return [*found, *(["nothing loads"] if before else [])]
    if newest.name not in allowed:
        found.append(f"{newest.name} loads")
    if tree(newest) != whole[newest.name]:
        found.append(f"{newest.name} is not what was committed")
    state = made_up_state(int(newest.name[-6:]))
    missing = [folder for folder in kept(run, state) if folder.name in whole and damage(folder) is not None]
    return found + [f"not kept: {folder.name}" for folder in missing]


def after_the_next_save(run: Path, following: int) -> list[str]:
    save_made_up(run, following)
    wanted = {folder.name for folder in kept(run, made_up_state(following))}
    there = {path.name for path in (run / "checkpoints").iterdir()}
    found = [f"orphan: {name}" for name in sorted(there - wanted)]
    return found + ([] if newest_whole(run)[0].name == f"ckpt-{following:06d}" else ["the next save is not there"])


def crash_everywhere(
    warm: Warm, folder: Path, scenario: str, hooks: tuple[Any, ...] = (), every: int = 1
) -> tuple[int, list[str]]:
    """Die before every operation, and half way through every write. Returns: points tried, and what was wrong."""
    before, update, following = SCENARIOS[scenario]
    start, run = folder / "start", folder / "run"
    (start / "checkpoints").mkdir(parents=True)
    for earlier in before:
        save_made_up(start, earlier, keep_last=99)
    whole = committed(folder / "whole", (*before, update))
    log = folder / "log"
    shutil.copytree(start, run)
    counting = ("shim:count", {"folder": run / "checkpoints", "file": log})
    assert warm.call(SAVES, [counting, *hooks], run=str(run), update=update).code == 0
    kinds = [line.split()[0] for line in log.read_text().splitlines()]
    points = [(number, False) for number in range(len(kinds))]
    points += [(number, True) for number, kind in enumerate(kinds) if kind == "write"]
    points, wrong = points[::every], []
    for number, half in points:
        shutil.rmtree(run)
        shutil.copytree(start, run)
        assert crash(warm, run, update, number, half, list(hooks))
        problems = violations(run, before, update, whole) + after_the_next_save(run, following)
        if problems:
            wrong.append(f"{scenario}, operation {number} ({kinds[number]}{', half' * half}): {'; '.join(problems)}")
    return len(points), wrong


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_c1_c7_every_crash_point(warm: Warm, tmp_path: Path, scenario: str, figure: Callable[..., None]) -> None:
    points, wrong = crash_everywhere(warm, tmp_path, scenario)
    said = f"{points - len(wrong)} of {points} {wrong[:5] or ''}".strip()
    figure(f"c1_crash_points_{scenario}", said, "all", not wrong and points > 25)


def test_c1_control_a_save_in_place_is_caught(warm: Warm, tmp_path: Path, figure: Callable[..., None]) -> None:
    points, wrong = crash_everywhere(warm, tmp_path, "older", (("children:save_in_place", {}),), every=3)
    torn = [problem for problem in wrong if "torn" in problem]
    figure("c1_control_in_place", f"{len(torn)} of {points} torn", "> 0", len(torn) > 3)
