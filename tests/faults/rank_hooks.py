"""Hooks for one rank of a run: what is recorded there, and what goes wrong there.

As a program it applies the hooks of the variable NMT_HOOKS and then is the command line, for torchrun.
"""

import hashlib
import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from nmt.data.batching import Ids
from nmt.training import checkpoint, run, trainer, validation
from nmt.training.distributed import Ranks
from nmt.training.trainer import Trainer


def _here(rank: int) -> bool:
    return int(os.environ.get("RANK", "0")) == rank


def _note(file: str, line: str) -> None:
    with Path(f"{file}.{os.environ.get('RANK', '0')}").open("a") as notes:
        notes.write(f"{line}\n")


def weights_hash(work: Trainer) -> str:
    digest = hashlib.sha256()
    for parameter in work.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


# What is recorded


def note_weights(file: str) -> None:
    """Every rank's weights, at each validation and at the end."""
    validate, write_final_bundle = Trainer._validate, Trainer._write_final_bundle

    def noted_validate(self: Trainer) -> None:
        _note(file, f"{self.state.update} {weights_hash(self)}")
        validate(self)

    def noted_end(self: Trainer) -> Path:
        _note(file, f"end {weights_hash(self)}")
        return write_final_bundle(self)

    Trainer._validate, Trainer._write_final_bundle = noted_validate, noted_end  # type: ignore[method-assign]


def note_pairs(file: str) -> None:
    """Every micro-batch that a rank computes for an update: its number and its pairs."""
    gradients, one_update = Trainer._gradients, Trainer.one_update
    updating = []

    def noted_gradients(self: Trainer, micro_batches: Mapping[int, Ids], num_tokens: int) -> torch.Tensor:
        for number, pairs in micro_batches.items() if updating else ():
            _note(file, f"{number} {self.state.update} {' '.join(map(str, pairs.tolist()))}")
        return gradients(self, micro_batches, num_tokens)

    def noted_update(self: Trainer) -> dict[str, float]:
        updating.append(True)
        try:
            return one_update(self)
        finally:
            updating.pop()

    Trainer._gradients, Trainer.one_update = noted_gradients, noted_update  # type: ignore[method-assign]


def note_refusal(file: str) -> None:
    """The weights before an update that is refused, and after."""
    one_update = Trainer.one_update

    def noted(self: Trainer) -> dict[str, float]:
        before = weights_hash(self)
        try:
            return one_update(self)
        except BaseException:
            _note(file, f"{self.state.update} {before} {weights_hash(self)}")
            raise

    Trainer.one_update = noted  # type: ignore[method-assign]


def note_state_bytes(file: str) -> None:
    """At the end what the rank holds: bytes of weights, of moments, and numbers of the model and of its moments."""
    write_final_bundle = Trainer._write_final_bundle

    def noted(self: Trainer) -> Path:
        parameters = list(self.model.parameters())
        moments = [self.optimizer.state[p][key] for p in parameters for key in ("exp_avg", "exp_avg_sq")]
        held = [sum(_local(tensor).nbytes for tensor in tensors) for tensors in (parameters, moments)]
        _note(file, f"{held[0]} {held[1]} {self.bundle.model.num_parameters()}")
        return write_final_bundle(self)

    Trainer._write_final_bundle = noted  # type: ignore[method-assign]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


# What goes wrong


def signal_after(update: int, rank: int, number: int) -> None:
    """The rank gets a signal when an update is done."""
    _after(update, rank, lambda work: os.kill(os.getpid(), number))


def flip_bit_after(update: int, rank: int) -> None:
    """One bit of one weight changes when an update is done: not the lowest, which the next ones may round away."""

    def flip(work: Trainer) -> None:
        weight = next(work.model.parameters()).detach().view(torch.int32).flatten()
        weight[7] ^= 1 << 10

    _after(update, rank, flip)


def blind() -> None:
    """A control: weights are not compared."""
    trainer.refuse_drift = lambda *_: None  # type: ignore[assignment]


def careless() -> None:
    """A control: a gradient that is not finite is stepped with."""
    Trainer._refuse_non_finite = lambda self, *arguments: None  # type: ignore[method-assign]


def other_seed(rank: int) -> None:
    """A control: the dropout of one rank is another."""
    if _here(rank):
        seed_dropout = trainer._seed_dropout
        trainer._seed_dropout = lambda seed, micro_batch: seed_dropout(seed + 1, micro_batch)


def own_order(rank: int) -> None:
    """A control: one rank takes the share of another."""
    if _here(rank):
        from nmt.training.distributed import Ranks

        Ranks.share = lambda self, count: range((self.rank + 1) % self.world, count, self.world)  # type: ignore[method-assign]


def means() -> None:
    """A control: a sharded model's gradients are averaged over ranks, as FSDP2 does by itself."""
    sharded_copy = trainer.sharded_copy

    def averaging(whole: Any) -> Any:
        model = sharded_copy(whole)
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(2.0)
        return model

    trainer.sharded_copy = averaging


def look_later() -> None:
    """The host looks at a gradient's norm one update later, as it does on CUDA."""
    begin = Trainer.__init__

    def patched(self: Trainer, *arguments: Any) -> None:
        begin(self, *arguments, look_later=True)

    Trainer.__init__ = patched  # type: ignore[method-assign,assignment]


def out_of_memory_in(update: int, rank: int) -> None:
    """During an update the rank's memory runs out."""

    def fail(*arguments: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("made up")

    def run_out(work: Trainer) -> None:
        trainer.batch_loss = fail

    _after(update - 1, rank, run_out)


def nan_in(place: str, update: int, rank: int, kind: str = "nan") -> None:
    """During an update the rank's loss, or one number of its gradient, is not finite."""
    if not _here(rank):
        return
    gradients, batch_loss = Trainer._gradients, trainer.batch_loss
    value = float(kind)
    assert not math.isfinite(value)

    def poisoned_loss(*arguments: Any) -> torch.Tensor:
        return batch_loss(*arguments) * value

    def poisoned(self: Trainer, micro_batches: Mapping[int, Ids], num_tokens: int) -> torch.Tensor:
        poison = self.state.update + 1 == update
        trainer.batch_loss = poisoned_loss if poison and place == "loss" else batch_loss
        loss = gradients(self, micro_batches, num_tokens)
        trainer.batch_loss = batch_loss
        if poison and place == "gradient":
            gradient = next(self.model.parameters()).grad
            assert gradient is not None
            gradient.flatten()[7] = value
        return loss

    Trainer._gradients = poisoned  # type: ignore[method-assign]


def _after(update: int, rank: int, action: Callable[[Trainer], None]) -> None:
    if not _here(rank):
        return
    one_update = Trainer.one_update

    def patched(self: Trainer) -> dict[str, float]:
        rates = one_update(self)
        if self.state.update == update:
            action(self)
        return rates

    Trainer.one_update = patched  # type: ignore[method-assign]


# Moments that last long enough to be met


def linger_in_validation(update: int, file: str) -> None:
    """The validation after an update takes as long as it is let, in steps of one batch each."""
    refuse_drift, heed = trainer.refuse_drift, validation._heed
    slow = []

    def noted(model: torch.nn.Module, now: int, ranks: Ranks) -> None:
        refuse_drift(model, now, ranks)
        if now == update:
            slow.append(True)
            _note(file, "validation")

    def slowly(stop: Any) -> None:
        if slow:
            time.sleep(0.3)
        heed(stop)

    trainer.refuse_drift, validation._heed = noted, slowly  # type: ignore[assignment]


def linger_in_preparation(file: str) -> None:
    """Data preparation takes a minute; the other ranks wait."""
    prepare = run.prepare

    def slowly(*arguments: Any, **options: Any) -> Any:
        _note(file, "preparation")
        time.sleep(60)
        return prepare(*arguments, **options)

    run.prepare = slowly


def impatient() -> None:
    """A control: a second signal ends the process at once, as it does without torchrun."""
    importlib.import_module("nmt.cli.train").several_ranks = lambda: False  # type: ignore[attr-defined]


def slow_disk(seconds: float, file: str) -> None:
    """A checkpoint takes that long to write."""
    save_checkpoint = checkpoint.save_checkpoint

    def slowly(*arguments: Any) -> Path:
        _note(file, "writing")
        time.sleep(seconds)
        return save_checkpoint(*arguments)

    checkpoint.save_checkpoint = slowly


def note_exit(file: str) -> None:
    """With which code the command line ends, unless it ends at once."""
    leave = sys.exit

    def noted(code: Any = None) -> None:
        _note(file, str(code))
        leave(code)

    sys.exit = noted  # type: ignore[assignment]


def _main() -> None:
    # Handlers come first in nmt; importing torch for the hooks before would leave seconds without them.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for name, options in json.loads(os.environ["NMT_HOOKS"]):
        globals()[name.removeprefix("rank_hooks:")](**options)
    from nmt.cli import main

    main()


if __name__ == "__main__":
    _main()
