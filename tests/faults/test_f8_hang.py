"""F8: a rank that hangs, or never comes, is given up and named.

Rank 0 keeps the store by which lost ranks are found: when it hangs nobody can be asked.
"""

import signal
from collections.abc import Callable
from pathlib import Path

from faults import worlds
from faults.recipe import Recipe
from faults.warm import Child, Result, Warm
from faults.worlds import LENGTH

TIMEOUT_S = 3
SLACK_S = 10
SHORT = (*LENGTH, "--set", f"training.rank_timeout_s={TIMEOUT_S}")


def test_f8_a_rank_hangs(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    started = {}
    for rank in (0, 1):
        hang = ("rank_hooks:signal_after", {"update": 9, "rank": rank, "number": int(signal.SIGSTOP)})
        started[rank] = worlds.start(warm, recipe.arguments(tmp_path / str(rank), *SHORT), hooks=[hang])
    ends = {}
    for rank, children in started.items():
        try:
            worlds.wait_until(lambda child=children[rank]: worlds.process_state(child.pid) == "T", "SIGSTOP")  # type: ignore[misc]
            ends[rank] = worlds.timed(children[1 - rank].wait)
        finally:
            children[rank].kill()
            children[rank].wait()
    report(figure, "f8_a_rank_hangs", ends, "for a decision")


def test_f8_a_rank_never_comes(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    lonely: dict[int, Child] = {}
    for rank in (0, 1):
        (lonely[rank],) = worlds.start(warm, recipe.arguments(tmp_path / str(rank), *SHORT), only=[1 - rank])
    report(figure, "f8_a_rank_never_comes", {k: worlds.timed(c.wait) for k, c in lonely.items()}, "to start")


def report(figure: Callable[..., None], name: str, ends: dict[int, tuple[Result, float]], purpose: str) -> None:
    """How the other one ended when a rank was lost."""
    wrong = []
    for rank, (result, _) in ends.items():
        said = f"nmt: Rank {1 - rank} of 2 waited {purpose}, and rank {rank} gave no answer within {TIMEOUT_S} s."
        if result.code != 1 or said not in result.stderr or "Traceback" in result.stderr:
            wrong.append(f"{rank}: code {result.code}, {result.stderr[-300:]}")
    slowest = max(seconds for _, seconds in ends.values())
    figure(
        name,
        f"rank 0, rank 1: {len(ends) - len(wrong)} of 2 named, code 1, within {slowest:.1f} s {wrong or ''}".strip(),
        f"2 of 2, <= {TIMEOUT_S} s + {SLACK_S} s",
        not wrong and slowest <= TIMEOUT_S + SLACK_S,
    )
