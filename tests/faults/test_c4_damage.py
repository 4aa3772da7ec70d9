"""C4: whatever happens to a checkpoint's files is found, and the previous good one serves."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.children import save_made_up
from faults.mutations import KINDS, Mutation
from faults.recipe import Recipe, assert_finished, scale
from faults.warm import Warm
from nmt.bundle import list_checkpoints
from nmt.training.checkpoint import newest_whole


def test_c4_every_damage_is_found(tmp_path: Path, figure: Callable[..., None]) -> None:
    for update in (7, 14, 21):
        save_made_up(tmp_path, update, keep_last=3)
    oldest, previous, newest = list_checkpoints(tmp_path)
    assert newest_whole(tmp_path) == (newest, [])  # the control
    rng = random.Random(4)
    names = sorted(path.name for path in newest.iterdir())
    found, missed, kinds = 0, [], set()
    for number in range(scale(150, 1000)):
        name = names[number % len(names)]
        mutation = Mutation(newest / name, rng, twin=previous / name)
        falls_back_to = oldest if mutation.kind == "swap" else previous  # a swap damages both
        whole, damaged = newest_whole(tmp_path)
        if whole == falls_back_to and damaged and damaged[0][0] == newest and damaged[0][1]:
            found += 1
            kinds.add((mutation.kind, name))
        else:
            missed.append(f"{mutation.kind} {name}")
        mutation.undo()
    assert newest_whole(tmp_path) == (newest, [])
    assert {kind for kind, _ in kinds} == set(KINDS) and {name for _, name in kinds} == set(names)
    said = f"{found} of {found + len(missed)} {missed[:5] or ''}".strip()
    figure("c4_checkpoint_damage", said, "all", not missed)


@pytest.mark.parametrize("kind", KINDS)
def test_c4_a_run_goes_on_from_the_previous_one(warm: Warm, recipe: Recipe, tmp_path: Path, kind: str) -> None:
    run, rng = tmp_path / "run", random.Random(kind)
    shutil.copytree(recipe.reference, run)
    *_, oldest, previous, newest = list_checkpoints(run)
    Mutation(newest / "model.safetensors", rng, twin=previous / "model.safetensors", kind=kind)
    result = warm.run(recipe.arguments(run))
    assert f"warning: the checkpoint {newest} is damaged: model.safetensors was changed" in result.stderr or (
        kind == "truncate" and f"warning: the checkpoint {newest} is damaged: model.safetensors has" in result.stderr
    )
    assert f"resuming from {oldest if kind == 'swap' else previous}" in result.stderr
    assert_finished(result, run, recipe)
