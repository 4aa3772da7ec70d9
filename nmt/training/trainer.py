"""The training loop: batches to updates, validations, checkpoints, and the final bundle.

`train` opens or resumes a run folder and returns the path of the bundle it ends with. An update is one optimiser step,
over `accumulation` micro-batches whose loss sums are divided by the number of target tokens of the whole update.
All randomness is a function of (seed, number of the micro-batch), so that a resumed run repeats an uninterrupted one.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.bundle import Bundle, checkpoint_name, list_checkpoints, load_weights
from nmt.config import Config
from nmt.data.batching import Batch, BatchStream, Position, in_order, widest_batch
from nmt.data.prepare import Prepared
from nmt.decoding.translator import Translator
from nmt.errors import DivergedError, Interrupted
from nmt.evaluation.metrics import score
from nmt.storage.atomic import atomic_folder
from nmt.training.checkpoint import (
    TrainState,
    average,
    best_updates,
    newest_whole,
    prune,
    restore,
    save_checkpoint,
)
from nmt.training.interrupt import StopRequest
from nmt.training.loss import label_smoothed_nll
from nmt.training.optim import learning_rate, make_optimizer
from nmt.training.progress import TrainingLog

MAX_SKIPPED_IN_A_ROW = 30  # fp16 updates without a finite gradient, while the loss scale is still falling


class Trainer:
    """One run: a model, its optimiser, its data and where it stands."""

    def __init__(
        self, config: Config, run: Path, prepared: Prepared, bundle: Bundle, log: TrainingLog, stop: StopRequest
    ) -> None:
        self.config, self.run, self.prepared, self.bundle = config, run, prepared, bundle
        self.log, self.stop = log, stop
        self.model = bundle.model.train()
        self.device = next(self.model.parameters()).device
        self.optimizer = make_optimizer(self.model, config.training)
        self.state = TrainState()
        self._resume()
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=self.state.loss_scale, enabled=config.training.precision == "fp16"
        )
        self.stream = self._stream(Position(self.state.epoch, self.state.batch_index))
        self._skipped_in_a_row = 0
        self._minutes_offset = self.state.minutes - time.monotonic() / 60

    def fit(self) -> Path:
        """Train until a limit, early stopping or a signal; write the final bundle. Returns: its folder.

        Raises: DivergedError, Interrupted, StorageError.
        """
        ended, folder = self._limit_reached(), self.run / "bundle"
        if ended is not None and folder.is_dir():
            self.log.say(f"this run has ended: {ended}")
            return folder
        self.try_widest_batches()
        with self.log.recording(self.run, self.state.update), self.stop.deferred():
            self._minutes_offset = self.state.minutes - time.monotonic() / 60
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
        special, tokens = self.bundle.tokenizer.special, self.config.training.tokens_per_batch
        widest = widest_batch(self.prepared.train, special, tokens)
        torch.autograd.backward(self._loss(widest))
        self.optimizer.zero_grad(set_to_none=True)
        with torch.inference_mode():
            self._loss(widest_batch(self.prepared.valid, special, tokens))

    # One update

    def one_update(self) -> None:
        """Draw the next micro-batches, accumulate their gradient, step. Raises: DivergedError."""
        config, state = self.config.training, self.state
        began = time.monotonic()
        batches = [self.stream.next() for _ in range(config.accumulation)]
        num_tokens = sum(batch.num_tokens for batch in batches)
        loss = torch.zeros((), device=self.device)
        for batch in batches:
            _seed_everything(config.seed, state.micro_batches)
            state.micro_batches += 1
            loss_sum = self._loss(batch)
            torch.autograd.backward(self.scaler.scale(loss_sum / num_tokens))
            loss += loss_sum.detach()
        self.scaler.unscale_(self.optimizer)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm or math.inf))
        rate = learning_rate(state.update + 1, config)
        self._refuse_non_finite(grad_norm, batches, rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        state.update += 1
        state.tokens += num_tokens
        state.epoch, state.batch_index = self.stream.position.epoch, self.stream.position.index
        state.minutes = self._minutes_offset + time.monotonic() / 60
        if state.update % config.log_every == 0:
            self._record(
                "update",
                {
                    "loss": float(loss) / num_tokens,
                    "lr": rate,
                    "grad_norm": grad_norm,
                    "tokens/s": num_tokens / (time.monotonic() - began),
                },
            )

    def _loss(self, batch: Batch) -> Tensor:
        """The summed label-smoothed loss of a batch."""
        src_BS, tgt_in_BT, tgt_out_BT = (
            torch.from_numpy(ids).to(self.device, non_blocking=True) for ids in (batch.src, batch.tgt_in, batch.tgt_out)
        )
        pad = self.bundle.tokenizer.special.pad
        src_keep_BS = src_BS != pad if (batch.src == pad).any() else None
        with self._autocast():
            logits_BTV = self.model(src_BS, tgt_in_BT, src_keep_BS)
        smoothing = self.config.training.label_smoothing if self.model.training else 0.0
        return label_smoothed_nll(logits_BTV, tgt_out_BT, pad, smoothing)

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.config.training.precision)
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            yield

    def _refuse_non_finite(self, grad_norm: float, batches: list[Batch], rate: float) -> None:
        """Stop before the optimiser is touched; under fp16 let the loss scale fall a while first."""
        if math.isfinite(grad_norm):
            self._skipped_in_a_row = 0
            return
        self._skipped_in_a_row += 1
        if self.scaler.is_enabled() and self._skipped_in_a_row < MAX_SKIPPED_IN_A_ROW:
            return
        pairs = np.concatenate([batch.indices for batch in batches])[:20].tolist()
        raise DivergedError(
            f"The gradient of update {self.state.update + 1:,} is not finite (learning rate {rate:.3g}, training pairs "
            f"{pairs} …); the weights were not touched and the last checkpoint stands. A lower training.learning_rate, "
            f"a longer warmup_updates or clip_norm = 1.0 is the usual cure."
        )

    # Validation and checkpoints

    def _validate_and_save(self) -> None:
        update = self.state.update
        every = self.config.training.checkpoint_every or self.config.validation.every
        validated = update % self.config.validation.every == 0
        if validated:
            self._validate()
        if validated or update % every == 0:
            self._save()

    def _validate(self) -> None:
        scores = self._scores_of(self.bundle)
        best = self.state.add_score(_oriented(scores, self.config.validation.metric))
        self._record("valid", {**scores, "best": best})

    def _scores_of(self, bundle: Bundle) -> dict[str, float]:
        """Loss a token (nats, no smoothing), and BLEU and chrF of real translations against raw references."""
        bundle.model.eval()
        special, tokens = bundle.tokenizer.special, self.config.training.tokens_per_batch
        loss, num_tokens = 0.0, 0
        with torch.inference_mode():
            for batch in in_order(self.prepared.valid, special, tokens):
                loss += float(self._loss(batch))
                num_tokens += batch.num_tokens
        limit = self.config.validation.max_sentences or len(self.prepared.valid_src)
        translator = Translator(bundle, beam_size=self.config.validation.beam_size)
        with self._autocast():
            hypotheses = translator.translate(self.prepared.valid_src[:limit])
        references = [self.prepared.valid_tgt[:limit]]
        bleu, chrf = score(hypotheses, references, metrics=("bleu", "chrf"), tgt_lang=self.config.data.tgt_lang)
        bundle.model.train()
        return {"loss": loss / num_tokens, "bleu": bleu.value, "chrf": chrf.value}

    def _save(self) -> None:
        self.state.loss_scale = self.scaler.get_scale() if self.scaler.is_enabled() else self.state.loss_scale
        save_checkpoint(self.run, self.bundle, self.optimizer, self.state)
        prune(self.run, self.state, self.config.training.keep_last, self.config.training.keep_best)

    def _resume(self) -> None:
        checkpoint, problems = newest_whole(self.run)
        for problem in problems:
            self.log.say(f"warning: {problem}")
        if checkpoint is not None:
            self.state = restore(checkpoint, self.model, self.optimizer)
            self.log.say(
                f"resuming from {checkpoint} (verified): update {self.state.update:,}, epoch {self.state.epoch}, "
                f"{self.state.minutes:.1f} minutes trained"
            )

    def _write_final_bundle(self) -> Path:
        """The average of some checkpoints if it is no worse on validation, else the best checkpoint."""
        config, by_update = self.config.training, {c.name: c for c in list_checkpoints(self.run)}
        best = by_update[checkpoint_name(self.state.best_update)]
        if config.average == "best":
            chosen = [by_update[checkpoint_name(u)] for u in best_updates(self.state, config.average_count)]
        else:
            chosen = list_checkpoints(self.run)[-config.average_count :]
        load_weights(self.model, average(chosen))
        scores = self._scores_of(self.bundle)
        averaged = _oriented(scores, self.config.validation.metric)
        used = f"the average of {len(chosen)} checkpoints"
        if averaged < self.state.scores[str(self.state.best_update)]:
            load_weights(self.model, average([best]))
            scores, used = self._scores_of(self.bundle), f"the best checkpoint, {best.name}"
        folder = self.run / "bundle"
        with atomic_folder(folder) as temporary:
            self.bundle.write_into(temporary)
        self._record("final", {**scores, "from": used})
        return folder

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

    def _stream(self, position: Position) -> BatchStream:
        training = self.config.training
        special = self.bundle.tokenizer.special
        return BatchStream(self.prepared.train, special, training.tokens_per_batch, training.seed, position)


def _oriented(scores: dict[str, float], metric: str) -> float:
    """The deciding score, so that more is better; NaN counts as worst."""
    value = -scores[metric] if metric == "loss" else scores[metric]
    return value if math.isfinite(value) else -math.inf


def _seed_everything(seed: int, micro_batch: int) -> None:
    """Reseed torch's default generators (CPU and all devices) for one micro-batch."""
    torch.manual_seed(int(np.random.SeedSequence([seed, micro_batch]).generate_state(1, np.uint64)[0] >> 1))
