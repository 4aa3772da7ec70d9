"""The training loop: batches to updates, validations, checkpoints, and the final bundle.

An update is one optimiser step, over `accumulation` micro-batches whose loss sums are divided by the number of target
tokens of the whole update. All randomness is a function of (seed, number of the micro-batch), so that a resumed run
repeats an uninterrupted one.
"""

import math
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.bundle import Bundle, checkpoint_name, list_checkpoints, load_weights
from nmt.config import Config
from nmt.data.batching import Batch, BatchStream, Position, widest_batch
from nmt.data.prepare import Prepared
from nmt.errors import BundleError, ConfigError, DivergedError, Interrupted
from nmt.storage.atomic import atomic_folder
from nmt.storage.manifest import damage
from nmt.training.checkpoint import (
    TrainState,
    average,
    best_updates,
    load_state,
    newest_whole,
    prune,
    restore,
    save_checkpoint,
)
from nmt.training.interrupt import StopRequest
from nmt.training.loss import batch_loss
from nmt.training.optim import learning_rate, make_optimizer
from nmt.training.progress import TrainingLog
from nmt.training.validation import oriented, validate

MAX_SILENCE_S = 30.0  # then a line is written between two of log_every
MAX_SKIPPED_IN_A_ROW = 30  # fp16 updates without a finite gradient, while the loss scale is still falling


@dataclass
class _Sums:
    """Of the updates since the last line of the log."""

    loss: torch.Tensor | float = 0.0  # on the device: reading it waits for the device
    tokens: int = 0
    began: float = field(default_factory=time.monotonic)


class Trainer:
    """One run: a model, its optimiser, its data and where it stands."""

    def __init__(
        self, config: Config, run: Path, prepared: Prepared, bundle: Bundle, log: TrainingLog, stop: StopRequest
    ) -> None:
        self.config, self.run, self.prepared, self.bundle = config, run, prepared, bundle
        self.log, self.stop = log, stop
        self.model = bundle.model.train()
        self.pad = bundle.tokenizer.special.pad
        self.device = next(self.model.parameters()).device
        self.optimizer = make_optimizer(self.model, config.training)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.training.precision == "fp16")
        self.state = TrainState(data=prepared.train.folder.name)
        self.stream = self._stream_from(Position())
        self._since_record = _Sums()
        self._start_clock()

    def resume(self) -> None:
        """Go on from the newest checkpoint that is whole, if there is one; damaged ones are set aside.

        Raises: ConfigError (the training text is not the one the run began with), BundleError (none is whole).
        """
        checkpoint, damaged = newest_whole(self.run)
        if checkpoint is None and damaged:
            raise BundleError(
                f"No checkpoint of {self.run} is whole: {damaged[0][0].name}: {damaged[0][1]}. Restore one, or give "
                f"another --out to begin anew."
            )
        for folder, problem in damaged:
            aside = folder.with_name(f"{folder.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            self.log.say(f"warning: the checkpoint {folder} is damaged: {problem}; set aside as {aside.name}")
        if checkpoint is None:
            return
        began_with = load_state(checkpoint).data
        if began_with != self.state.data:
            raise ConfigError(
                f"{self.run} began with another training text or tokenizer ({began_with}; now {self.state.data}). "
                f"Restore them to go on, or give another --out for a new run."
            )
        self.state = restore(checkpoint, self.model, self.optimizer)
        self.scaler.load_state_dict(self.state.scaler)
        self.stream = self._stream_from(Position(self.state.epoch, self.state.batch_index))
        self.log.say(
            f"resuming from {checkpoint} (every checksum verified): update {self.state.update:,}, epoch "
            f"{self.state.epoch}, {self.state.minutes:.1f} minutes so far"
        )

    def fit(self) -> Path:
        """Train until a limit, early stopping or a signal; write the final bundle. Returns: its folder.

        Raises: DivergedError, Interrupted, StorageError.
        """
        ended, bundle_folder = self._limit_reached(), self.run / "bundle"
        if ended is not None and damage(bundle_folder) is None:
            self.log.say(f"this run has ended: {ended}")
            return bundle_folder
        self.try_widest_batches()
        with self.log.recording(self.run, self.state.update), self.stop.deferred():
            self._start_clock()
            while self._limit_reached() is None and self.stop.signal_number is None:
                self.one_update()
                self._validate_and_save()
            if self.stop.signal_number is not None:
                self._save()
                raise Interrupted(
                    self.stop.signal_number,
                    f"Stopped by a signal after update {self.state.update:,}; the same command goes on from there.",
                )
            self.log.say(f"stopping: {self._limit_reached()}")
            if str(self.state.update) not in self.state.scores:
                self._validate()
                self._save()
            return self._write_final_bundle()

    def try_widest_batches(self) -> None:
        """Run the widest batch of every split once, so that what cannot fit fails now and not after hours."""
        special, training = self.bundle.tokenizer.special, self.config.training
        for split in (self.prepared.train, self.prepared.valid):
            widest = widest_batch(split, special, training.tokens_per_batch)
            try:
                loss = batch_loss(self.model, widest, self.pad, training.label_smoothing, training.precision)
                torch.autograd.backward(loss)
            except torch.OutOfMemoryError as error:
                raise ConfigError(
                    f"The widest batch ({widest.src.shape[0]} pairs, {widest.src.shape[1]} source and "
                    f"{widest.tgt_in.shape[1]} target pieces) does not fit into memory. Lower "
                    f"training.tokens_per_batch (and raise training.accumulation to keep the size of an update), or "
                    f"data.max_length."
                ) from error
        self.optimizer.zero_grad(set_to_none=True)

    def one_update(self) -> None:
        """Draw the next micro-batches, sum their gradients, step. Raises: DivergedError."""
        config, state = self.config.training, self.state
        batches = [self.stream.next() for _ in range(config.accumulation)]
        num_tokens = sum(batch.num_tokens for batch in batches)
        for batch in batches:
            _seed_dropout(config.seed, state.micro_batches)
            state.micro_batches += 1
            loss_sum = batch_loss(self.model, batch, self.pad, config.label_smoothing, config.precision)
            torch.autograd.backward(self.scaler.scale(loss_sum / num_tokens))
            self._since_record.loss += loss_sum.detach()
        rate = learning_rate(state.update + 1, config)
        grad_norm = self._step(rate, batches)
        state.update += 1
        state.tokens += num_tokens
        state.epoch, state.batch_index = self.stream.position.epoch, self.stream.position.index
        state.minutes = self._minutes_offset + time.monotonic() / 60
        self._since_record.tokens += num_tokens
        silent_s = time.monotonic() - self._since_record.began
        if state.update % config.log_every == 0 or silent_s > MAX_SILENCE_S:
            sums, self._since_record = self._since_record, _Sums()
            means = {"loss": float(sums.loss) / sums.tokens, "tokens/s": sums.tokens / silent_s}
            self._record("update", {**means, "lr": rate, "grad_norm": grad_norm})

    def _step(self, rate: float, batches: list[Batch]) -> float:
        """Clip, refuse NaN, step the optimiser. Returns: the gradient's norm before clipping."""
        self.scaler.unscale_(self.optimizer)
        longest = self.config.training.clip_norm or math.inf  # 0 means: measure, do not clip
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), longest))
        self._refuse_non_finite(grad_norm, batches, rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self.optimizer)  # under fp16 it leaves the weights alone if the gradient is not finite
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm

    def _refuse_non_finite(self, grad_norm: float, batches: list[Batch], rate: float) -> None:
        """Stop before the optimiser is touched; under fp16 let the loss scale fall a while first."""
        if math.isfinite(grad_norm):
            self.state.skipped_in_a_row = 0
            return
        self.state.skipped_in_a_row += 1
        if self.scaler.is_enabled() and self.state.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW:
            return
        pairs = np.concatenate([batch.indices for batch in batches])[:20].tolist()
        raise DivergedError(
            f"The gradient of update {self.state.update + 1:,} is not finite (learning rate {rate:.3g}, training pairs "
            f"{pairs} …); the weights were not touched and the last checkpoint stands. A lower training.learning_rate, "
            f"a longer warmup_updates or clip_norm = 1.0 is the usual cure."
        )

    # Validation and checkpoints

    def _validate_and_save(self) -> None:
        validated = self.state.update % self.config.validation.every == 0
        if validated:
            self._validate()
        if validated or self._scheduled(self.state.update):
            self._save()

    def _validate(self) -> None:
        scores = validate(self.bundle, self.prepared, self.config)
        best = self.state.add_score(oriented(scores, self.config.validation.metric))
        self._record("valid", {**scores, "best": best})

    def _scheduled(self, update: int) -> bool:
        """Whether an uninterrupted run has a checkpoint there: only these are counted and averaged."""
        every = self.config.training.checkpoint_every or self.config.validation.every
        return update > 0 and (update % every == 0 or str(update) in self.state.scores)

    def _save(self) -> None:
        config = self.config.training
        self.state.scaler = self.scaler.state_dict()
        save_checkpoint(self.run, self.bundle, self.optimizer, self.state)
        shutil.rmtree(self.run / "bundle", ignore_errors=True)  # of an end left behind; the best checkpoint serves
        last = self._scheduled_checkpoints()[-config.keep_last :]
        best = [self._checkpoint(update) for update in best_updates(self.state, config.keep_best)]
        prune(self.run, keep={*last, *best, self._checkpoint(self.state.update)})

    def _scheduled_checkpoints(self) -> list[Path]:
        folders = list_checkpoints(self.run)
        return [folder for folder in folders if self._scheduled(int(folder.name.removeprefix("ckpt-")))]

    def _checkpoint(self, update: int) -> Path:
        return self.run / "checkpoints" / checkpoint_name(update)

    def _write_final_bundle(self) -> Path:
        """The average of some checkpoints if it is no worse on validation, else the best checkpoint."""
        config, metric = self.config.training, self.config.validation.metric
        best = self._checkpoint(self.state.best_update)
        if config.average == "best":
            averaged = [self._checkpoint(update) for update in best_updates(self.state, config.average_count)]
        else:
            averaged = self._scheduled_checkpoints()[-config.average_count :]
        averaged = [folder for folder in averaged if self._is_whole(folder)]
        load_weights(self.model, average(averaged))
        scores = validate(self.bundle, self.prepared, self.config)
        origin = f"the average of {len(averaged)} checkpoints"
        if oriented(scores, metric) < self.state.scores[str(self.state.best_update)] and self._is_whole(best):
            load_weights(self.model, average([best]))
            scores = validate(self.bundle, self.prepared, self.config)
            origin = f"the best checkpoint, {best.name}"
        with atomic_folder(self.run / "bundle") as temporary:
            self.bundle.write_into(temporary)
        self._record("final", {**scores, "from": origin})
        return self.run / "bundle"

    def _is_whole(self, checkpoint: Path) -> bool:
        problem = damage(checkpoint)
        if problem:
            self.log.say(f"warning: the checkpoint {checkpoint} is damaged: {problem}; it is left out")
        return problem is None

    # Where it stands

    def _limit_reached(self) -> str | None:
        """Why training ends here, or None."""
        config, state = self.config.training, self.state
        if config.max_updates is not None and state.update >= config.max_updates:
            return f"max_updates = {config.max_updates:,}"
        if config.max_epochs is not None and state.epoch >= config.max_epochs:
            return f"max_epochs = {config.max_epochs}"
        if config.max_minutes is not None and state.minutes >= config.max_minutes:
            return f"max_minutes = {config.max_minutes:g}"
        patience = self.config.validation.patience
        if patience and state.worse_in_a_row >= patience:
            return f"no better {self.config.validation.metric} in {patience} validations (best: {state.best_update:,})"
        return None

    def _fraction_done(self) -> float:
        config, state = self.config.training, self.state
        epochs = state.epoch + state.batch_index / self.stream.batches_in_epoch
        fractions = [
            state.update / config.max_updates if config.max_updates else 0.0,
            epochs / config.max_epochs if config.max_epochs else 0.0,
            state.minutes / config.max_minutes if config.max_minutes else 0.0,
        ]
        return min(1.0, max(fractions))

    def _record(self, kind: str, values: dict[str, Any]) -> None:
        fraction, minutes = self._fraction_done(), self.state.minutes
        left = minutes * (1 - fraction) / fraction if fraction else math.inf
        place = {"update": self.state.update, "epoch": self.state.epoch}
        self.log.record(
            kind, {**place, **values, "minutes": round(minutes, 3)}, fraction_done=fraction, minutes_left=left
        )

    def _start_clock(self) -> None:
        """From here on wall time counts as the run's, validation included."""
        self._minutes_offset = self.state.minutes - time.monotonic() / 60
        self._since_record = _Sums()

    def _stream_from(self, position: Position) -> BatchStream:
        training = self.config.training
        special = self.bundle.tokenizer.special
        return BatchStream(self.prepared.train, special, training.tokens_per_batch, training.seed, position)


def _seed_dropout(seed: int, micro_batch: int) -> None:
    """Reseed torch's default generators (CPU and all devices) for one micro-batch."""
    torch.manual_seed(int(np.random.SeedSequence([seed, micro_batch]).generate_state(1, np.uint64)[0] >> 1))
