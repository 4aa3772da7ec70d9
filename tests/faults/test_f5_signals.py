"""F5: SIGTERM or SIGINT at any moment ends a run with 143 or 130, and what it had learnt is kept."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.recipe import Recipe, differences, fingerprint, scale
from faults.warm import ROOT, Hook, Result, Warm
from nmt.bundle import list_checkpoints
from nmt.training.checkpoint import load_state

# Of each phase: signals in the short form and in full, the longest wait within it, and what makes it long enough.
PHASES: dict[str, tuple[int, int, float, list[Hook]]] = {
    "start-up": (3, 22, 4.0, []),
    "preparing": (2, 18, 0.15, []),
    "update": (2, 18, 0.05, []),
    "validation": (2, 16, 0.5, [("hooks:slow_validation", {"batch_s": 0.2})]),
    "saving": (2, 14, 0.8, [("hooks:slow_fsync", {"seconds": 0.1, "folder": "ckpt-000014"})]),
    "final": (1, 8, 0.5, [("hooks:slow_validation", {"batch_s": 0.2})]),
    "bundle": (0, 4, 0.4, [("hooks:slow_fsync", {"seconds": 0.1, "folder": "bundle.tmp"})]),
}
LENGTH = scale(14, 60)  # updates
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


def cold(args: list[object], number: int, after_s: float) -> Result:
    """A process that imports everything for itself, and gets a signal so soon after it was started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    time.sleep(after_s)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    return Result(process.returncode, stdout, stderr, 0.0)


def lost_updates(run: Path, notes: Path) -> int:
    """Updates that were done and are not in the last checkpoint."""
    done = len(notes.read_text().splitlines()) // 2 if notes.exists() else 0
    checkpoints = list_checkpoints(run)
    return done - (load_state(checkpoints[-1]).update if checkpoints else 0)


def problems(phase: str, result: Result, number: int, run: Path, notes: Path) -> list[str]:
    """What is wrong with a run that got a signal."""
    found = []
    early = phase == "start-up" and result.code == -number and "run folder" not in result.stderr
    finished = phase == "start-up" and result.code == 0  # it came too late: the process had ended
    if result.code != CODES[signal.Signals(number)] and not early and not finished:
        found.append(f"exit {result.code}: {result.stderr[-300:]}")
    if phase != "start-up" and (lost := lost_updates(run, notes)) > 1:
        found.append(f"{lost} updates lost")
    if phase == "validation" and "7" in load_state(list_checkpoints(run)[-1]).scores:
        found.append("validated to the end")
    return found


@pytest.mark.timeout(scale(300, 3600))
def test_f5_signals(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    rng, wrong, codes = random.Random(5), [], Counter[str]()
    shorter = ("--set", f"training.max_updates={LENGTH}")
    assert warm.run(recipe.arguments(tmp_path / "through", *shorter)).code == 0
    expected = fingerprint(tmp_path / "through")
    for phase, (short, full, longest_s, slow) in PHASES.items():
        for count in range(scale(short, full)):
            name, number = f"{phase}-{count}", rng.choice((signal.SIGTERM, signal.SIGINT))
            run, notes, after_s = tmp_path / name, tmp_path / f"{name}.pairs", rng.uniform(0.0, longest_s)
            cache = tmp_path / f"{name}.cache" if phase == "preparing" else None
            if phase == "start-up":
                result = cold(recipe.arguments(run, *shorter), number, after_s)
            else:
                update = rng.randrange(LENGTH) if phase == "update" else 14
                keywords: dict[str, Any] = {"phase": phase, "after_s": after_s, "number": number, "update": update}
                hooks = [("hooks:note_pairs", {"file": str(notes)}), ("hooks:signal_in", keywords), *slow]
                result = warm.run(recipe.arguments(run, *shorter, cache=cache), hooks)
            codes[str(result.code)] += 1
            found = problems(phase, result, number, run, notes)
            again = warm.run(recipe.arguments(run, *shorter, cache=cache))
            found += [again.stderr] if again.code else differences(expected, fingerprint(run))
            wrong += [f"{name} after {after_s:.2f} s: {problem}" for problem in found]
    asked = scale(12, 100)
    said = (
        f"{codes.total()} signals, {len(wrong)} violations, exits {dict(sorted(codes.items()))} {wrong or ''}".strip()
    )
    figure("f5_signals", said, "0 violations", not wrong and codes.total() == asked and codes["0"] < asked / 10)


def test_f5_a_second_signal_ends_at_once(
    warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]
) -> None:
    first = {"phase": "validation", "after_s": 0.0, "number": signal.SIGTERM}
    child = warm.start(
        recipe.arguments(tmp_path / "run"), [("hooks:slow_validation", {"batch_s": 60.0}), ("hooks:signal_in", first)]
    )
    log = tmp_path / "run" / "log.jsonl"
    while child.running() and not (log.exists() and '"update": 7' in log.read_text()):
        time.sleep(0.05)
    time.sleep(1.0)
    assert child.running()
    sent = time.monotonic()
    child.kill(signal.SIGTERM)
    code = child.wait(30.0).code
    seconds = time.monotonic() - sent
    figure("f5_second_signal", f"exit {code} after {seconds:.2f} s", "143 within 1 s", code == 143 and seconds < 1.0)


def test_f5_control_without_handler(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    """Death by the signal itself loses updates, and the same check sees it."""
    run, notes = tmp_path / "run", tmp_path / "pairs"
    hooks = [("hooks:note_pairs", {"file": str(notes)}), ("hooks:stop_after", {"update": 5, "number": signal.SIGKILL})]
    result = warm.run(recipe.arguments(run), hooks)
    assert len(problems("update", result, signal.SIGTERM, run, notes)) == 2
