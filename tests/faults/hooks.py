"""Hooks of the training tests: each changes the child it is called in, before the command line runs."""

import functools
import hashlib
import json
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.data.batching import Batch, Position
from nmt.data.cache import TokenCache
from nmt.training import checkpoint, run, trainer, validation
from nmt.training.checkpoint import Snapshot
from nmt.training.trainer import Trainer


def after_update(action: Callable[[Trainer], None]) -> None:
    """Call `action` when an update is done."""
    one_update = Trainer.one_update

    def patched(self: Trainer) -> dict[str, float]:
        rates = one_update(self)
        action(self)
        return rates

    Trainer.one_update = patched  # type: ignore[method-assign]


def around_loss(change: Callable[[Callable[[], torch.Tensor], torch.nn.Module, Batch], torch.Tensor]) -> None:
    """Replace the loss of a training batch by `change(the loss, model, batch)`."""
    original = trainer.batch_loss

    def patched(model: Any, batch: Batch, *rest: Any) -> torch.Tensor:
        return change(lambda: original(model, batch, *rest), model, batch)

    trainer.batch_loss = patched  # type: ignore[assignment]


def append(file: str, line: object) -> None:
    with open(file, "a") as stream:
        stream.write(f"{line}\n")


# What is trained on


def note_pairs(file: str) -> None:
    """Append "number [pairs]" of every micro-batch of every update that was done."""
    seed_dropout, noted, number = trainer._seed_dropout, dict[int, list[int]](), 0

    def seeding(seed: int, micro_batch: int) -> None:
        nonlocal number
        number, noted[micro_batch] = micro_batch, []  # anew, if memory ran out
        seed_dropout(seed, micro_batch)

    def note(loss: Callable[[], torch.Tensor], model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        noted[number] += batch.indices.tolist()
        return loss()

    def write(self: Trainer) -> None:
        first = self.state.micro_batches - self.state.batches_per_update
        append(file, "\n".join(f"{number} {noted[number]}" for number in range(first, self.state.micro_batches)))

    trainer._seed_dropout = seeding
    around_loss(note)
    after_update(write)


# Signals


def stop_after(update: int, number: int = signal.SIGTERM) -> None:
    """A signal when this update is done."""
    after_update(lambda self: os.kill(os.getpid(), number) if self.state.update == update else None)


def stop_inside(update: int, number: int = signal.SIGTERM) -> None:
    """A signal between the two micro-batches of an update."""
    seed_dropout = trainer._seed_dropout

    def patched(seed: int, micro_batch: int) -> None:
        if micro_batch == 2 * update - 1:
            os.kill(os.getpid(), number)
        seed_dropout(seed, micro_batch)

    trainer._seed_dropout = patched


def stop_at_the_start() -> None:
    """A signal when the checkpoint is loaded and no update is done yet."""
    Trainer.try_widest_batches = lambda self: os.kill(os.getpid(), signal.SIGTERM)  # type: ignore[method-assign]


# What the comparisons have to see


def no_seeding() -> None:
    """To be called before other hooks."""
    trainer._seed_dropout = lambda seed, micro_batch: None


def lose_position() -> None:
    stream_from = Trainer._stream_from
    Trainer._stream_from = lambda self, position: stream_from(self, Position())  # type: ignore[method-assign]


# NaN and hopeless losses


def non_finite(update: int, where: str, value: float, notes: str) -> None:
    """Make the loss or one gradient of an update's second micro-batch non-finite.

    `notes` gets the hashes of weights and moments before and after the update, and the pairs of both micro-batches.
    """
    one_update, at_work, pairs = Trainer.one_update, list[Trainer](), list[list[int]]()

    def spoil(loss: Callable[[], torch.Tensor], model: Any, batch: Batch) -> torch.Tensor:
        result = loss()
        if not at_work or at_work[0].state.update != update - 1:
            return result
        pairs.append(batch.indices.tolist())
        if len(pairs) == 2 and where == "loss":
            return result * value
        if len(pairs) == 2:
            model.decoder[0].feed_forward.up.weight.register_hook(lambda gradient: gradient * 0 + value)
        return result

    def patched(self: Trainer) -> dict[str, float]:
        at_work[:] = [self]
        before = _hash_of(self)
        try:
            return one_update(self)
        finally:
            if pairs and not os.path.exists(notes):
                append(notes, json.dumps([before, _hash_of(self), pairs]))

    around_loss(spoil)
    Trainer.one_update = patched  # type: ignore[method-assign]


def accept_non_finite() -> None:
    """The negative control."""
    Trainer._refuse_non_finite = lambda *_: None  # type: ignore[method-assign]


def look_later() -> None:
    """As on CUDA: the host sees an update's gradient norm one update later."""
    init = Trainer.__init__
    Trainer.__init__ = functools.partialmethod(init, look_later=True)  # type: ignore[method-assign, assignment]


def step_in_any_case() -> None:
    """A control: the device does not skip the step of an update whose gradient is not finite."""
    trainer.skip_unless_finite = lambda *_: None  # type: ignore[assignment]


def validation_loss(from_update: int, value: float, of_guessing: bool = False) -> None:
    """From that update on validation finds this loss; with `of_guessing` so many times ln(2V)."""
    validate, batch_loss, a_token = Trainer._validate, validation.batch_loss, value
    late = False

    def patched(self: Trainer) -> None:
        nonlocal late, a_token
        late = self.state.update >= from_update
        a_token = value * math.log(2 * self.bundle.config.tgt_vocab_size) if of_guessing else value
        validate(self)

    def loss(model: Any, batch: Batch, *rest: Any) -> torch.Tensor:
        return torch.tensor(a_token * batch.num_tokens) if late else batch_loss(model, batch, *rest)

    Trainer._validate = patched  # type: ignore[method-assign]
    validation.batch_loss = loss  # type: ignore[assignment]


def _hash_of(trainer: Trainer) -> str:
    """Of weights and moments."""
    snapshot, digest = Snapshot.take(trainer.bundle, trainer.optimizer, trainer.state), hashlib.sha256()
    for tensors in (snapshot.weights, snapshot.moments):
        for name, tensor in sorted(tensors.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


# Memory


class Memory:
    """Holds batches of at most `limit` padded tokens; `note` is called when one does not fit."""

    def __init__(self, limit: int, backward: bool, note: Callable[[], None]) -> None:
        self.limit, self.backward, self._note = limit, backward, note

    def hold(self, loss: Callable[[], torch.Tensor], model: Any, batch: Batch) -> torch.Tensor:
        """The loss of a batch, whose forward or backward pass fails if it does not fit."""
        if torch.is_inference_mode_enabled() or max(batch.src.size, batch.tgt_out.size) <= self.limit:
            return loss()
        if not self.backward:
            self._fail()

        def fail(gradient: torch.Tensor) -> None:
            handle.remove()
            assert any(parameter.grad is not None for parameter in model.decoder.parameters())  # half way through
            self._fail()

        handle = model.encoder[0].self_attention.qkv.weight.register_hook(fail)
        return loss()

    def _fail(self) -> None:
        self._note()
        raise torch.OutOfMemoryError("made up")


def out_of_memory(limits: list[int], notes: str, backward: bool = False) -> None:
    """A memory that shrinks after updates 3, 6, …; `notes` gets its size at every failure."""
    memory = Memory(limits[0], backward, lambda: append(notes, memory.limit))

    def shrink(self: Trainer) -> None:
        memory.limit = limits[min(self.state.update // 3, len(limits) - 1)]

    around_loss(memory.hold)
    after_update(shrink)


def drop_what_fails() -> None:
    """A negative control: a batch that does not fit is left out."""

    def drop(loss: Callable[[], torch.Tensor], model: Any, batch: Batch) -> torch.Tensor:
        try:
            return loss()
        except torch.OutOfMemoryError:
            return 0.0 * sum(parameter.sum() for parameter in model.parameters())  # type: ignore[return-value]

    around_loss(drop)


def limit_address_space(extra_mb: int) -> None:
    """From the first update on the process gets no more than so much memory beyond what it has."""
    try_widest = Trainer.try_widest_batches

    def patched(self: Trainer) -> None:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
        size = int(line.split()[1]) * 1024 + extra_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        try_widest(self)

    Trainer.try_widest_batches = patched  # type: ignore[method-assign]


# Signals at any moment


def signal_in(phase: str, after_s: float, number: int, update: int = 0) -> None:
    """A signal so long after a phase of the run has begun; of "update" and "saving" that of one update."""
    module, name = PHASES[phase]
    original, sent = getattr(module, name), threading.Event()

    def patched(*args: Any, **keywords: Any) -> Any:
        reached = {"update": lambda: args[0].state.update == update, "saving": lambda: args[1].state.update == update}
        if not sent.is_set() and reached.get(phase, lambda: True)():
            sent.set()
            timer = threading.Timer(after_s, os.kill, (os.getpid(), number))
            timer.daemon = True
            timer.start()
        return original(*args, **keywords)

    setattr(module, name, patched)


PHASES = {
    "preparing": (run, "prepare"),
    "update": (Trainer, "one_update"),
    "validation": (trainer, "validate"),
    "saving": (checkpoint, "save_checkpoint"),
    "final": (Trainer, "_write_final_bundle"),
    "bundle": (trainer, "atomic_folder"),
}


def slow_validation(batch_s: float) -> None:
    """Wait before each batch of a validation."""
    heed = validation._heed

    def slow(stop: Any) -> None:
        time.sleep(batch_s)
        heed(stop)

    validation._heed = slow


def slow_fsync(seconds: float, folder: str) -> None:
    """Wait at every fsync below a folder whose name holds this."""
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        if folder in os.readlink(f"/proc/self/fd/{descriptor}"):
            time.sleep(seconds)
        fsync(descriptor)

    os.fsync = slow


# Data


def corrupt_pair(pair: int, side: str) -> None:
    """In memory one pair of the training cache begins with an id that no tokenizer has."""
    gather = TokenCache.gather

    def corrupted(self: TokenCache, which: str, indices: Any) -> Any:
        tokens, lengths = gather(self, which, indices)
        if which == side and self.folder.name.startswith("train-"):
            firsts = np.cumsum(lengths) - lengths
            tokens = tokens.copy()
            tokens[firsts[indices == pair]] = 60_000
        return tokens, lengths

    TokenCache.gather = corrupted  # type: ignore[method-assign]
