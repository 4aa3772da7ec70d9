"""The training loop: batches to updates, validations, checkpoints, and the final bundle.

An update is one optimiser step, over `batches_per_update` micro-batches that the ranks share; their loss sums are
divided by the number of target tokens of the whole update. All randomness is a function of (seed, number of the
micro-batch), so that a resumed run repeats an uninterrupted one.
"""

import json
import math
import time
from collections.abc import Collection, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from nmt.bundle import Bundle, load_weights
from nmt.config import Config, TrainingConfig
from nmt.data.batching import BatchStream, Ids, Position, widest_batch
from nmt.data.domains import corpus_weights
from nmt.data.prepare import Prepared
from nmt.errors import BundleError, ConfigError, Interrupted
from nmt.model.memory import is_out_of_memory
from nmt.storage.atomic import atomic_folder, write_file
from nmt.storage.manifest import README, damage
from nmt.text.subwords import SubwordSampling
from nmt.text.tokenizer import Tokenizer
from nmt.training.checkpoint import CheckpointWriter, Snapshot, average, prune, restore
from nmt.training.checks import not_finite, refuse_drift, refuse_hopeless
from nmt.training.distributed import Ranks
from nmt.training.finite import Unseen, skip_unless_finite
from nmt.training.interrupt import StopRequest
from nmt.training.limits import fraction_done, left, limit_reached
from nmt.training.loss import batch_loss
from nmt.training.optim import learning_rate, make_optimizer
from nmt.training.prefetch import Prefetch
from nmt.training.progress import TrainingLog
from nmt.training.resume import adopt, new_state
from nmt.training.retention import final_candidates, kept
from nmt.training.sharding import gather_weights, is_sharded, on_device, refuse_unequal_shares, sharded_copy, whole_of
from nmt.training.sheet import model_sheet
from nmt.training.validation import oriented, validate

MAX_SILENCE_MINUTES = 0.5  # then a line is written between two of log_every
MAX_SKIPPED_IN_A_ROW = 30  # fp16 updates without a finite gradient, while the loss scale is still falling


@dataclass
class _Sums:
    """Of the updates since the last line of the log.

    Attributes:
        loss: of this rank; on the device, since reading it waits for the device.
        tokens: of all ranks.
        began_minutes, began_tokens: where the run stood when its speed was last measured.
    """

    loss: Tensor | float = 0.0
    tokens: int = 0
    began_minutes: float = 0.0
    began_tokens: int = 0


class Trainer:
    """One run: a model, its optimiser, its data and where it stands. Every rank has one.

    Args:
        look_later: whether the host looks at a gradient's norm one update later (see `finite`); by default on CUDA,
            if the model is not sharded.
    """

    def __init__(
        self,
        config: Config,
        run: Path,
        prepared: Prepared,
        bundle: Bundle,
        log: TrainingLog,
        stop: StopRequest,
        ranks: Ranks | None = None,
        *,
        look_later: bool | None = None,
    ) -> None:
        self.config, self.run, self.prepared, self.bundle = config, run, prepared, bundle
        self.log, self.stop, self.ranks = log, stop, ranks or Ranks()
        self.sharded = is_sharded(config.training, self.ranks)
        # If sharded, the bundle keeps a whole model beside it, to validate and to write; its weights follow then.
        self.model = (sharded_copy(bundle.model) if self.sharded else bundle.model).train()
        self.model.gradient_checkpointing = config.training.gradient_checkpointing
        if config.training.compile is True:
            self.model.compile_layers()
        self.pad = bundle.tokenizer.special.pad
        self.device = next(self.model.parameters()).device
        self.optimizer = make_optimizer(self.model, config.training)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.training.precision == "fp16")
        self.state = new_state(config, prepared, self.ranks.world)
        self.sampling = sampling_of(config.training, bundle.tokenizer)
        self.stream = self._stream_from(Position())
        self.writer = CheckpointWriter(run)
        self._saved_update, self._waits = 0, 0
        self._signal = 0  # a signal that any rank received, agreed on by all
        self._losses: dict[int, Tensor] = {}  # of this rank's micro-batches of the current update
        self._look_later = self.device.type == "cuda" and not self.sharded if look_later is None else look_later
        self._unseen: Unseen | None = None
        self._since_record = _Sums()
        self._start_clock()

    def resume(self, checkpoint: Path, changed: Collection[str] = ()) -> None:
        """Go on from a checkpoint that was verified. `changed` are keys of the config that are not the run's own."""
        self.state = adopt(restore(checkpoint, self.model, self.optimizer), self.state, changed)
        if self.state.scaler:  # there is none if the precision was another
            self.scaler.load_state_dict(self.state.scaler)
        if self.sharded:
            refuse_unequal_shares(self.state.batches_per_update, self.ranks.world, self.ranks)
            self.state.parts = 1  # ranks must make the same passes, so here nothing is split
        self.stream = self._stream_from(Position(self.state.epoch, self.state.batch_index))
        if self.state.batch_index >= self.stream.batches_in_epoch:
            raise BundleError(f"{checkpoint / 'state.json'} stands at a batch that its epoch does not have.")
        self._saved_update = self.state.update
        if self.ranks.first:
            prune(self.run, keep=kept(self.run, self.config, self.state))  # what a kill after the last save left
        self._start_clock()
        self.log.say(
            f"resuming from {checkpoint}: update {self.state.update:,}, epoch {self.state.epoch}, "
            f"{self.state.minutes:.1f} minutes so far; left: {left(self.config.training, self.state, self._epochs())}"
        )

    def fit(self) -> Path:
        """Train until a limit, early stopping or a signal; write the final bundle. Returns: its folder.

        Raises: DivergedError, Interrupted, StorageError, RankError.
        """
        ended, bundle_folder = limit_reached(self.config, self.state), self.run / "bundle"
        if ended and self.ranks.from_first("bundle damage", lambda: damage(bundle_folder) or "") == "":
            self.log.say(f"this run has ended: {ended}")
            return bundle_folder
        self.try_widest_batches()
        recording = self.log.recording(self.run, self.state.update) if self.ranks.first else nullcontext()
        with recording, self.stop.deferred(), closing(self.stream), self.writer.finishing():
            self._start_clock()
            self._agree()
            while True:
                if self._due():
                    self._validate_and_save()
                ended = limit_reached(self.config, self.state)
                if ended or self._signal:
                    break
                rates = self.one_update()
                self._agree()
                self._record_update(rates)
            if self._signal:
                self._stop_here()
            self.log.say(f"stopping: {ended}")
            if str(self.state.update) not in self.state.scores:
                self._validate_and_save()
            bundle_folder = self._write_final_bundle()
            self._agree()
            if self._signal:
                self._stop_here(save=False)
            return bundle_folder

    def try_widest_batches(self) -> None:
        """Run the widest batch of every split once, so that what cannot fit fails now and not after hours.

        Raises: ConfigError.
        """
        special, training = self.bundle.tokenizer.special, self.config.training
        widest = widest_batch(self.prepared.train, special, training.batch_tokens)
        self._gradients({0: widest.indices}, widest.num_tokens)
        self.optimizer.zero_grad(set_to_none=True)
        widest = widest_batch(self.prepared.valid, special, training.batch_tokens)
        try:
            with on_device(self.bundle.model, self.device), torch.inference_mode():
                batch_loss(self.bundle.model, widest, self.pad, 0.0, training.precision)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise _does_not_fit(f"The widest validation batch, {widest.src.shape[0]} pairs,") from error
        if training.compile is True:
            self._compile_all()

    def _compile_all(self) -> None:
        """Run one batch of each kind that the layers have a program of their own for, so that all are compiled now.

        Without source padding there is no mask; torch pads a mask whose width is no multiple of 8 in the program.
        """
        stream, seen = self._stream_from(Position()), set[tuple[bool, bool]]()
        for _ in range(stream.batches_in_epoch):
            pairs = stream.draw()
            lengths = self.prepared.train.src_lengths[pairs]
            padded = bool((lengths < lengths.max()).any())
            kind = (padded, padded and int(lengths.max()) % 8 == 0)
            if kind not in seen and len(pairs) > 1:
                seen.add(kind)
                self._gradients({0: pairs}, stream.num_tokens(pairs))
                self.optimizer.zero_grad(set_to_none=True)
            if len(seen) == 3:
                return

    def one_update(self) -> dict[str, float | Tensor]:
        """Draw the next micro-batches, sum their gradients, step. Returns: `lr` and `grad_norm`, on the device.

        Raises: DivergedError, ConfigError, RankError.
        """
        config, state = self.config.training, self.state
        drawn = [self.stream.draw() for _ in range(state.batches_per_update)]
        numbered = {state.micro_batches + place: drawn[place] for place in self.ranks.share(len(drawn))}
        if self.stream.samples:  # each rank counts what it has made
            (total,) = self.ranks.total([sum(map(self.stream.num_tokens, numbered.values()))])
            num_tokens = int(total)
        else:
            num_tokens = sum(map(self.stream.num_tokens, drawn))
        loss = self._gradients(numbered, num_tokens)
        if not self.sharded:  # then the backward pass has summed them
            self.ranks.sum_gradients(self.model)
        rate = learning_rate(state.update + 1, config)
        grad_norm = self._step(rate, numbered)
        state.update += 1
        state.micro_batches += len(drawn)
        state.tokens += num_tokens
        state.epoch, state.batch_index = self.stream.position.epoch, self.stream.position.index
        self._since_record.loss += loss
        self._since_record.tokens += num_tokens
        return {"lr": rate, "grad_norm": grad_norm}

    def _gradients(self, micro_batches: Mapping[int, Ids], num_tokens: int) -> Tensor:
        """Sum the gradients of this rank's micro-batches, given by number. Returns: their summed loss.

        When memory runs out all of them are computed again in smaller parts, so no pair is lost or counted twice; the
        gradient is the same (with dropout its masks are drawn anew). A sharded model cannot do that: the others would
        wait in the pass that was broken off.
        """
        rows = max(map(len, micro_batches.values()), default=0)
        while True:
            try:
                with self.ranks.talking("for a layer", computing=True):
                    return self._gradients_in_parts(micro_batches, num_tokens)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self.sharded:
                    raise _does_not_fit(f"A micro-batch of {rows:,} sentence pairs") from error
            self._split_further(rows)  # not above: the error holds on to memory

    def _gradients_in_parts(self, micro_batches: Mapping[int, Ids], num_tokens: int) -> Tensor:
        config = self.config.training
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        self._losses = {}
        for number, pairs in micro_batches.items():
            _seed_dropout(config.seed, number)
            total = torch.zeros((), dtype=exact, device=self.device)
            for part in np.array_split(pairs, min(self.state.parts, len(pairs))):
                batch = self.stream.batch(part)
                loss_sum = batch_loss(self.model, batch, self.pad, config.label_smoothing, config.precision)
                torch.autograd.backward(self.scaler.scale(loss_sum / num_tokens))
                total += loss_sum.detach()
            self._losses[number] = total
        return sum(self._losses.values(), torch.zeros((), dtype=exact, device=self.device))

    def _split_further(self, rows: int) -> None:
        """From now on compute micro-batches in twice as many parts. Raises: ConfigError (one row is too much)."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.state.parts >= rows:
            raise _does_not_fit("Even one sentence pair at a time")
        self.state.parts *= 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.log.say(
            f"warning: out of memory at update {self.state.update + 1:,}: computed again, and from here on, with each "
            f"micro-batch in {self.state.parts} parts. The updates stay the same (dropout draws other masks); a lower "
            f"training.tokens_per_batch with more training.accumulation is faster."
        )

    def _step(self, rate: float, numbered: Mapping[int, Ids]) -> Tensor:
        """Clip, refuse NaN, step the optimiser. Returns: the gradient's norm before clipping."""
        longest = self.config.training.clip_norm or math.inf  # 0 means: measure, do not clip
        with self.ranks.talking("for the gradient's norm", computing=True):
            self.scaler.unscale_(self.optimizer)
            grad_norm = whole_of(torch.nn.utils.clip_grad_norm_(self.model.parameters(), longest))
        self._look()  # at the update before, if that was not done
        self._unseen = Unseen.of(grad_norm, self.state.update + 1, rate, numbered, self._losses)
        if not self._look_later:
            self._look()
        elif not self.scaler.is_enabled():  # which tells the optimiser itself
            skip_unless_finite(self.optimizer, grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self.optimizer)  # under fp16 it leaves the weights alone if the gradient is not finite
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm

    def _look(self) -> None:
        """See that the last update's gradient was finite. Raises: DivergedError."""
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            self._refuse_non_finite(unseen)

    def _refuse_non_finite(self, seen: Unseen) -> None:
        """Stop before the optimiser has touched anything; under fp16 let the loss scale fall a while first."""
        if math.isfinite(seen.grad_norm()):
            self.state.skipped_in_a_row = 0
            return
        self.state.skipped_in_a_row += 1
        if self.scaler.is_enabled() and self.state.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW:
            return
        raise not_finite(seen.update, seen.rate, seen.micro_batches, seen.losses, self.ranks)

    def _agree(self) -> None:
        """What every rank must know alike: a signal, the clock, the split. Raises: StorageError (the last save)."""
        now = self._minutes_offset + time.monotonic() / 60
        known = [float(self.stop.signal_number or 0), now, float(self.state.parts), float(self.writer.failed())]
        signal_number, self.state.minutes, parts, failed = self.ranks.largest(known)
        self._signal, self.state.parts = int(signal_number), int(parts)
        if failed:
            self._finish_writing()

    # Validation and checkpoints

    def _due(self) -> bool:
        """Whether the current update is one to validate or save, and that has not been done."""
        update = self.state.update
        validation = update % self.config.validation.every == 0 and str(update) not in self.state.scores
        every = self.config.training.checkpoint_every
        saving = every is not None and update % every == 0 and self._saved_update != update
        return update > 0 and (validation or saving)

    def _validate_and_save(self) -> None:
        self._look()
        self._refuse_drift()
        if self.state.update % self.config.validation.every == 0 or limit_reached(self.config, self.state):
            self._validate()
        self._save()

    def _refuse_drift(self) -> None:
        """Raises: DivergedError. Of a sharded model every weight is in one rank alone."""
        if not self.sharded:
            refuse_drift(self.model, self.state.update, self.ranks)

    def _validate(self) -> None:
        """Raises: DivergedError (a hopeless loss), Interrupted."""
        if self.sharded:
            gather_weights(self.model, self.bundle.model, self.ranks)
        scores = self._scores_now()
        if scores is None:
            self._agree()
            self._stop_here()
        young = self.state.update < 2 * self.config.training.warmup_updates
        refuse_hopeless(scores["loss"], self.bundle.config.tgt_vocab_size, self.state.update, self.ranks, young=young)
        best = self.state.add_score(oriented(scores, self.config.validation.metric))
        self._record("valid", {**scores, "best": best})

    def _save(self) -> None:
        """Hand a checkpoint of the current update to the writer; training waits while it is copied."""
        self._look()
        state, sums = self.state, self._since_record
        self._finish_writing()  # before copying: two copies might not fit into memory
        (loss,) = self.ranks.total([float(sums.loss)])
        sums.loss = loss if self.ranks.first else 0.0
        state.unlogged_loss, state.unlogged_tokens = loss, sums.tokens
        state.scaler = self.scaler.state_dict()
        self._saved_update = state.update
        if self.sharded:
            snapshot = Snapshot.take_sharded(self.bundle, self.model, self.optimizer, state, self.ranks)
        elif self.ranks.first:
            snapshot = Snapshot.take(self.bundle, self.optimizer, state)
        if self.ranks.first:
            self.writer.write(snapshot, lambda: kept(self.run, self.config, snapshot.state))

    def _finish_writing(self) -> None:
        """Wait until the last checkpoint is written. Raises: StorageError, in all ranks alike."""
        self._waits += 1

        def wait() -> str:
            self.writer.wait()
            return ""

        self.ranks.from_first(f"written {self._waits}", wait)

    def _stop_here(self, *, save: bool = True) -> NoReturn:
        """End because of a signal. Raises: Interrupted."""
        if save and self._saved_update != self.state.update:
            self._refuse_drift()
            self._save()
        self._finish_writing()  # all wait: the first to end lets torchrun kill the others soon
        where = f"Stopped by a signal after update {self.state.update:,}; the same command goes on from there."
        raise Interrupted(self._signal, where if self.ranks.first else "")

    def _write_final_bundle(self) -> Path:
        """The average of some checkpoints if it is no worse on validation, else the best checkpoint."""
        self._finish_writing()

        def candidates() -> str:
            return json.dumps(final_candidates(self.run, self.config, self.state, self.log.say))

        averaged, best = json.loads(self.ranks.from_first("final", candidates))
        scores = self._scores_of(averaged)
        origin = f"the average of {len(averaged)} checkpoints"
        if best and oriented(scores, self.config.validation.metric) < self.state.scores[str(self.state.best_update)]:
            scores = self._scores_of(best)
            origin = f"the best checkpoint, {best[0]}"
        if self.ranks.first:
            with atomic_folder(self.run / "bundle") as temporary:
                self.bundle.write_into(temporary)
                sheet = model_sheet(self.bundle, self.prepared, self.config, self.state, scores, origin)
                write_file(temporary / README, sheet.encode("utf-8", errors="replace"))
        self._record("final", {**scores, "from": origin})
        return self.run / "bundle"

    def _scores_of(self, checkpoints: list[str]) -> dict[str, float]:
        """Scores of the mean of the checkpoints' weights, which the bundle then holds. Raises: Interrupted."""
        load_weights(self.bundle.model, average([self.run / "checkpoints" / name for name in checkpoints]))
        scores = self._scores_now()
        if scores is None:
            self._agree()
            self._stop_here(save=False)
        return scores

    def _scores_now(self) -> dict[str, float] | None:
        """Scores of the bundle's model; None if a signal came."""
        with on_device(self.bundle.model, self.device):
            return validate(self.bundle, self.prepared, self.config, self.ranks, self.stop)

    # The log, the clock, the stream

    def _record_update(self, rates: Mapping[str, float | Tensor]) -> None:
        """A line of the log where one is due: means since the last one; `data_wait` is waiting's share of time."""
        state, sums = self.state, self._since_record
        minutes = state.minutes - sums.began_minutes
        if state.update % self.config.training.log_every and minutes < MAX_SILENCE_MINUTES:
            return
        self._look()
        (loss,) = self.ranks.total([float(sums.loss)])
        seconds = 60 * max(minutes, 1e-9)
        speed, data_wait = (state.tokens - sums.began_tokens) / seconds, self.stream.take_stalled_s() / seconds
        self._since_record = _Sums(began_minutes=state.minutes, began_tokens=state.tokens)
        means = {"loss": loss / sums.tokens, "tokens/s": speed, "data_wait": round(data_wait, 4)}
        self._record("update", means | {name: float(rate) for name, rate in rates.items()})

    def _record(self, kind: str, values: dict[str, Any]) -> None:
        fraction, minutes = fraction_done(self.config.training, self.state, self._epochs()), self.state.minutes
        minutes_left = minutes * (1 - fraction) / fraction if fraction else math.inf
        facts = {"update": self.state.update, "epoch": self.state.epoch, **values, "minutes": round(minutes, 3)}
        self.log.record(kind, facts, fraction_done=fraction, minutes_left=minutes_left)

    def _epochs(self) -> float:
        return self.state.epoch + self.state.batch_index / self.stream.batches_in_epoch

    def _start_clock(self) -> None:
        """From here on wall time counts as the run's, validation included."""
        state = self.state
        self._minutes_offset = state.minutes - time.monotonic() / 60
        self.stream.take_stalled_s()
        self._since_record = _Sums(
            loss=state.unlogged_loss if self.ranks.first else 0.0,
            tokens=state.unlogged_tokens,
            began_minutes=state.minutes,
            began_tokens=state.tokens,
        )

    def _stream_from(self, position: Position) -> Prefetch:
        training, per_update = self.config.training, self.state.batches_per_update
        special = self.bundle.tokenizer.special
        stream = BatchStream(
            self.prepared.train,
            special,
            training.batch_tokens,
            training.seed,
            position,
            equal_sources=training.equal_source_lengths is True,
            sampling=self.sampling,
            weights=corpus_weights(self.config.data),
        )
        return Prefetch(stream, per_update, self.ranks.share(per_update), self.device)


def sampling_of(training: TrainingConfig, tokenizer: Tokenizer) -> SubwordSampling | None:
    """What draws the pieces of training pairs; None if they are always the same. Raises: ConfigError."""
    amounts = training.bpe_dropout, training.unigram_alpha
    return SubwordSampling(tokenizer, *amounts, training.seed) if any(amounts) else None


def _does_not_fit(what: str) -> ConfigError:
    return ConfigError(
        f"{what} does not fit into memory. Lower training.tokens_per_batch (and raise training.accumulation to keep "
        f"the size of an update), data.max_length, or the model."
    )


def _seed_dropout(seed: int, micro_batch: int) -> None:
    """Reseed torch's default generators for one micro-batch.

    Not by `torch.manual_seed`, which takes a millisecond for devices that are not there.
    """
    state = int(np.random.SeedSequence([seed, micro_batch]).generate_state(1, np.uint64)[0] >> 1)
    torch.default_generator.manual_seed(state)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(state)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(state)
