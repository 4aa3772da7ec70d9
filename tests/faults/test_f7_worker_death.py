"""F7: `torchrun --max-restarts=20` goes on after kill -9 of a worker, and ends bit-equal."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from faults import worlds
from faults.recipe import Recipe, fingerprint, scale
from faults.warm import Warm
from faults.worlds import LENGTH, UPDATES, Torchrun, torchrun, wait_until

HANG_S = 60


def kill_one(group: Torchrun, run: Path, update: int, rank: int, dead: set[int]) -> None:
    """Kill a worker of the current attempt after an update, and wait until both have ended."""

    def attempt() -> list[int]:
        return [pid for pid in group.workers() if pid not in dead]

    wait_until(lambda: worlds.reached(run) >= update and len(attempt()) == 2, f"update {update}", HANG_S)
    pids = attempt()
    group.send(signal.SIGKILL, workers=[rank])
    dead.update(pids)
    wait_until(lambda: not dead & set(group.workers()), "the end of both workers", HANG_S)


def test_f7_a_worker_is_killed(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    worlds.finish(warm, recipe, tmp_path / "whole")
    rng, run, deaths = random.Random(7), tmp_path / "run", scale(1, 10)
    updates = sorted(rng.sample(range(1, UPDATES - 2), deaths))
    dead: set[int] = set()
    began = time.monotonic()
    with torchrun(tmp_path, recipe.arguments(run, *LENGTH), options=["--max-restarts=20"], program="nmt") as group:
        for update in updates:
            kill_one(group, run, update, rng.randrange(2), dead)
        code, output = group.wait(HANG_S), group.output
    wrong = worlds.parts_that_differ(fingerprint(tmp_path / "whole"), run)
    resumed = output.count("resuming from")
    said = f"{len(dead) // 2} deaths, code {code}, {resumed} resumes, {len(wrong)} differences, 0 hangs > {HANG_S} s"
    print(f"{said}; {time.monotonic() - began:.0f} s", wrong)
    figure(
        "f7_worker_deaths", said, f"{deaths} deaths, 0 differences", code == 0 and not wrong and "nmt/" not in output
    )
