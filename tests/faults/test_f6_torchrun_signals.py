"""F6: a signal to torchrun, to one worker, or to all of them at once: saved at an update, resumed bit-equal."""

import errno
import random
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults import worlds
from faults.recipe import Recipe, fingerprint, scale
from faults.warm import Child, Hook, Warm
from faults.worlds import LENGTH, UPDATES, torchrun, wait_until
from nmt.training.checkpoint import newest_whole

LIMIT_S = 20
# Everyone at once is what a scheduler does: a worker then gets the signal again from torchrun.
TARGETS: dict[str, dict[str, Any]] = {
    "everyone": {"agent": True, "workers": (0, 1)},
    "worker 1": {"workers": (1,)},
    "worker 0": {"workers": (0,)},
    "torchrun": {"agent": True},
}


@dataclass(frozen=True)
class Moment:
    """When the signal comes: after some update, within the validation after one, or while rank 0 prepares data."""

    phase: str  # "update", "validation" or "preparation"
    update: int
    target: str
    number: int = signal.SIGTERM


def moments() -> list[Moment]:
    rng = random.Random(6)
    some = [Moment("update", rng.randrange(1, UPDATES - 12), target) for target in TARGETS]
    some += [Moment("validation", rng.randrange(7, UPDATES - 6, 7), target) for target in TARGETS]
    some += [Moment("preparation", 0, target) for target in TARGETS]
    some.append(Moment("update", rng.randrange(1, UPDATES - 12), "everyone", signal.SIGINT))  # Ctrl-C
    return some[: scale(1, len(some))]


def problems(recipe: Recipe, folder: Path, moment: Moment) -> tuple[list[str], float]:
    """Stop a run at a moment. Returns: what is not as promised, and the seconds it took to end."""
    run, mark, codes = folder / "run", folder / "mark", folder / "codes"
    hooks: list[Hook] = [("note_exit", {"file": str(codes)})]
    if moment.phase == "validation":
        hooks.append(("linger_in_validation", {"update": moment.update, "file": str(mark)}))
    if moment.phase == "preparation":
        hooks.append(("linger_in_preparation", {"file": str(mark)}))
    with torchrun(folder, recipe.arguments(run, *LENGTH), hooks) as group:
        if moment.phase == "update":
            wait_until(lambda: worlds.reached(run) >= moment.update or not group.running(), "the update")
        else:
            wait_until(lambda: Path(f"{mark}.0").exists() or not group.running(), moment.phase)
            time.sleep(0.2)
        began = time.monotonic()
        group.send(moment.number, **TARGETS[moment.target])
        group.wait()
        seconds = time.monotonic() - began
        output = group.output
    newest, damaged = newest_whole(run)
    checks = {"in time": seconds <= LIMIT_S, "whole": not damaged, "no traceback of nmt": "nmt/" not in output}
    if moment.phase == "preparation":
        checks["says so"] = "nmt: Stopped by a signal; what is complete" in output
        checks["nothing saved"] = newest is None
    else:
        saved = int(newest.name.removeprefix("ckpt-")) if newest else 0
        said = re.findall(r"nmt: Stopped by a signal after update (\d+);", output)
        checks["says so, once"] = said == [str(saved)] and "while starting" not in output
        checks["at the update"] = saved >= moment.update if moment.phase == "update" else saved == moment.update
        checks["exit codes"] = worlds.notes(codes, 2) == [[str(128 + moment.number)]] * 2
    if "worker" in moment.target:
        checks["torchrun reports it"] = bool(re.search(r"exitcode\W+143", output))
    wrong = [name for name, fine in checks.items() if not fine]
    return wrong and [*wrong, output[-3000:]], seconds


@pytest.mark.slow  # torchrun and its workers import torch, three times
def test_f6_signals_under_torchrun(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    worlds.finish(warm, recipe, tmp_path / "whole")
    expected, wrong, slowest, tried = fingerprint(tmp_path / "whole"), [], 0.0, moments()
    for number, moment in enumerate(tried):
        folder = tmp_path / str(number)
        found, seconds = problems(recipe, folder, moment)
        slowest = max(slowest, seconds)
        worlds.finish(warm, recipe, folder / "run")
        found += worlds.parts_that_differ(expected, folder / "run")
        wrong += [f"{moment}: {'; '.join(found)}"] if found else []
    print("\n".join(wrong))
    said = f"{len(tried) - len(wrong)} of {len(tried)} moments, ended within {slowest:.1f} s, resumed bit-equal"
    figure("f6_torchrun_signals", said, f"all, <= {LIMIT_S} s", not wrong)


def stop_during_the_save(warm: Warm, recipe: Recipe, run: Path, hooks: Iterable[Hook] = ()) -> list[Child]:
    """Signal one rank, and both twice while rank 0 writes: a scheduler does, and torchrun again."""
    stop = ("rank_hooks:signal_after", {"update": 5, "rank": 1, "number": int(signal.SIGTERM)})
    slow = ("rank_hooks:slow_disk", {"seconds": 2.0, "file": run / "writing"})
    children = worlds.start(warm, recipe.arguments(run, *LENGTH), hooks=[stop, slow, *hooks])
    wait_until((run / "writing.0").exists, "the save")
    for child in children * 2:
        child.kill(signal.SIGTERM)
        time.sleep(0.1)  # else two are one
    return children


def test_f6_all_wait_for_the_save(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    """When a rank ends torchrun gives the others 30 seconds: that clock must not run while rank 0 writes."""
    first, second = stop_during_the_save(warm, recipe, tmp_path)
    assert second.wait().code == 143
    newest, _ = newest_whole(tmp_path)
    assert newest is not None and newest.name == "ckpt-000005"
    assert first.wait().code == 143


def test_f6_control_a_second_signal_ends_it(
    warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]
) -> None:
    children = stop_during_the_save(warm, recipe, tmp_path, [("rank_hooks:impatient", {})])
    codes, (newest, _) = [child.wait().code for child in children], newest_whole(tmp_path)
    figure("f6_control", f"{'nothing' if newest is None else newest.name} saved, codes {codes}", "nothing", not newest)


def test_f6_a_save_that_fails(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    """A full disk after the signal: all end as it is documented, and rank 0 says why."""
    stop = ("rank_hooks:signal_after", {"update": 5, "rank": 1, "number": int(signal.SIGTERM)})
    full = ("shim:fail_at", {"folder": tmp_path / "checkpoints", "operation": 0, "errno": errno.ENOSPC})
    results = worlds.run(warm, recipe.arguments(tmp_path, *LENGTH), hooks=[stop, full])
    assert [result.code for result in results] == [4, 4], results
    assert "Cannot write" in results[0].stderr and "nmt: " not in results[1].stderr
