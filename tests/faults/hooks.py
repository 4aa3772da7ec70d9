"""Hooks of the training tests: each changes the child it is called in, before the command line runs."""

import hashlib
import json
import math
import os
import signal
from collections.abc import Callable
from typing import Any

import torch

from nmt.data.batching import Batch, Position
from nmt.training import trainer, validation
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
