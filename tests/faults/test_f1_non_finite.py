"""F1, F2: NaN, infinity and a hopeless validation stop a run before they reach the weights or a checkpoint."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.recipe import Recipe, differences, fingerprint, scale, tree
from faults.warm import Hook, Result, Warm
from nmt.bundle import list_checkpoints

UPDATE = {"logged": 12, "not logged": 10}  # with log_every = 4; the checkpoint before is that of update 7
ALL = [
    *itertools.product(("loss", "gradient"), ("nan", "inf"), UPDATE, ("fp32",)),
    *itertools.product(("loss", "gradient"), ("nan", "inf"), ("logged",), ("bf16",)),
]
SHORT = [ALL[0], ALL[7], ALL[10]]


def arguments(recipe: Recipe, run: Path, precision: str = "fp32") -> list[object]:
    settings = ("training.log_every=4", "training.max_updates=14", f"training.precision={precision}")
    return recipe.arguments(run, *(word for setting in settings for word in ("--set", setting)))


def spoil(update: int, where: str, value: str, notes: Path) -> Hook:
    return ("hooks:non_finite", {"update": update, "where": where, "value": float(value), "notes": str(notes)})


def problems(result: Result, run: Path, notes: Path, where: str, update: int) -> list[str]:
    """What is not as promised after an injection."""
    before, after, pairs = json.loads(notes.read_text())
    suspects = pairs[1] if where == "loss" else [pair for of_batch in pairs for pair in of_batch]
    found = {
        "exit code": result.code != 6,
        "weights or moments changed": before != after,
        "the message": f"The {where} of update {update} is not finite" not in result.stderr,
        "the pairs": f"training pairs {suspects[:20]}" not in result.stderr,
        "checkpoints": [folder.name for folder in list_checkpoints(run)] != ["ckpt-000007"],
        "a bundle": (run / "bundle").exists(),
    }
    return [name for name, wrong in found.items() if wrong]


def test_f1_injections(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    through = {}
    for precision in ("fp32", "bf16"):
        run = tmp_path / precision
        assert warm.run(arguments(recipe, run, precision)).code == 0
        through[precision] = fingerprint(run)
    assert differences(through["fp32"], through["bf16"])
    cases = ALL if scale(0, 1) else SHORT
    wrong = []
    for number, (where, value, logged, precision) in enumerate(cases):
        run, notes, update = tmp_path / str(number), tmp_path / f"{number}.json", UPDATE[logged]
        result = warm.run(arguments(recipe, run, precision), [spoil(update, where, value, notes)])
        found = problems(result, run, notes, where, update)
        stood = tree(run / "checkpoints")
        again = warm.run(arguments(recipe, run, precision))  # without the fault
        found += [f"then {part}" for part in differences(through[precision], fingerprint(run))]
        found += ["update 7 was written again"] if not tree(run / "checkpoints").items() >= stood.items() else []
        found += ["no resume"] if again.code or "ckpt-000007: update 7," not in again.stderr else []
        wrong += [f"{where} {value} {logged} {precision}: {', '.join(found)}"] if found else []
    said = f"{len(cases) - len(wrong)} of {len(cases)} stopped before the optimiser {wrong or ''}".strip()
    figure("f1_injections", said, "all", not wrong)


def test_f1_looked_at_later(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    """As on CUDA. The run ends one update later where nothing is logged, and the same stands."""
    later: Hook = ("hooks:look_later", {})
    assert warm.run(arguments(recipe, tmp_path / "whole")).code == 0
    assert warm.run(arguments(recipe, tmp_path / "later"), [later]).code == 0
    whole = fingerprint(tmp_path / "whole")
    wrong = [f"without a fault {part}" for part in differences(whole, fingerprint(tmp_path / "later"))]
    cases = [case for case in ALL if case[3] == "fp32"] if scale(0, 1) else [ALL[0], ALL[3], ALL[5]]
    for number, (where, value, logged, _) in enumerate(cases):
        run, notes, update = tmp_path / str(number), tmp_path / f"{number}.json", UPDATE[logged]
        result = warm.run(arguments(recipe, run), [later, spoil(update, where, value, notes)])
        found = problems(result, run, notes, where, update)
        found += ["no resume"] if warm.run(arguments(recipe, run), [later]).code else []
        found += [f"then {part}" for part in differences(whole, fingerprint(run))]
        wrong += [f"{where} {value} {logged}: {', '.join(found)}"] if found else []
    figure("f1_looked_at_later", f"{len(wrong)} of {len(cases)} wrong {wrong or ''}".strip(), "0", not wrong)


def test_f1_looked_at_later_control(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    run, notes = tmp_path / "run", tmp_path / "notes"
    hooks: list[Hook] = [("hooks:look_later", {}), spoil(10, "loss", "nan", notes), ("hooks:step_in_any_case", {})]
    assert problems(warm.run(arguments(recipe, run), hooks), run, notes, "loss", 10) == ["weights or moments changed"]


def test_f1_control(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    run, notes = tmp_path / "run", tmp_path / "notes"
    hooks = [spoil(12, "loss", "nan", notes), ("hooks:accept_non_finite", {})]
    found = problems(warm.run(arguments(recipe, run), hooks), run, notes, "loss", 12)
    figure("f1_control", ", ".join(found), "weights changed", "weights or moments changed" in found)


@pytest.mark.parametrize(
    ("value", "of_guessing", "from_update", "stops_at"),
    [
        (float("nan"), False, 10, 14),
        (float("inf"), False, 1, 7),  # even while young
        (1.001, True, 8, 14),
        (1.001, True, 1, 14),  # young at 7, before twice the warm-up of 4
        (0.999, True, 1, None),  # the control
    ],
)
def test_f2_hopeless(
    warm: Warm,
    recipe: Recipe,
    tmp_path: Path,
    value: float,
    of_guessing: bool,
    from_update: int,
    stops_at: int | None,
    figure: Callable[..., None],
) -> None:
    hook = ("hooks:validation_loss", {"from_update": from_update, "value": value, "of_guessing": of_guessing})
    result = warm.run(arguments(recipe, tmp_path / "run"), [hook])
    updates = [int(folder.name[-6:]) for folder in list_checkpoints(tmp_path / "run")]
    if stops_at is None:
        assert result.code == 0 and updates == [7, 14]
        return
    right = result.code == 6 and updates == [update for update in (7, 14) if update < stops_at]
    right &= f"The validation loss at update {stops_at} is" in result.stderr and not (tmp_path / "run/bundle").exists()
    name = f"f2_{value:g}{'_of_guessing' * of_guessing}_from_{from_update}"
    figure(name, f"exit {result.code} at update {stops_at}, checkpoints {updates}", "none of that update", right)
