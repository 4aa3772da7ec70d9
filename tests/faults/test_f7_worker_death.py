"""F7: `torchrun --max-restarts=20` goes on after kill -9 of a worker, and ends bit-equal."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from faults import worlds
from faults.recipe import Recipe, fingerprint, scale
from faults.warm import Hook, Result, Warm
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


def die_and_restart(
    warm: Warm, recipe: Recipe, run: Path, updates: list[int], counted: Callable[[int], int], *options: object
) -> tuple[int, list[Result]]:
    """Attempts that meet at one store, as torchrun's do; in each but the last a rank dies.

    Returns: how many died, and how the last attempt ended.

    Args:
        counted: the number that an attempt is told to be.
    """
    deaths = 0
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torchrun's, which outlives its workers
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
    arguments = recipe.arguments(run, *LENGTH, *options)
    for attempt, update in enumerate([*updates, None]):
        death: list[Hook] = []
        if update is not None:
            death = [
                ("rank_hooks:signal_after", {"update": update, "rank": attempt % 2, "number": int(signal.SIGKILL)})
            ]
        env = {**shared, "TORCHELASTIC_RESTART_COUNT": str(counted(attempt))}
        results = worlds.run(warm, arguments, hooks=death, env=env)
        if update is not None and results[attempt % 2].code != -signal.SIGKILL:
            break
        deaths += update is not None
    return deaths, results


def test_f7_attempts_meet_at_one_store(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    worlds.finish(warm, recipe, tmp_path / "whole")
    expected = fingerprint(tmp_path / "whole")
    updates = sorted(random.Random(77).sample(range(1, UPDATES), scale(2, 10)))
    deaths, results = die_and_restart(warm, recipe, tmp_path / "run", updates, lambda attempt: attempt)
    assert [result.code for result in results] == [0, 0], results
    wrong = worlds.parts_that_differ(expected, tmp_path / "run")
    enough = deaths == len(updates)
    figure("f7_one_store", f"{deaths} deaths, {len(wrong)} differences", "0 differences", enough and not wrong)


def test_f7_control_what_the_dead_left_is_read(
    warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]
) -> None:
    patience = ("--set", "training.rank_timeout_s=3")
    _, results = die_and_restart(warm, recipe, tmp_path / "run", [10], lambda attempt: 0, *patience)
    codes = [result.code for result in results]
    figure("f7_control", f"codes {codes}", "not 0", codes != [0, 0])


@pytest.mark.slow  # torchrun and its workers import torch, three times
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
