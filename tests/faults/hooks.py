"""Hooks of the training tests: each changes the child it is called in, before the command line runs."""

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

import torch

from nmt.data.batching import Batch, Position
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
