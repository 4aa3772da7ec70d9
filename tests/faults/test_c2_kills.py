"""C2: SIGKILL at any moment of a run, again and again; it ends bit-equal to one that was never stopped."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from faults.recipe import Recipe, differences, fingerprint, problems_of, scale
from faults.warm import ROOT, Warm


def run_cold(arguments: list[object], seconds: float) -> int:
    """`python -m nmt`, killed after some seconds. Returns: its code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nmt", *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    return process.wait()


def run_warm(warm: Warm, arguments: list[object], seconds: float) -> int:
    child = warm.start(arguments)
    with contextlib.suppress(TimeoutError):
        return child.wait(seconds).code
    return -signal.SIGKILL


def test_c2_random_kills(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    rng, kills, cold_kills, ends, wrong = random.Random(2), 0, 0, 0, []
    wanted, cold = scale(12, 200), scale(1, 20)
    longest = scale(6, 12) / 10 * recipe.seconds  # the short form kills sooner, to end fewer runs
    while kills < wanted:
        run = tmp_path / f"run-{ends}"
        code = -signal.SIGKILL
        while code == -signal.SIGKILL and kills < wanted:
            if cold_kills < cold:
                code = run_cold(recipe.arguments(run), rng.uniform(3, 6) + recipe.seconds * rng.random())
                cold_kills += code == -signal.SIGKILL
            else:
                code = run_warm(warm, recipe.arguments(run), longest * rng.random())
            kills += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)
        wrong += problems_of(warm.run(recipe.arguments(run)), run, recipe)
        ends += 1
    said = (
        f"{kills} kills ({cold_kills} of cold starts), {ends} runs ended, {len(wrong)} of them differ {wrong[:3] or ''}"
    )
    figure("c2_random_kills", said.strip(), "0 differ", kills == wanted and not wrong)


def test_c2_kills_at_operations(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    """Where clocks seldom hit: before an operation on the run folder, or half way through a write."""
    log, run = tmp_path / "log", tmp_path / "counted"
    assert warm.run(recipe.arguments(run), [("shim:count", {"folder": run, "file": log})]).code == 0
    operations = log.read_text().splitlines()
    rng, killed, points, wrong = random.Random(3), 0, scale(3, 200), []
    for number in rng.sample(range(len(operations)), points):
        run = tmp_path / f"run-{number}"
        options = {"folder": run, "operation": number, "half": rng.random() < 0.3}
        code = warm.run(recipe.arguments(run), [("shim:kill_at", options)]).code
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        found = problems_of(warm.run(recipe.arguments(run)), run, recipe)
        wrong += [f"{operations[number]}: {'; '.join(found)}"] if found else []
    said = f"{killed} kills at {points} operations, {len(wrong)} runs differ {wrong[:3] or ''}".strip()
    figure("c2_operation_kills", said, "0 differ", killed >= 0.9 * points and not wrong)


def test_c2_control_a_lost_seed_shows(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    """The comparison sees a resume that draws other dropout masks, and one with another seed."""
    run = tmp_path / "run"
    assert warm.run(recipe.arguments(run, "--set", "training.max_updates=28")).code == 0
    result = warm.run(recipe.arguments(run), [("children:forget_seeding", {})])
    assert result.code == 0, result.stderr
    found = differences(recipe.expected, fingerprint(run))
    assert {"weights", "moments", "log"} <= set(found)
