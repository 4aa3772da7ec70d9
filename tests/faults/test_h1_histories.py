"""Any history of saves, kills, damage and resumes: what loads is the newest committed checkpoint that is whole."""

import copy
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from safetensors.torch import save as serialize_tensors

import tiny
from faults.mutations import Mutation
from faults.recipe import scale, tree
from faults.shim import Operation, Shim
from nmt.bundle import Bundle, checkpoint_name, list_checkpoints
from nmt.errors import BundleError
from nmt.training import checkpoint, resume
from nmt.training.checkpoint import CheckpointWriter, Snapshot, TrainState, best_updates
from nmt.training.resume import newest_checkpoint

DEAD, ALIVE = 2**22 + 1, 1  # process numbers: beyond the kernel's largest, and init
KEEP_LAST = 2


class Killed:
    """Copies what is on disk ahead of an operation: what a SIGKILL there would leave, since nothing runs after it."""

    def __init__(self, run: Path, operation: int) -> None:
        self._run, self._copy, self._operation = run, run.with_name("killed"), operation
        self.renamed = False  # whether the checkpoint had its final name by then
        self.happened = False
        self._shim = Shim(run, self._before)

    def _before(self, number: int, operation: Operation) -> None:
        if number == self._operation:
            self._shim.remove()
            shutil.copytree(self._run, self._copy)
            self.happened = True
            self._shim.install()
        elif not self.happened and operation.kind == "rename" and ".tmp-" in operation.path:
            self.renamed = True

    def __enter__(self) -> "Killed":
        self._shim.install()
        return self

    def __exit__(self, *exception: object) -> None:
        self._shim.remove()
        if self.happened:
            shutil.rmtree(self._run)
            os.rename(self._copy, self._run)
        self.renamed |= not self.happened


class Histories(RuleBasedStateMachine):
    """The real writer, retention and choice of a checkpoint, against a model of what was committed."""

    folder: ClassVar[Path]
    bundle: ClassVar[Bundle]
    violations: ClassVar[list[str]]
    count: ClassVar[int]
    kills: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        type(self).count += 1
        self.run = self.folder / "run"
        shutil.rmtree(self.run, ignore_errors=True)
        (self.run / "checkpoints").mkdir(parents=True)
        self.writer = CheckpointWriter(self.run)
        self.state = TrainState(data="train-x", torch=torch.__version__)
        self.committed: dict[str, dict[str, bytes]] = {}  # whole checkpoints by name, with their bytes
        self.salt = 0

    def teardown(self) -> None:
        self.writer._thread.shutdown()

    # What happens

    @rule(updates=st.integers(0, 3), score=st.none() | st.integers(0, 3))
    def train_and_save(self, updates: int, score: int | None) -> None:
        self._save(updates, score, operation=-1)

    @rule(updates=st.integers(0, 3), score=st.none() | st.integers(0, 3), operation=st.integers(0, 45))
    def killed_in_a_save(self, updates: int, score: int | None, operation: int) -> None:
        self._save(updates, score, operation)
        self.resume()  # the process is gone

    @precondition(lambda self: self.committed)
    @rule(seed=st.integers(0, 2**16))
    def damage_the_newest(self, seed: int) -> None:
        rng, newest = random.Random(seed), max(self.committed)
        Mutation(self.run / "checkpoints" / newest / rng.choice(sorted(self.committed[newest])), rng)
        del self.committed[newest]

    @rule(updates=st.integers(1, 20), kind=st.sampled_from(["tmp", "old"]), owner=st.sampled_from([DEAD, ALIVE]))
    def leave_a_temporary_folder(self, updates: int, kind: str, owner: int) -> None:
        """Beside a checkpoint that is there, or of one that never came about."""
        name = checkpoint_name(self.state.update + updates) if kind == "tmp" else max(self.committed, default=None)
        if name is not None:
            left = self.run / "checkpoints" / f"{name}.{kind}-{owner}"
            left.mkdir(parents=True, exist_ok=True)
            (left / "model.safetensors").write_bytes(b"half")
        self.resume()  # another process left it

    @rule()
    def resume(self) -> None:
        resume.tidy(self.run)
        there = list_checkpoints(self.run)
        try:
            newest = newest_checkpoint(self.run, lambda text: None)
            name = newest.name if newest else ""
        except BundleError:
            self._expect(there and not self.committed, "refused, though one is whole")
            shutil.rmtree(self.run / "checkpoints")  # begun anew
            name = ""
        self._expect(name == max(self.committed, default=""), f"{name or 'nothing'} loads of {sorted(self.committed)}")
        if name:
            self._expect(tree(self.run / "checkpoints" / name) == self.committed[name], f"{name} is not what was saved")
        left = {path.name for path in (self.run / "checkpoints").glob("*.*-*")}
        self._expect(not left, f"left: {left}")
        folder = self.run / "checkpoints" / name
        self.state = checkpoint.load_state(folder) if name else TrainState(data="train-x", torch=torch.__version__)

    @invariant()
    def all_that_was_committed_and_kept_is_there(self) -> None:
        for name, content in self.committed.items():
            self._expect(tree(self.run / "checkpoints" / name) == content, f"{name} is not what was saved")

    # How

    def _save(self, updates: int, score: int | None, operation: int) -> None:
        self.state.update += updates if self.state.update else max(1, updates)
        if score is not None and str(self.state.update) not in self.state.scores:
            self.state.add_score(float(score))
        self.salt += 1
        name, snapshot = checkpoint_name(self.state.update), self._snapshot()
        with Killed(self.run, operation) as killed:
            self.writer.write(snapshot, lambda: self._kept(snapshot.state))
            self.writer.wait()
        type(self).kills += killed.happened
        folders = {folder.name: tree(folder) for folder in list_checkpoints(self.run)}
        if killed.renamed:
            saved = folders.get(name, {})
            self._expect(saved.get("model.safetensors") == self._weights_bytes, f"{name} is not there after its rename")
            self.committed[name] = saved
            # What retention deletes may be gone or torn; the others must stand.
            kept = {folder.name for folder in self._kept(self.state)}
            self.committed = {of: it for of, it in self.committed.items() if of in kept or folders.get(of) == it}

    def _snapshot(self) -> Snapshot:
        weights = {"w": torch.full((700,), float(self.salt))}
        moments = {"w.exp_avg": torch.full((300,), float(self.state.update))}
        self._weights_bytes = serialize_tensors(weights)
        return Snapshot(self.bundle, weights, moments, copy.deepcopy(self.state))

    def _kept(self, state: TrainState) -> set[Path]:
        last = list_checkpoints(self.run)[-KEEP_LAST:]
        names = [*(folder.name for folder in last), *map(checkpoint_name, best_updates(state, 1))]
        return {self.run / "checkpoints" / name for name in (*names, checkpoint_name(state.update))}

    def _expect(self, right: object, what: str) -> None:
        if not right:
            type(self).violations.append(what)
        assert right, what


def histories(folder: Path, count: int) -> None:
    """Try so many. Raises: AssertionError, at the first violation."""
    Histories.folder, Histories.bundle = folder, tiny.random_bundle()
    Histories.violations, Histories.count, Histories.kills = [], 0, 0
    options = settings(
        max_examples=count,
        stateful_step_count=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Histories, settings=options)


@pytest.mark.timeout(scale(300, 3600))
def test_h1_histories(tmp_path: Path, figure: Callable[..., None]) -> None:
    asked, wrong = scale(60, 2000), ""
    try:
        histories(tmp_path, asked)
    except AssertionError as error:
        wrong = str(error)
    said = f"{Histories.count} histories with {Histories.kills} kills, {len(Histories.violations)} violations {wrong}"
    figure("h1_histories", said.strip(), "0", not wrong and Histories.count >= asked and Histories.kills > asked // 3)


@pytest.mark.parametrize(("module", "name"), [(checkpoint, "damage"), (resume, "tidy")])
def test_h1_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    """Without manifests, or without tidying up, a violation is found."""
    monkeypatch.setattr(module, name, lambda folder: None)
    with pytest.raises(AssertionError):
        histories(tmp_path, 60)
    assert Histories.violations
