"""The loop: exact resume, faults, precisions, stopping, and the choice of the final bundle."""

import json
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from nmt.bundle import Bundle, checkpoint_name, list_checkpoints, weights_of
from nmt.data.batching import Batch
from nmt.decoding.translator import Translator
from nmt.errors import DivergedError, Interrupted
from nmt.evaluation.metrics import score
from nmt.model.transformer import Transformer
from nmt.training import checkpoint, progress, run, trainer
from nmt.training.checkpoint import CheckpointWriter, TrainState, average, best_updates, load_state
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer
from nmt.training.validation import oriented
from tiny import Tiny


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(progress, "_tensorboard", lambda *_: None)
    with tiny.one_thread():
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return tiny.write(tmp_path_factory.mktemp("tiny"))


def fit(corpus: Tiny, folder: Path, **sections: dict[str, Any]) -> Path:
    """Train to the end in this process."""
    config, stop = corpus.config.replace(**sections), StopRequest()
    with stop.handle_signals():
        return run.train(config, folder, device="cpu", cache=corpus.cache, quiet=True, stop=stop)


def new_trainer(corpus: Tiny, folder: Path, **sections: dict[str, Any]) -> Trainer:
    folder.mkdir(exist_ok=True)
    config = corpus.config.replace(**sections)
    log, device = TrainingLog(quiet=True), torch.device("cpu")
    opened = run._open(config, folder, device, corpus.cache, 0, log)
    return run._trainer(opened, folder, device, log, StopRequest(), Ranks())


def signal_after(monkeypatch: pytest.MonkeyPatch, update: int, number: int = signal.SIGTERM) -> None:
    """Send this process a signal when `update` is done."""
    one_update = Trainer.one_update

    def patched(self: Trainer) -> dict[str, float]:
        rates = one_update(self)
        if self.state.update == update:
            os.kill(os.getpid(), number)
        return rates

    monkeypatch.setattr(Trainer, "one_update", patched)


def interrupt(corpus: Tiny, folder: Path, update: int, **sections: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        signal_after(patch, update)
        with pytest.raises(Interrupted) as caught:
            fit(corpus, folder, **sections)
    assert caught.value.exit_code == 143 and f"after update {update}" in str(caught.value)
    assert load_state(list_checkpoints(folder)[-1]).update == update


def final_bytes(folder: Path) -> dict[str, object]:
    """Weights, moments and state of the last checkpoint, and the final bundle's weights."""
    last = list_checkpoints(folder)[-1]
    state = json.loads((last / "state.json").read_bytes())
    del state["minutes"]
    return {
        "name": last.name,
        "weights": (last / "model.safetensors").read_bytes(),
        "moments": (last / "optimizer.safetensors").read_bytes(),
        "state": state,
        "bundle": (folder / "bundle" / "model.safetensors").read_bytes(),
    }


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


def scripted(monkeypatch: pytest.MonkeyPatch, score_of: Callable[[Trainer], float]) -> None:
    """Replace validation by a function of the trainer."""
    original, at_work = Trainer.fit, []

    def fit_noted(self: Trainer) -> Path:
        at_work[:] = [self]
        return original(self)

    def scores(*_: object) -> dict[str, float]:
        value = score_of(at_work[0])
        return {"loss": -value, "bleu": value, "chrf": value, "length_ratio": 1.0, "repeated": 0.0}

    monkeypatch.setattr(Trainer, "fit", fit_noted)
    monkeypatch.setattr(trainer, "validate", scores)


# Exact resume

R1 = {
    "model": {"dropout": 0.3, "embedding_dropout": 0.3},
    "training": {"accumulation": 2, "max_updates": 12, "label_smoothing": 0.1},
}


def test_resume_is_exact(corpus: Tiny, tmp_path: Path, figure: Callable[..., None]) -> None:
    fit(corpus, tmp_path / "whole", **R1)
    whole = final_bytes(tmp_path / "whole")
    assert whole["state"]["epoch"] >= 2  # type: ignore[index] # epoch ends lie between
    differing, points = 0, range(1, 12)
    for update in points:
        folder = tmp_path / f"at-{update}"
        interrupt(corpus, folder, update, **R1)
        fit(corpus, folder, **R1)
        resumed = final_bytes(folder)
        differing += sum(whole[part] != resumed[part] for part in whole)
        losses = [[(r["update"], r["loss"]) for r in records(f, "update")] for f in (tmp_path / "whole", folder)]
        differing += losses[0] != losses[1]
    name = "resume_bit_differences"
    figure(name, f"{differing} over {len(points)} points", "0", differing == 0)


def test_two_resumes_in_a_row_are_exact(corpus: Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "whole", **R1)
    for update in (2, 3, 9):
        interrupt(corpus, tmp_path / "chain", update, **R1)
    fit(corpus, tmp_path / "chain", **R1)
    assert final_bytes(tmp_path / "chain") == final_bytes(tmp_path / "whole")


def test_the_resume_test_would_see_a_missing_seed(
    corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_seed_dropout", lambda seed, micro_batch: None)
    fit(corpus, tmp_path / "whole", **R1)
    interrupt(corpus, tmp_path / "cut", 5, **R1)
    fit(corpus, tmp_path / "cut", **R1)
    whole, resumed = final_bytes(tmp_path / "whole"), final_bytes(tmp_path / "cut")
    assert whole["weights"] != resumed["weights"] and whole["moments"] != resumed["moments"]


def test_another_seed_gives_other_weights(corpus: Tiny, tmp_path: Path) -> None:
    for seed in (1, 2):
        fit(corpus, tmp_path / str(seed), training={"seed": seed, "max_updates": 2})
    assert final_bytes(tmp_path / "1")["weights"] != final_bytes(tmp_path / "2")["weights"]


def test_a_damaged_newest_checkpoint_is_passed_over_aloud(
    corpus: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(corpus, tmp_path / "run")
    whole = final_bytes(tmp_path / "run")
    newest = list_checkpoints(tmp_path / "run")[-1] / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    config = corpus.config
    run.train(config, tmp_path / "run", device="cpu", cache=corpus.cache)
    said = capsys.readouterr().err
    assert (
        "warning" in said
        and "ckpt-000008 is damaged" in said
        and "set aside" in said
        and "resuming from" in said
        and "update 4" in said
    )
    assert final_bytes(tmp_path / "run") == whole


def test_a_damaged_checkpoint_never_reaches_the_average(corpus: Tiny, tmp_path: Path) -> None:
    """A checkpoint off the schedule (of a signal) is not written again; damaged, it must not be averaged."""
    fit(corpus, tmp_path / "whole")
    interrupt(corpus, tmp_path / "cut", 7)
    path = list_checkpoints(tmp_path / "cut")[-1] / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x40
    path.write_bytes(data)
    fit(corpus, tmp_path / "cut")
    assert final_bytes(tmp_path / "cut") == final_bytes(tmp_path / "whole")


# Convergence


def test_learns_twenty_pairs_by_heart(tmp_path: Path) -> None:
    small = tiny.write(
        tmp_path / "corpus",
        pairs=20,
        data={"valid": {"prefix": "train"}},
        model={"d_model": 32, "d_ff": 64, "num_heads": 4, "dropout": 0.0, "embedding_dropout": 0.0},
        training={
            "max_updates": 250,
            "warmup_updates": 20,
            "learning_rate": 1e-2,
            "label_smoothing": 0.0,
            "log_every": 50,
        },
        validation={"every": 125, "max_sentences": 0},
    )
    bundle = fit(small, tmp_path / "run")
    sources, targets = tiny.sentences(20)
    hypotheses = Translator(bundle, device="cpu").translate(sources)
    assert score(hypotheses, [targets], metrics=("bleu",), tgt_lang="de")[0].value > 90
    first, last = records(tmp_path / "run", "valid")[0], records(tmp_path / "run", "final")[0]
    assert last["bleu"] > 90 and last["loss"] < 0.5 and last["bleu"] >= first["bleu"]


# Faults


@pytest.mark.parametrize("log_every", [1, 100])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_non_finite_update_stops_before_the_weights(
    corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, value: float, log_every: int
) -> None:
    work = new_trainer(corpus, tmp_path / "run", training={"log_every": log_every})
    original, seen = trainer.batch_loss, {}

    def loss(model: Transformer, batch: Batch, *rest: Any) -> torch.Tensor:
        result = original(model, batch, *rest)
        if work.state.update == 5:
            seen.update({name: tensor.clone() for name, tensor in weights_of(model).items()})
            seen["pairs"] = batch.indices[:20].tolist()
            if where == "loss":
                return result * value
            model.decoder[0].feed_forward.up.weight.register_hook(lambda grad: grad * 0 + value)
        return result

    monkeypatch.setattr(trainer, "batch_loss", loss)
    with pytest.raises(DivergedError) as caught:
        work.fit()
    assert caught.value.exit_code == 6
    assert "update 6" in str(caught.value) and str(seen.pop("pairs")) in str(caught.value)
    after = weights_of(work.model)
    assert all(torch.equal(seen[name], after[name]) for name in after)
    checkpoint = list_checkpoints(tmp_path / "run")
    assert [c.name for c in checkpoint] == ["ckpt-000004"] and not (tmp_path / "run" / "bundle").exists()
    Bundle.load(checkpoint[0])
    monkeypatch.undo()
    monkeypatch.setattr(progress, "_tensorboard", lambda *_: None)
    new_trainer(corpus, tmp_path / "run", training={"log_every": log_every}).fit()  # and the run goes on from there


def test_without_the_fault_the_same_run_ends(corpus: Tiny, tmp_path: Path) -> None:
    assert new_trainer(corpus, tmp_path / "run").fit() == tmp_path / "run" / "bundle"


def fp16_or_skip(corpus: Tiny, folder: Path, **training: Any) -> Trainer:
    try:
        with torch.autocast("cpu", dtype=torch.float16):
            torch.nn.Linear(4, 4)(torch.ones(2, 4))
    except RuntimeError as error:
        pytest.skip(f"no fp16 autocast on this CPU: {error}")
    return new_trainer(corpus, folder, training={"precision": "fp16", **training})


def test_fp16_skips_a_non_finite_update_and_goes_on(
    corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = fp16_or_skip(corpus, tmp_path / "run")
    original = trainer.batch_loss
    monkeypatch.setattr(
        trainer, "batch_loss", lambda *args: original(*args) * (math.inf if work.state.update == 3 else 1)
    )
    work.scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    for update in range(6):
        before = {name: tensor.clone() for name, tensor in weights_of(work.model).items()}
        scale = work.scaler.get_scale()
        work.one_update()
        same = all(torch.equal(before[name], tensor) for name, tensor in weights_of(work.model).items())
        assert same == (update == 3)
        assert work.scaler.get_scale() == (scale / 2 if update == 3 else scale)
    assert work.state.update == 6
    assert all(torch.isfinite(tensor).all() for tensor in weights_of(work.model).values())


def test_fp16_gives_up_after_many_in_a_row(corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "MAX_SKIPPED_IN_A_ROW", 3)
    work = fp16_or_skip(corpus, tmp_path / "run")
    original = trainer.batch_loss
    monkeypatch.setattr(trainer, "batch_loss", lambda *args: original(*args) * math.inf)
    with pytest.raises(DivergedError, match="update 3"):
        for _ in range(10):
            work.one_update()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_trains_and_resumes(corpus: Tiny, tmp_path: Path, precision: str) -> None:
    if precision == "fp16":
        fp16_or_skip(corpus, tmp_path / "probe")
    sections = {"training": {"precision": precision}}
    fit(corpus, tmp_path / "whole", **sections)
    losses = [r["loss"] for r in records(tmp_path / "whole", "update")]
    assert losses[-1] < losses[0] and all(map(math.isfinite, losses))
    interrupt(corpus, tmp_path / "cut", 6, **sections)
    fit(corpus, tmp_path / "cut", **sections)
    assert final_bytes(tmp_path / "cut")["weights"] == final_bytes(tmp_path / "whole")["weights"]
    weights = weights_of(Bundle.load(tmp_path / "whole").model)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


# When it ends


def test_max_updates(corpus: Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "run", training={"max_updates": 5})
    assert [r["update"] for r in records(tmp_path / "run", "update")] == [1, 2, 3, 4, 5]
    assert [r["update"] for r in records(tmp_path / "run", "valid")] == [4, 5]  # the last one is validated too


def test_max_epochs(corpus: Tiny, tmp_path: Path) -> None:
    work = new_trainer(corpus, tmp_path / "run", training={"max_updates": 1000, "max_epochs": 2})
    per_epoch = work.stream.batches_in_epoch
    work.fit()
    assert (work.state.epoch, work.state.batch_index) == (2, 0)
    assert abs(work.state.update - 2 * per_epoch) <= 1  # epochs are cut anew, and may differ by a batch


def test_max_minutes(corpus: Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "run", training={"max_minutes": 1e-6})
    assert records(tmp_path / "run", "final")[0]["update"] == 1


def test_minutes_are_summed_over_resumes(corpus: Tiny, tmp_path: Path) -> None:
    interrupt(corpus, tmp_path / "run", 3)
    before = load_state(list_checkpoints(tmp_path / "run")[-1]).minutes
    fit(corpus, tmp_path / "run")
    assert load_state(list_checkpoints(tmp_path / "run")[-1]).minutes > before > 0


def test_early_stop(corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda self: {2: 1.0, 4: 5.0, 6: 4.0, 8: 5.0}.get(self.state.update, 0.0))
    sections = {"training": {"max_updates": 50}, "validation": {"every": 2, "patience": 2}}
    fit(corpus, tmp_path / "run", **sections)
    assert [(r["update"], r["best"]) for r in records(tmp_path / "run", "valid")] == [
        (2, True),
        (4, True),
        (6, False),
        (8, False),
    ]


def test_patience_survives_resume(corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda self: -float(self.state.update) / 10)
    sections = {"training": {"max_updates": 50}, "validation": {"every": 2, "patience": 3}}
    interrupt(corpus, tmp_path / "run", 7, **sections)
    assert load_state(list_checkpoints(tmp_path / "run")[-1]).worse_in_a_row == 2
    fit(corpus, tmp_path / "run", **sections)
    assert records(tmp_path / "run", "final")[0]["update"] == 8  # 2 best; 4, 6, 8 worse


def test_loss_may_decide(corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(corpus, tmp_path / "run", validation={"every": 2, "metric": "loss"})
    valid = records(tmp_path / "run", "valid")
    scores = load_state(list_checkpoints(tmp_path / "run")[-1]).scores
    assert scores == {str(r["update"]): pytest.approx(-r["loss"]) for r in valid}


def test_nan_scores_count_as_worst() -> None:
    assert oriented({"loss": math.nan}, "loss") == -math.inf
    assert oriented({"bleu": math.nan}, "bleu") == -math.inf
    assert oriented({"loss": 2.0}, "loss") == -2.0 and oriented({"bleu": 2.0}, "bleu") == 2.0


def test_a_second_train_on_a_finished_run_ends_at_once(corpus: Tiny, tmp_path: Path) -> None:
    bundle = fit(corpus, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "one_update", lambda self: pytest.fail("trained on"))
        assert fit(corpus, tmp_path / "run") == bundle
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before


def test_sigint_is_130(corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    signal_after(monkeypatch, 2, signal.SIGINT)
    with pytest.raises(Interrupted) as caught:
        fit(corpus, tmp_path / "run")
    assert caught.value.exit_code == 130
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


# The final bundle


@pytest.mark.parametrize("better", [True, False])
def test_average_or_best(corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, better: bool) -> None:
    calls: list[int] = []

    def score_of(self: Trainer) -> float:
        calls.append(self.state.update)
        averaged = len(calls) == 5  # after the four validations
        return (99.0 if better else -1.0) if averaged else {4: 9.0}.get(self.state.update, 1.0)

    scripted(monkeypatch, score_of)
    bundle = fit(corpus, tmp_path / "run", validation={"every": 2}, training={"keep_last": 2})
    checkpoints = {c.name: c for c in list_checkpoints(tmp_path / "run")}
    assert list(checkpoints) == ["ckpt-000004", "ckpt-000006", "ckpt-000008"]
    final = weights_of(Bundle.load(bundle).model)
    mean = average([checkpoints["ckpt-000006"], checkpoints["ckpt-000008"]])
    best = weights_of(Bundle.load(checkpoints["ckpt-000004"]).model)
    assert all(torch.equal(final[name], (mean if better else best)[name]) for name in final)
    assert any(not torch.equal(final[name], (best if better else mean)[name]) for name in final)  # the control
    used = records(tmp_path / "run", "final")[0]["from"]
    assert used == ("the average of 2 checkpoints" if better else "the best checkpoint, ckpt-000004")


@pytest.mark.parametrize("metric", ["loss", "bleu", "chrf"])
@pytest.mark.parametrize("rate", [1e-2, 2.0])
def test_the_final_bundle_is_no_worse_than_the_best_checkpoint(
    corpus: Tiny, tmp_path: Path, metric: str, rate: float
) -> None:
    training = {"learning_rate": rate, "warmup_updates": 8}  # a young model may get worse
    fit(corpus, tmp_path / "run", validation={"every": 2, "metric": metric}, training=training)
    state = load_state(list_checkpoints(tmp_path / "run")[-1])
    final = oriented(records(tmp_path / "run", "final")[0], metric)
    assert final >= max(state.scores.values())


def test_average_of_the_best(corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def score_of(self: Trainer) -> float:
        calls.append(self.state.update)
        return 99.0 if len(calls) == 5 else {2: 7.0, 4: 3.0, 6: 9.0, 8: 1.0}[self.state.update]

    scripted(monkeypatch, score_of)
    training = {"keep_last": 1, "keep_best": 2, "average": "best"}
    bundle = fit(corpus, tmp_path / "run", validation={"every": 2}, training=training)
    checkpoints = {c.name: c for c in list_checkpoints(tmp_path / "run")}
    assert list(checkpoints) == ["ckpt-000002", "ckpt-000006", "ckpt-000008"]
    assert best_updates(load_state(checkpoints["ckpt-000008"]), 2) == [6, 2]
    mean = average([checkpoints["ckpt-000002"], checkpoints["ckpt-000006"]])
    final = weights_of(Bundle.load(bundle).model)
    assert all(torch.equal(final[name], mean[name]) for name in final)


@pytest.fixture(scope="module")
def keeper(corpus: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A trainer whose state the retention test sets."""
    return new_trainer(corpus, tmp_path_factory.mktemp("keeper") / "run")


@settings(deadline=None, max_examples=60)
@given(
    scores=st.lists(st.floats(-5, 5) | st.just(-math.inf), min_size=1, max_size=15),
    keep_last=st.integers(1, 4),
    keep_best=st.integers(1, 4),
    signals=st.sets(st.integers(0, 14)),
)
def test_last_and_best_survive_every_sequence(
    keeper: Trainer, scores: list[float], keep_last: int, keep_best: int, signals: set[int]
) -> None:
    """Pruned at every save, as in training. A signal's checkpoint between two others takes no one's place."""
    kept = {"keep_last": keep_last, "keep_best": keep_best, "average_count": 1}
    keeper.config = keeper.config.replace(training=kept)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        keeper.run, keeper.state = Path(folder), TrainState()
        keeper.writer = CheckpointWriter(keeper.run)
        patch.setattr(
            checkpoint,
            "save_checkpoint",
            lambda run, snapshot: (run / "checkpoints" / checkpoint_name(snapshot.state.update)).mkdir(parents=True),
        )
        for number, score_now in enumerate(scores):
            every = [4 * n + 4 for n in range(number + 1)]
            keeper.state.update = every[-1]
            keeper.state.add_score(score_now)
            keeper._save()
            keeper.writer.wait()
            by_score = sorted(every, key=lambda u: (-scores[u // 4 - 1], -u))
            wanted = set(every[-keep_last:]) | set(by_score[:keep_best])
            assert {int(c.name[5:]) for c in list_checkpoints(keeper.run)} == wanted
            if number in signals:
                keeper.state.update += 1
                keeper._save()
                keeper.writer.wait()
                assert {int(c.name[5:]) for c in list_checkpoints(keeper.run)} == wanted | {keeper.state.update}


def test_checkpoints_between_validations(corpus: Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "run", training={"checkpoint_every": 3, "keep_last": 9}, validation={"every": 8})
    assert [c.name for c in list_checkpoints(tmp_path / "run")] == ["ckpt-000003", "ckpt-000006", "ckpt-000008"]


# The log


def test_the_log_parses_and_is_cut_back(corpus: Tiny, tmp_path: Path) -> None:
    interrupt(corpus, tmp_path / "run", 6)
    log = tmp_path / "run" / "log.jsonl"
    with log.open("a") as file:  # what a kill after further updates leaves: later records and a torn line
        file.write('{"kind": "update", "update": 7, "loss": 1.0}\n{"kind": "upd')
    fit(corpus, tmp_path / "run")
    assert [r["update"] for r in records(tmp_path / "run", "update")] == list(range(1, 9))
    assert [r["update"] for r in records(tmp_path / "run", "valid")] == [4, 8]
    for record in records(tmp_path / "run", "update"):
        assert {"loss", "lr", "grad_norm", "tokens/s", "data_wait", "epoch", "minutes"} < record.keys()
        assert record["loss"] > 0 and record["grad_norm"] > 0 and record["tokens/s"] > 0
        assert 0 <= record["data_wait"] < 1


def test_log_every(corpus: Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "run", training={"log_every": 3})
    assert [r["update"] for r in records(tmp_path / "run", "update")] == [3, 6]
