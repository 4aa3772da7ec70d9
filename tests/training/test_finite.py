"""Looking at the gradient's norm one update later: nothing is read from the device in between, nothing else changes."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from nmt.config import TrainingConfig
from nmt.data.batching import Batch
from nmt.errors import DivergedError
from nmt.training import run, trainer
from nmt.training.distributed import Ranks
from nmt.training.finite import skip_unless_finite
from nmt.training.interrupt import StopRequest
from nmt.training.optim import make_optimizer
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer

# Operations whose result is, or hangs on, a number that the host has to wait for.
WAITING = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_consecutive", "is_nonzero"}


class Reads(TorchDispatchMode):
    """Counts what would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING or (name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of all reads within the block, those that bypass the dispatcher too."""
    with Reads() as seen, monkeypatch.context() as patch:
        for name in ("tolist", "cpu"):
            original = getattr(Tensor, name)

            def counted(self: Tensor, *rest: Any, name: str = name, original: Any = original) -> Any:
                seen.names.append(name)
                return original(self, *rest)

            patch.setattr(Tensor, name, counted)
        yield seen.names


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    recipe = {"accumulation": 2, "log_every": 6, "max_updates": 18}
    return tiny.write(tmp_path_factory.mktemp("tiny"), training=recipe, validation={"every": 9})


def new_trainer(corpus: tiny.Tiny, folder: Path, *, look_later: bool, **training: Any) -> Trainer:
    folder.mkdir(exist_ok=True)
    log, device = TrainingLog(quiet=True), torch.device("cpu")
    opened = run._open(corpus.config.replace(training=training), folder, device, corpus.cache, 1, log)
    work = run._trainer(opened, folder, device, log, StopRequest(), Ranks())
    return Trainer(work.config, folder, work.prepared, work.bundle, log, StopRequest(), look_later=look_later)


def reads_by_update(work: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of twelve updates as `Trainer.fit` does them, the data already drawn up."""
    by_update = []
    with tiny.one_thread():
        work.try_widest_batches()  # as `fit` does; it moves the table of positions to the device
        for _ in range(12):
            with reads(monkeypatch) as names:
                rates = work.one_update()
                work._agree()
                work._record_update(rates)
            by_update.append(names)
    return by_update


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_nothing_is_read_between_log_lines(
    corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, figure: Callable[..., None]
) -> None:
    work = new_trainer(corpus, tmp_path / "later", look_later=True, precision=precision)
    by_update = reads_by_update(work, monkeypatch)
    between = [names for update, names in enumerate(by_update, start=1) if update % 6]
    assert "_local_scalar_dense" in by_update[5] and "_local_scalar_dense" in by_update[11]  # the lines of the log
    count = sum(map(len, between))
    said = f"{count} in {len(between)} updates of 2 micro-batches {sorted(set().union(*between)) or ''}".strip()
    figure(f"host_reads_per_update_{precision}", said, "0", count == 0)


def test_the_counter_counts(corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(3)
    ways: list[Callable[[], object]] = [
        lambda: tensor[0].item(),
        lambda: float(tensor[0]),
        lambda: bool(tensor[0] > 0),
        lambda: tensor.tolist(),
        lambda: tensor.cpu(),
        lambda: tensor[tensor > 0],
        lambda: tensor.equal(tensor),
    ]
    for number, way in enumerate(ways):
        with reads(monkeypatch) as names:
            way()
        assert names, number

    original = trainer.batch_loss

    def curious(*args: Any) -> Tensor:
        loss = original(*args)
        assert math.isfinite(float(loss))
        return loss

    monkeypatch.setattr(trainer, "batch_loss", curious)
    by_update = reads_by_update(new_trainer(corpus, tmp_path, look_later=True), monkeypatch)
    assert all(len(names) >= 2 for names in by_update)


def test_the_same_updates(corpus: tiny.Tiny, tmp_path: Path) -> None:
    for precision in ("fp32", "fp16"):
        works = [
            new_trainer(corpus, tmp_path / f"{precision}{later}", look_later=later, precision=precision)
            for later in (False, True)
        ]
        with tiny.one_thread():
            for work in works:
                norms = [float(work.one_update()["grad_norm"]) for _ in range(8)]
                assert all(map(math.isfinite, norms)) or precision == "fp16"
        weights = [torch.cat([p.detach().flatten() for p in work.model.parameters()]) for work in works]
        assert torch.equal(*weights)


def test_a_skipped_step_changes_nothing(figure: Callable[..., None]) -> None:
    """Weights, moments and Adam's counter, which its bias correction hangs on. A finite gradient is the control."""

    def everything() -> list[Tensor]:
        moments = [optimizer.state[p][key] for p in model.parameters() for key in ("step", "exp_avg", "exp_avg_sq")]
        return [tensor.detach().clone() for tensor in (*model.parameters(), *moments)]

    def changed_by(value: float) -> int:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        before = everything()
        skip_unless_finite(optimizer, torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        return sum(not torch.equal(old, new) for old, new in zip(before, everything(), strict=True))

    model = torch.nn.Linear(3, 2)
    optimizer = make_optimizer(model, TrainingConfig(max_updates=1, weight_decay=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # which makes the moments
    assert changed_by(0.5) == len(everything()) == 8
    changed = [changed_by(value) for value in (math.nan, math.inf, -math.inf)]
    assert changed_by(0.5) == 8  # and then it goes on
    figure("skipped_step_changes", f"{sum(changed)} of {3 * 8} tensors", "0", not any(changed))


def spoiled(work: Trainer, monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """The loss of one update is NaN; batches are as they are."""
    original = trainer.batch_loss

    def loss(model: Any, batch: Batch, *rest: Any) -> Tensor:
        return original(model, batch, *rest) * (math.nan if work.state.update == update - 1 else 1.0)

    monkeypatch.setattr(trainer, "batch_loss", loss)


@pytest.mark.parametrize(("update", "seen_at"), [(6, "log"), (9, "validation"), (4, "the next step")])
def test_it_is_seen_before_anything_is_told_or_kept(
    corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int, seen_at: str
) -> None:
    work = new_trainer(corpus, tmp_path, look_later=True, log_every=1000 if seen_at == "validation" else 6)
    spoiled(work, monkeypatch, update)
    for name in ("validate", "refuse_drift"):
        monkeypatch.setattr(trainer, name, lambda *_: pytest.fail("validated"))
    with pytest.raises(DivergedError, match=f"The loss of update {update} is not finite"), tiny.one_thread():
        work.fit()
    assert work.state.update == update and not (tmp_path / "checkpoints").exists()
    assert not (tmp_path / "log.jsonl").exists()


def test_a_signal_saves_nothing_of_it(corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = new_trainer(corpus, tmp_path, look_later=True)
    spoiled(work, monkeypatch, 4)
    one_update = work.one_update

    def stopped() -> Any:
        rates = one_update()
        if work.state.update == 4:
            work.stop.signal_number = 15
        return rates

    monkeypatch.setattr(work, "one_update", stopped)
    with pytest.raises(DivergedError, match="update 4"), tiny.one_thread():
        work.fit()
    assert not (tmp_path / "checkpoints").exists()
