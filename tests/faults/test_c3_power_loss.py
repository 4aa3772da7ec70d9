"""C3: a power loss while a checkpoint is saved, by replaying the log of operations (kill -9 loses no page cache)."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import shim
from faults.children import save_made_up
from faults.power_loss import PowerLoss, Tree, read_tree, write_tree
from faults.recipe import scale, tree
from faults.shim import Operation
from nmt.bundle import list_checkpoints
from nmt.storage.atomic import remove_stale
from nmt.training.checkpoint import newest_whole

# Saved before, and saved under the shim; only the last checkpoint and the best (14) are kept.
SCENARIOS = {"newer": (7, 14), "replaced": (14, 14), "beside the best": (14, 21), "first": (None, 7)}


def explore(tmp_path: Path, scenario: str, per_prefix: int, fsyncs: bool) -> tuple[int, list[str]]:
    """Returns: states explored, and what is wrong in some of them."""
    earlier, update = SCENARIOS[scenario]
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    if earlier is not None:
        save_made_up(run, earlier, keep_last=1)
    before, committed = read_tree(run), [(path.name, tree(path)) for path in list_checkpoints(run)]
    with shim.recording(run) as log:
        save_made_up(run, update, keep_last=1)
    new = [(path.name, tree(path)) for path in list_checkpoints(run)][-1]
    # From here on the save is done and must outlast everything; before, the old or the new may be found.
    done = max(n for n, operation in enumerate(log) if (operation.kind, operation.path) == ("fsync", "checkpoints")) + 1
    model = PowerLoss(before, log, fsyncs=fsyncs)
    assert model.after(len(model.steps), {}) == read_tree(run)  # the model is one of what really happened
    seen, wrong = set(), []
    for length, state in model.states(per_prefix, random.Random(3)):
        is_done = fsyncs and length >= done
        key = (is_done, frozenset(state.items()))
        if key in seen:
            continue
        seen.add(key)
        allowed = [new] if is_done else [*committed, new]
        problem = problem_of(state, tmp_path / "state", allowed, must_load=is_done or earlier is not None)
        wrong += [problem] if problem else []
    return len(seen), wrong


def problem_of(state: Tree, run: Path, allowed: list[object], must_load: bool) -> str | None:
    """Start on what is left as the next `nmt train` does."""
    shutil.rmtree(run, ignore_errors=True)
    write_tree(state, run)
    remove_stale(run / "checkpoints")
    newest, _ = newest_whole(run)
    if newest is None:
        return "nothing loads" if must_load else None
    return None if (newest.name, tree(newest)) in allowed else f"{newest.name} is accepted, and wrong"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_c3_power_loss(tmp_path: Path, scenario: str, figure: Callable[..., None]) -> None:
    count, wrong = explore(tmp_path, scenario, scale(40, 3000), fsyncs=True)
    said = f"{len(wrong)} violations in {count} states {sorted(set(wrong)) or ''}".strip()
    figure(f"c3_power_loss_{scenario.replace(' ', '_')}", said, "0", not wrong and count > 20)


def test_c3_control_without_fsync(tmp_path: Path, figure: Callable[..., None]) -> None:
    count, wrong = explore(tmp_path, "newer", scale(20, 60), fsyncs=False)
    figure("c3_control_no_fsync", f"{len(wrong)} violations in {count} states", "> 0", "nothing loads" in wrong)


def test_c3_the_model() -> None:
    log = [
        Operation("mkdir", "d"),
        Operation("create", "d/a"),
        Operation("write", "d/a", data=b"12"),
        Operation("write", "d/a", data=b"34", offset=2),
        Operation("fsync", "d/a"),
        Operation("rename", "d", target="e"),
    ]
    model = PowerLoss({}, log)
    assert model.after(6, {}) == {"e": None, "e/a": b"1234"}
    assert model.after(6, {5: "lost"}) == {"d": None, "d/a": b"1234"}
    assert model.after(4, {2: "lost", 3: "cut short"}) == {"d": None, "d/a": b"\0\x003"}
    assert model.after(6, {1: "lost"}) == {"e": None}
    assert {frozenset(state) for _, state in PowerLoss({}, log).states(100, random.Random(0))} == {
        frozenset(names) for names in ((), ("d",), ("d", "d/a"), ("e",), ("e", "e/a"))
    }
