"""F1 on one rank: what is not finite there stops all, before a weight is changed."""

import re
from collections.abc import Callable
from pathlib import Path

from faults import worlds
from faults.recipe import Recipe, fingerprint, scale
from faults.warm import Hook, Warm
from faults.worlds import LENGTH
from nmt.training.checkpoint import newest_whole

# Of 7 updates with validation and a log line each; 9 is between two checkpoints, 14 at one.
CASES = [
    (place, kind, update, rank)
    for update in (9, 14)
    for rank in (1, 0)
    for place in ("loss", "gradient")
    for kind in ("nan", "inf")
]


def pairs_of(folder: Path, rank: int, update: int) -> set[str]:
    lines = [line.split() for line in (folder / f"pairs.{rank}").read_text().splitlines()]
    return {pair for _, before, *pairs in lines for pair in pairs if int(before) + 1 == update}


def problems(
    warm: Warm, recipe: Recipe, folder: Path, place: str, kind: str, update: int, rank: int, *more: Hook
) -> list[str]:
    """Let a number of one rank be not finite. Returns: what is not as promised."""
    hooks: list[Hook] = [
        ("rank_hooks:nan_in", {"place": place, "update": update, "rank": rank, "kind": kind}),
        ("rank_hooks:note_pairs", {"file": folder / "pairs"}),
        ("rank_hooks:note_refusal", {"file": folder / "refusal"}),
        *more,
    ]
    results = worlds.run(warm, recipe.arguments(folder / "run", *LENGTH), hooks=hooks)
    stderr = "".join(result.stderr for result in results)
    named = (
        set(re.search(r"training pairs \[([\d, ]*)\]", stderr)[1].split(", ")) if "training pairs" in stderr else set()
    )
    refusals = [line.split() for lines in worlds.notes(folder / "refusal", 2) for line in lines]
    newest, damaged = newest_whole(folder / "run")
    mine, other = pairs_of(folder, rank, update), pairs_of(folder, 1 - rank, update)
    checks = {
        "codes": [result.code for result in results] == [6, 6],
        "message": stderr.count("nmt: ") == 1 and f"The {place} of update {update} is not finite" in results[0].stderr,
        "no traceback": "Traceback" not in stderr,
        "refused": [int(done) + 1 for done, _, _ in refusals] == [update, update],
        "weights": len({weights for _, *both in refusals for weights in both}) == 1,
        "pairs": bool(named & mine) and (place == "gradient" or not named & other),
        "checkpoint": newest is not None and newest.name == "ckpt-000007" and not damaged,
    }
    return [name for name, fine in checks.items() if not fine]


def test_f1_one_rank(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    tried = CASES[: scale(2, len(CASES)) * 2 : scale(2, 1)]
    wrong = []
    for number, case in enumerate(tried):
        (tmp_path / str(number)).mkdir()
        found = problems(warm, recipe, tmp_path / str(number), *case)
        wrong += [f"{' '.join(map(str, case))}: {', '.join(found)}"] if found else []
    said = f"{len(tried) - len(wrong)} of {len(tried)} stopped before the step on both ranks {wrong or ''}".strip()
    figure("f1_one_rank", said, "all", not wrong)
    # The last checkpoint is good: without the fault the run ends as if nothing had been.
    worlds.finish(warm, recipe, tmp_path / "whole")
    worlds.finish(warm, recipe, tmp_path / "0" / "run")
    assert worlds.parts_that_differ(fingerprint(tmp_path / "whole"), tmp_path / "0" / "run") == []


def test_f1_control_nobody_refuses(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    found = problems(warm, recipe, tmp_path, "gradient", "nan", 9, 1, ("rank_hooks:careless", {}))
    figure("f1_control", f"{', '.join(found)} wrong", "message, refused, weights", {"refused", "weights"} <= set(found))
