"""Checkpoints: a bundle plus the state from which training goes on exactly as if it had not stopped.

`checkpoints/ckpt-NNNNNN/` holds the bundle's files, `optimizer.safetensors` (Adam's moments by parameter name) and
`state.json` (a few integers and the scores so far). It appears complete or not at all; no pickle anywhere.
"""

import copy
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from nmt.bundle import Bundle, checkpoint_name, list_checkpoints, load_weights, read_tensors, weights_of, write_tensors
from nmt.errors import BundleError, NmtError
from nmt.model.seq2seq import Seq2Seq
from nmt.storage.atomic import atomic_folder, remove_folder, write_file
from nmt.storage.manifest import damage
from nmt.training.distributed import Ranks
from nmt.training.sharding import gathered, laid_out_like

Count = Annotated[int, Field(ge=0, le=2**62)]
Positive = Annotated[int, Field(ge=1, le=2**31)]


@dataclass
class TrainState:
    """Where training stands, but for weights and moments.

    Attributes:
        data, valid: names of the token caches of training and validation, hashes of text, tokenizer and rules.
        epoch, batch_index: position in the stream of batches: the next one.
        order: `batching.ORDER`, by which an epoch's batches were laid out.
        micro_batches: drawn so far; their number seeds dropout.
        tokens: real target tokens trained on.
        minutes: of training, summed over resumes.
        scores: the decisive metric (oriented so that more is better) by update.
        worse_in_a_row: validations since the best one.
        world: ranks that shared the updates.
        batches_per_update: micro-batches of an update, all ranks together.
        parts: into how many a micro-batch is split to fit into memory, learnt when it ran out.
        torch: version of torch that wrote this.
        unlogged_loss, unlogged_tokens: of the updates since the last line of the log, all ranks together.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # how `load_state` reads it

    data: str = ""
    valid: str = ""
    update: Count = 0
    epoch: Count = 0
    batch_index: Count = 0
    order: Positive = 1  # of an nmt that did not write it down
    micro_batches: Count = 0
    tokens: Count = 0
    minutes: float = 0.0
    best_update: Count = 0
    worse_in_a_row: Count = 0
    scaler: dict[str, int | float] = field(default_factory=dict)  # fp16's loss scale; empty otherwise
    skipped_in_a_row: Count = 0
    world: Positive = 1
    batches_per_update: Count = 0  # 0: of an nmt that did not write it down
    parts: Positive = 1
    torch: str = ""
    unlogged_loss: float = 0.0
    unlogged_tokens: Count = 0
    scores: dict[str, float] = field(default_factory=dict)

    def add_score(self, score: float) -> bool:
        """Record the validation of the current update. Returns: whether it is better than all before.

        Of equals the later becomes the best checkpoint (BLEU stays at 0 while a young model learns), but it does not
        count as better.
        """
        best = self.scores.get(str(self.best_update), -math.inf)
        better = not self.scores or score > best
        self.scores[str(self.update)] = score
        self.best_update = self.update if score >= best else self.best_update
        self.worse_in_a_row = 0 if better else self.worse_in_a_row + 1
        return better


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in memory: nothing in it changes when training goes on."""

    bundle: Bundle  # for its config and tokenizer; its model moves on
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    state: TrainState

    @classmethod
    def take(cls, bundle: Bundle, optimizer: torch.optim.AdamW, state: TrainState) -> "Snapshot":
        """Copy weights, moments and state to the CPU's memory."""
        weights = weights_of(bundle.model, copy=True)
        return cls(bundle, weights, gathered(_moments(bundle.model, optimizer), keep=True), copy.deepcopy(state))

    @classmethod
    def take_sharded(
        cls, bundle: Bundle, model: Seq2Seq, optimizer: torch.optim.AdamW, state: TrainState, ranks: Ranks
    ) -> "Snapshot":
        """The same of a sharded model, with whole tensors; only in rank 0 there is something in it."""
        with ranks.talking("for the weights", computing=True):
            weights = gathered(model.named_parameters(), keep=ranks.first)
            moments = gathered(_moments(model, optimizer), keep=ranks.first)
        return cls(bundle, weights, moments, copy.deepcopy(state))


class CheckpointWriter:
    """Writes checkpoints in a thread, one after another, while training goes on."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def write(self, snapshot: Snapshot, keep: Callable[[], Collection[Path]]) -> None:
        """Commit a snapshot, then delete all checkpoints but `keep()`. Waits for the one before.

        Raises: StorageError (of the one before).
        """
        self.wait()
        self._pending = self._thread.submit(self._write, snapshot, keep)

    def failed(self) -> bool:
        """Whether the last write has failed by now; `wait` then raises."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def wait(self) -> None:
        """Wait until all is written. Raises: StorageError."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """At the end of the block, whatever ends it, what was handed over is written. Raises: StorageError."""
        try:
            yield
        except BaseException:  # of two errors the first is told
            with suppress(NmtError, OSError):
                self.wait()
            raise
        self.wait()

    def _write(self, snapshot: Snapshot, keep: Callable[[], Collection[Path]]) -> None:
        save_checkpoint(self._run, snapshot)
        # A final bundle of an end that was left behind: until the next end the best checkpoint serves.
        remove_folder(self._run / "bundle")
        prune(self._run, keep=keep())


def save_checkpoint(run: Path, snapshot: Snapshot) -> Path:
    """Commit a checkpoint. Raises: StorageError."""
    folder = run / "checkpoints" / checkpoint_name(snapshot.state.update)
    with atomic_folder(folder) as temporary:
        snapshot.bundle.write_into(temporary, snapshot.weights)
        write_tensors(temporary / "optimizer.safetensors", snapshot.moments)
        write_file(temporary / "state.json", json.dumps(asdict(snapshot.state)).encode())
    return folder


def load_state(folder: Path) -> TrainState:
    """Read `state.json` of a checkpoint; what an older nmt did not write keeps its default. Raises: BundleError."""
    path = folder / "state.json"
    try:
        return TypeAdapter(TrainState).validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f"{part}: " for part in first["loc"])
        raise BundleError(f"{path} is of a newer nmt, or was changed: {key}{first['msg']}.") from error


def restore(folder: Path, model: Seq2Seq, optimizer: torch.optim.AdamW) -> TrainState:
    """Put a checkpoint's weights and moments into `model` and `optimizer`."""
    device = next(model.parameters()).device
    weights = read_tensors(folder / "model.safetensors")
    parameters = dict(model.named_parameters())
    load_weights(model, {name: laid_out_like(tensor, parameters.get(name)) for name, tensor in weights.items()})
    moments = read_tensors(folder / "optimizer.safetensors")
    for name, parameter in parameters.items():
        keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}.{key}" in moments]
        if any(moments[f"{name}.{key}"].shape not in ((), parameter.shape) for key in keys):
            raise BundleError(f"{folder / 'optimizer.safetensors'} is of another model: the moments of {name}.")
        cut = {key: _cut(moments[f"{name}.{key}"], parameter) for key in keys}
        optimizer.state[parameter] = {key: moment.to(device) for key, moment in cut.items()}
    return load_state(folder)


def _cut(moment: Tensor, parameter: nn.Parameter) -> Tensor:
    """Moments lie like their weights; the counter of steps is a scalar."""
    return laid_out_like(moment, parameter) if moment.shape == parameter.shape else moment


def newest_whole(run: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that its manifest confirms, and the newer ones with what is wrong with each."""
    damaged: list[tuple[Path, str]] = []
    for folder in reversed(list_checkpoints(run)):
        problem = damage(folder)
        if problem is None:
            return folder, damaged
        damaged.append((folder, problem))
    return None, damaged


def best_updates(state: TrainState, count: int) -> list[int]:
    """Updates by score, best first; of equals the later."""
    return sorted(map(int, state.scores), key=lambda update: (-state.scores[str(update)], -update))[:count]


def prune(run: Path, keep: Collection[Path]) -> None:
    """Delete all checkpoints but `keep`. Raises: StorageError."""
    for folder in list_checkpoints(run):
        if folder not in keep:
            remove_folder(folder)


def average(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the checkpoints' weights, taken in float64: as in Vaswani et al. 2017, section 6.1."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in read_tensors(folder / "model.safetensors").items():
            total[name] = tensor.double() + total[name] if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}


def _moments(model: Seq2Seq, optimizer: torch.optim.AdamW) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            yield f"{name}.{key}", value
