"""What safety costs: an update as `nmt train` does it against a bare one, in pairs; a base model's checkpoint.

Both trainers start alike and take the same batches in turn, so what the machine does besides hits both. A pair is ten
updates of each. The checkpoints of a run are counted with all the time that writing them takes, as if nothing ran
beside it, which is more than they cost.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from figures import ROOT, figure_line, nmt
from nmt.bundle import Bundle, BundleConfig
from nmt.config import Config, load_config
from nmt.decoding.translator import pick_device
from nmt.model.transformer import Transformer
from nmt.text.tokenizer import Tokenizer
from nmt.training.checkpoint import CheckpointWriter, Snapshot, TrainState
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.loss import batch_loss
from nmt.training.optim import learning_rate, make_optimizer
from nmt.training.progress import TrainingLog
from nmt.training.run import _open, _trainer
from nmt.training.trainer import Trainer

PAIRS, UPDATES_A_PAIR, SAVES = 100, 10, 5
T_975 = 1.984  # Student's t, 99 degrees of freedom


def main() -> None:
    """Print the two figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nmt("data", "toy", "--out", folder / "toy")
        config = load_config(ROOT / "configs" / "toy.toml").replace(data={"dir": str(folder / "toy")})
        _update_cost(config, folder)
        _checkpoint_cost(folder)


def _update_cost(config: Config, folder: Path) -> None:
    safe, bare = (_new_trainer(config, folder / kind) for kind in ("safe", "bare"))
    with safe.log.recording(safe.run, 0):
        for _ in range(UPDATES_A_PAIR):  # warm up
            _safe_update(safe)
            _bare_update(bare)
        percent, bare_s = [], []
        for _ in range(PAIRS):
            seconds = {_safe_update: 0.0, _bare_update: 0.0}
            for number in range(UPDATES_A_PAIR):
                turns = [(_safe_update, safe), (_bare_update, bare)]
                for update, trainer in turns if number % 2 else reversed(turns):
                    seconds[update] += _timed(lambda: update(trainer))  # noqa: B023
            percent.append(100 * (seconds[_safe_update] / seconds[_bare_update] - 1))
            bare_s.append(seconds[_bare_update] / UPDATES_A_PAIR)
        saves = [_timed(lambda: _save_and_wait(safe)) for _ in range(SAVES)]
    every = config.validation.every
    of_saves = 100 * statistics.median(saves) / (every * statistics.median(bare_s))
    of_updates, half = statistics.mean(percent), T_975 * statistics.stdev(percent) / PAIRS**0.5
    total = of_updates + of_saves
    print(f"updates: {of_updates:+.2f} % ± {half:.2f} (95 % interval, {PAIRS} pairs of {UPDATES_A_PAIR} updates)")
    print(f"a checkpoint every {every} updates: {of_saves:+.2f} % ({statistics.median(saves):.3f} s each, waited for)")
    print(figure_line("safety_cost_percent", f"{total:.2f} ± {half:.2f}", "< 1", total < 1))


def _checkpoint_cost(folder: Path) -> None:
    """How long training stands still for a checkpoint of the base model, against a copy of as many bytes."""
    config = load_config(ROOT / "configs" / "wmt14-en-de-base.toml")
    tokenizer = _any_tokenizer(folder / "safe")
    vocab_size = config.tokenizer.vocab_size
    shape = BundleConfig(
        src_lang="en",
        tgt_lang="de",
        src_vocab_size=vocab_size,
        tgt_vocab_size=vocab_size,
        max_length=config.data.max_length,
        model=config.model,
        decoding=config.decoding,
    )
    bundle = Bundle(shape, Transformer(config.model, vocab_size, vocab_size), tokenizer)
    optimizer = make_optimizer(bundle.model, config.training)
    for parameter in bundle.model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [parameter.detach() for parameter in bundle.model.parameters()] + moments
    writer = CheckpointWriter(folder / "base")
    still, copies, whole = [], [], []
    for update in range(1, SAVES + 1):
        copies.append(_timed(lambda: [tensor.clone() for tensor in tensors]))
        began = time.monotonic()
        writer.write(Snapshot.take(bundle, optimizer, TrainState(update=update)), keep=lambda: set())
        still.append(time.monotonic() - began)
        writer.wait()
        whole.append(time.monotonic() - began)
    megabytes = sum(tensor.nbytes for tensor in tensors) / 1e6
    ratio = statistics.median(still) / statistics.median(copies)
    print(f"base model: {bundle.model.num_parameters():,} parameters, {megabytes:,.0f} MB a checkpoint")
    print(f"training stands still for {statistics.median(still):.2f} s of {statistics.median(whole):.2f} s")
    print(figure_line("checkpoint_stall_of_a_copy", f"{ratio:.2f}", "<= 1.25 times the copy's time", ratio <= 1.25))


def _new_trainer(config: Config, run: Path) -> Trainer:
    run.mkdir()
    log, device = TrainingLog(quiet=True), pick_device("cpu")
    opened = _open(config, run, device, run.parent / "cache", 0, log)
    return _trainer(opened, run, device, log, StopRequest(), Ranks())


def _safe_update(trainer: Trainer) -> None:
    """As in `Trainer.fit`."""
    rates = trainer.one_update()
    trainer._agree()
    trainer._record_update(rates)


def _bare_update(trainer: Trainer) -> None:
    """The same arithmetic, and nothing besides."""
    training, batch = trainer.config.training, trainer.stream.batch(trainer.stream.draw())
    loss = batch_loss(trainer.model, batch, trainer.pad, training.label_smoothing, training.precision)
    torch.autograd.backward(loss / batch.num_tokens)
    torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), training.clip_norm)
    trainer.state.update += 1
    for group in trainer.optimizer.param_groups:
        group["lr"] = learning_rate(trainer.state.update, training)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)


def _save_and_wait(trainer: Trainer) -> None:
    trainer._save()
    trainer.writer.wait()


def _any_tokenizer(run: Path) -> Tokenizer:
    return Bundle.load(run).tokenizer


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


main()
