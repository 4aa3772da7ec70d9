"""Errors before training, with two ranks: each ends with the documented code, one of them says why, nobody waits."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import worlds
from faults.recipe import Recipe, scale
from faults.warm import Warm
from faults.worlds import LENGTH
from nmt.bundle import list_checkpoints

LIMIT_S = 15


def unequal_lines(recipe: Recipe, run: Path) -> list[object]:
    corpus = run.parent / "corpus"
    corpus.mkdir()
    for language in ("en", "de"):
        shutil.copy(recipe.folder / f"train.{language}", corpus)
    with (corpus / "train.de").open("a") as file:
        file.write("noch eine zeile\n")
    return ["--data", corpus]


def damaged_checkpoint(recipe: Recipe, run: Path) -> list[object]:
    shutil.copytree(recipe.reference, run)
    for folder in list_checkpoints(run):
        (folder / "state.json").write_text("{}")
    return []


def other_config(recipe: Recipe, run: Path) -> list[object]:
    shutil.copytree(recipe.reference, run)
    return ["--set", "training.label_smoothing=0.2"]


def other_world(recipe: Recipe, run: Path) -> list[object]:
    shutil.copytree(recipe.reference, run)
    return []


def file_as_run(recipe: Recipe, run: Path) -> list[object]:
    run.write_text("not a folder")
    return []


def no_such_metric(recipe: Recipe, run: Path) -> list[object]:
    return ["--set", "validation.tokenize=none-such"]


CASES: dict[str, tuple[Callable[[Recipe, Path], list[object]], int, str]] = {
    "unequal lines": (unequal_lines, 3, "lines"),
    "damaged checkpoint": (damaged_checkpoint, 5, "No checkpoint of"),
    "other config": (other_config, 2, "holds a run with another config: training.label_smoothing = 0.2"),
    "other world": (other_world, 2, "is a run of 1 rank, this is one of 2"),
    "a file as run folder": (file_as_run, 4, "Cannot use the run folder"),
    "no such metric": (no_such_metric, 2, "tokenize"),
}


def check(codes: list[int], said: list[str], seconds: float, code: int, message: str) -> list[str]:
    everything = "".join(said)
    checks = {
        f"codes {codes}": codes == [code, code],
        "said once, by rank 0": everything.count("nmt: ") == 1 and message in said[0].partition("nmt: ")[2],
        "no traceback": "Traceback" not in everything,
        f"{seconds:.1f} s": seconds < LIMIT_S,
    }
    return [name for name, fine in checks.items() if not fine]


def test_f0_errors_before_training(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    wrong = []
    for name, (prepare, code, message) in CASES.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        options = [*prepare(recipe, folder / "run"), *LENGTH]
        results = worlds.run(warm, recipe.arguments(folder / "run", *options))
        seconds = max(result.seconds for result in results)
        found = check([r.code for r in results], [r.stderr for r in results], seconds, code, message)
        wrong += [f"{name}: {', '.join(found)} {[r.stderr[-500:] for r in results]}"] if found else []
    figure(
        "f0_errors", f"{len(CASES) - len(wrong)} of {len(CASES)} as documented {wrong or ''}".strip(), "all", not wrong
    )


def test_f0_a_held_lock(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    """The first run is not disturbed by a second one."""
    run = tmp_path / "run"
    hold = ("rank_hooks:linger_in_preparation", {"file": tmp_path / "mark"})
    holding = worlds.start(warm, recipe.arguments(run), world=1, hooks=[hold])
    worlds.wait_until(lambda: (tmp_path / "mark.0").exists(), "preparation")
    began = time.monotonic()
    results = worlds.run(warm, recipe.arguments(run))
    seconds = time.monotonic() - began
    assert check([r.code for r in results], [r.stderr for r in results], seconds, 2, "Another nmt train is using") == []
    assert holding[0].running()
    holding[0].kill()
    holding[0].wait()


@pytest.mark.skipif(scale(0, 1) == 0, reason="only the full form starts torchrun for it")
def test_f0_a_held_lock_under_torchrun(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    run, codes = tmp_path / "run", tmp_path / "codes"
    hold = ("rank_hooks:linger_in_preparation", {"file": tmp_path / "mark"})
    holding = worlds.start(warm, recipe.arguments(run), world=1, hooks=[hold])
    worlds.wait_until(lambda: (tmp_path / "mark.0").exists(), "preparation")
    with worlds.torchrun(tmp_path / "second", recipe.arguments(run), [("note_exit", {"file": str(codes)})]) as group:
        assert group.wait() == 1
        output = group.output
    assert worlds.notes(codes, 2) == [["2"], ["2"]] and output.count("nmt: ") == 1
    holding[0].kill()
    holding[0].wait()
