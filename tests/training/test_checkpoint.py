"""Checkpoints: bit-equal restore, retention, averaging, damage passed over."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from nmt.bundle import Bundle, list_checkpoints, weights_of
from nmt.config import TrainingConfig
from nmt.storage.manifest import damage
from nmt.training.checkpoint import (
    Snapshot,
    TrainState,
    average,
    best_updates,
    load_state,
    newest_whole,
    prune,
    restore,
    save_checkpoint,
)
from nmt.training.optim import make_optimizer
from tiny import one_thread, random_bundle

CONFIG = TrainingConfig(max_updates=10)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def stepped(seed: int = 0, steps: int = 3, joint: bool = True) -> tuple[Bundle, torch.optim.AdamW]:
    """A bundle and its optimiser after a few steps on made-up gradients."""
    bundle = random_bundle(seed, joint)
    optimizer = make_optimizer(bundle.model, CONFIG)
    for _ in range(steps):
        for parameter in bundle.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return bundle, optimizer


def differences(one: tuple[Bundle, torch.optim.AdamW], two: tuple[Bundle, torch.optim.AdamW]) -> int:
    """Weights and moments that are not bit-equal."""
    count = 0
    for a, b in zip(one[0].model.parameters(), two[0].model.parameters(), strict=True):
        states = (one[1].state[a], two[1].state[b])
        assert states[0].keys() == states[1].keys()
        count += not torch.equal(a, b)
        count += sum(not torch.equal(states[0][key], states[1][key]) for key in states[0])
    return count


@pytest.mark.parametrize("joint", [True, False])
def test_restore_is_bit_equal(tmp_path: Path, joint: bool) -> None:
    saved = stepped(joint=joint)
    state = TrainState(
        update=7, epoch=2, batch_index=3, micro_batches=14, tokens=99, minutes=0.25, scaler={"scale": 1024.0}
    )
    state.add_score(1.5)
    folder = save_checkpoint(tmp_path, Snapshot.take(*saved, state))
    assert folder == tmp_path / "checkpoints" / "ckpt-000007" and damage(folder) is None
    other = stepped(seed=1, steps=1, joint=joint)
    assert differences(saved, other) > 0  # the control
    assert restore(folder, other[0].model, other[1]) == state == load_state(folder)
    assert differences(saved, other) == 0
    for bundle, optimizer in (saved, other):  # and they go on alike
        for number, parameter in enumerate(bundle.model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.01 * number)
        optimizer.step()
    assert differences(saved, other) == 0


def test_before_the_first_update_there_are_no_moments(tmp_path: Path) -> None:
    bundle, optimizer = stepped(steps=0)
    folder = save_checkpoint(tmp_path, Snapshot.take(bundle, optimizer, TrainState()))
    other = stepped(seed=1)
    restore(folder, other[0].model, other[1])
    for parameter in other[0].model.parameters():
        parameter.grad = torch.ones_like(parameter)
    other[1].step()
    assert float(other[1].state[next(other[0].model.parameters())]["step"]) == 1.0


def test_a_checkpoint_is_a_bundle(tmp_path: Path) -> None:
    bundle, optimizer = stepped()
    loaded = Bundle.load(save_checkpoint(tmp_path, Snapshot.take(bundle, optimizer, TrainState(update=1))))
    for name, tensor in weights_of(loaded.model).items():
        assert torch.equal(tensor, weights_of(bundle.model)[name])


def test_no_pickle_anywhere(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, Snapshot.take(*stepped(), TrainState(update=1)))
    assert {p.name for p in folder.iterdir()} == {
        "config.json",
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
        "tokenizer.model",
    }


# Scores


def test_add_score() -> None:
    state, seen = TrainState(), []
    for update, score in ((2, 1.0), (4, 3.0), (6, 3.0), (8, -np.inf), (10, 3.5), (12, 0.0)):
        state.update = update
        seen.append((state.add_score(score), state.best_update, state.worse_in_a_row))
    assert seen == [(True, 2, 0), (True, 4, 0), (False, 6, 1), (False, 6, 2), (True, 10, 0), (False, 10, 1)]
    assert TrainState(**json.loads(json.dumps(asdict(state)))) == state


@settings(deadline=None, max_examples=200)
@given(scores=st.lists(st.floats(-5, 5) | st.just(-np.inf), min_size=1, max_size=20))
def test_best_updates_of_every_sequence(scores: list[float]) -> None:
    state = TrainState()
    for number, score in enumerate(scores, start=1):
        state.update = 5 * number
        state.add_score(score)
        every = [5 * n for n in range(1, number + 1)]
        assert best_updates(state, 3) == sorted(every, key=lambda u: (-scores[u // 5 - 1], -u))[:3]
        assert best_updates(state, 1) == [state.best_update]
        improved = max(n for n in range(number) if n == 0 or scores[n] > max(scores[:n]))
        assert state.worse_in_a_row == number - 1 - improved


def test_prune_deletes_the_others(tmp_path: Path) -> None:
    saved, state = stepped(), TrainState()
    for update, score in ((1, 0.0), (2, 9.0), (3, 1.0), (4, 2.0)):
        state.update = update
        state.add_score(score)
        save_checkpoint(tmp_path, Snapshot.take(*saved, state))
    folders = list_checkpoints(tmp_path)
    prune(tmp_path, keep={folders[1], folders[3], tmp_path / "nowhere"})
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["ckpt-000002", "ckpt-000004"]


def test_checkpoints_are_listed_by_number(tmp_path: Path) -> None:
    for name in ("ckpt-999999", "ckpt-1000000", "ckpt-000002", "ckpt-000003.tmp-77", "ckpt-x"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [f.name for f in list_checkpoints(tmp_path)] == ["ckpt-000002", "ckpt-999999", "ckpt-1000000"]
    assert list_checkpoints(tmp_path / "nothing") == []


# Averaging


def test_average_is_the_mean(tmp_path: Path) -> None:
    folders = [
        save_checkpoint(tmp_path, Snapshot.take(*stepped(seed), TrainState(update=seed + 1))) for seed in range(3)
    ]
    each = [load_file(folder / "model.safetensors") for folder in folders]
    averaged = average(folders)
    assert averaged.keys() == each[0].keys()
    for name, tensor in averaged.items():
        mean = np.mean([weights[name].astype(np.float64) for weights in each], axis=0).astype(np.float32)
        np.testing.assert_array_max_ulp(tensor.numpy(), mean, 1)
        assert not np.array_equal(tensor.numpy(), each[0][name])  # the control


def test_average_of_one_is_itself_and_of_the_same_files_the_same(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, Snapshot.take(*stepped(), TrainState(update=1)))
    weights = load_file(folder / "model.safetensors")
    for folders in ([folder], [folder, folder]):
        assert all(np.array_equal(tensor.numpy(), weights[name]) for name, tensor in average(folders).items())


# Damage


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.model"])
@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, file: str, how: str) -> None:
    saved = stepped()
    older = save_checkpoint(tmp_path, Snapshot.take(*saved, TrainState(update=1)))
    newer = save_checkpoint(tmp_path, Snapshot.take(*saved, TrainState(update=2)))
    assert newest_whole(tmp_path) == (newer, [])
    harm(newer / file, how)
    found, [(damaged, problem)] = newest_whole(tmp_path)
    assert (found, damaged) == (older, newer) and file in problem


def test_nothing_whole(tmp_path: Path) -> None:
    assert newest_whole(tmp_path) == (None, [])
    folder = save_checkpoint(tmp_path, Snapshot.take(*stepped(), TrainState(update=1)))
    (folder / "manifest.json").unlink()
    assert newest_whole(tmp_path) == (None, [(folder, "manifest.json is missing")])


def harm(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    elif how == "truncate":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
