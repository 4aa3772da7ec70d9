"""A run folder: another config, more updates, the lock, a starting model, the dry run."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from nmt.bundle import Bundle, list_checkpoints, weights_of
from nmt.config import parse_config
from nmt.errors import BundleError, ConfigError, StorageError
from nmt.storage.manifest import damage
from nmt.training import progress, run
from nmt.training.checkpoint import load_state
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer
from tiny import Tiny


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(progress, "_tensorboard", lambda *_: None)
    with tiny.one_thread():
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return tiny.write(tmp_path_factory.mktemp("tiny"), training={"max_updates": 4})


def fit(corpus: Tiny, folder: Path, **sections: dict[str, Any]) -> Path:
    return run.train(corpus.config.replace(**sections), folder, device="cpu", cache=corpus.cache, quiet=True)


def test_what_a_run_holds(corpus: Tiny, tmp_path: Path) -> None:
    bundle = run.train(corpus.config, tmp_path / "deep" / "run", device="cpu", quiet=True)
    folder = tmp_path / "deep" / "run"
    assert bundle == folder / "bundle" and damage(bundle) is None
    assert {p.name for p in folder.iterdir()} == {"bundle", "cache", "checkpoints", "config.toml", "lock", "log.jsonl"}
    loaded = Bundle.load(folder)
    assert (loaded.config.src_lang, loaded.config.tgt_lang) == ("en", "de")
    assert loaded.config.recipe["training"]["max_updates"] == 4
    longest = max(map(len, loaded.tokenizer.encode_src(corpus.src.read_text().splitlines())))
    assert loaded.config.max_length <= longest < corpus.config.data.max_length  # a few pairs are held out
    assert loaded.config.max_length > longest / 2 and loaded.config.one_sentence_share == 1.0


def test_another_config_in_the_same_folder(corpus: Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError) as caught:
        fit(corpus, tmp_path, training={"learning_rate": 0.02, "max_updates": 6}, model={"d_ff": 48})
    message = str(caught.value)
    assert (
        "training.learning_rate = 0.02 (the run has 0.01)" in message and "model.d_ff = 48 (the run has 32)" in message
    )
    assert "max_updates" not in message and caught.value.exit_code == 2
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_more_updates_go_on(corpus: Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path)
    fit(corpus, tmp_path, training={"max_updates": 8})
    assert load_state(list_checkpoints(tmp_path)[-1]).update == 8
    assert "max_updates = 8" in (tmp_path / "config.toml").read_text()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_ends_cannot_be_prolonged(corpus: Tiny, tmp_path: Path, schedule: str) -> None:
    fit(corpus, tmp_path, training={"schedule": schedule})
    with pytest.raises(ConfigError, match=r"training.max_updates = 8 \(the run has 4\)"):
        fit(corpus, tmp_path, training={"schedule": schedule, "max_updates": 8})


def test_a_second_trainer_is_refused(corpus: Tiny, tmp_path: Path) -> None:
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(ConfigError, match="Another nmt train is using") as caught:
            fit(corpus, tmp_path)
        assert caught.value.exit_code == 2
        assert [p.name for p in tmp_path.iterdir()] == ["lock"]
        first.communicate(b"\n")
    fit(corpus, tmp_path, training={"max_updates": 1})  # and when the first has ended, it may


def test_a_trainer_holds_the_lock_while_it_trains(
    corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_update, refused = Trainer.one_update, []

    def patched(self: Trainer) -> dict[str, float]:
        with pytest.raises(ConfigError, match="Another nmt train"), run._locked(tmp_path):
            pytest.fail("the lock was taken twice")
        refused.append(self.state.update)
        return one_update(self)

    monkeypatch.setattr(Trainer, "one_update", patched)
    fit(corpus, tmp_path)
    assert refused == [0, 1, 2, 3]


def test_a_run_folder_that_cannot_be_made(corpus: Tiny, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot use the run folder"):
        fit(corpus, tmp_path / "file" / "run")


def test_other_training_text_is_refused(tmp_path: Path) -> None:
    """The resumed half of a run must not be trained on something else than the first."""
    own = tiny.write(tmp_path / "corpus", training={"max_updates": 2})
    fit(own, tmp_path / "run")
    (own.folder / "train.de").write_text(own.tgt.read_text().replace("hund", "kind"))
    with pytest.raises(ConfigError, match="began with another training text"):
        fit(own, tmp_path / "run", training={"max_updates": 4})
    tiny.write(tmp_path / "corpus")
    fit(own, tmp_path / "run", training={"max_updates": 4})  # with the first text again it goes on


# init_from


def started(corpus: Tiny, folder: Path, start: Path, **sections: dict[str, Any]) -> Trainer:
    """A trainer at update 0 that starts from a model."""
    tables = corpus.config.model_dump(exclude_none=True)
    tables["model"] = sections.get("model", {})
    tables["training"]["init_from"] = str(start)
    config = parse_config(tables, where="test")
    folder.mkdir(exist_ok=True)
    log, device = TrainingLog(quiet=True), torch.device("cpu")
    opened = run._open(config, folder, device, None, 0, log)
    return run._trainer(opened, folder, device, log, StopRequest(), Ranks())


@pytest.mark.parametrize("joint", [True, False])
def test_init_from_gives_weights_tokenizer_and_shape(corpus: Tiny, tmp_path: Path, joint: bool) -> None:
    bundle = tiny.random_bundle(5, joint, norm="post")
    start = tiny.save(bundle, tmp_path / "start")
    trainer = started(corpus, tmp_path / "run", start)
    assert trainer.bundle.tokenizer.sha256 == bundle.tokenizer.sha256 == trainer.prepared.tokenizer.sha256
    assert trainer.config.model.norm == "post" and trainer.config.model.d_model == 16
    wanted = weights_of(bundle.model)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in weights_of(trainer.model).items())
    trainer.one_update()
    assert any(not torch.equal(tensor, wanted[name]) for name, tensor in weights_of(trainer.model).items())


def test_init_from_a_run_and_another_dropout(corpus: Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "first")
    trainer = started(corpus, tmp_path / "run", tmp_path / "first", model={"dropout": 0.45, "d_model": 16})
    wanted = weights_of(Bundle.load(tmp_path / "first").model)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in weights_of(trainer.model).items())
    assert trainer.config.model.dropout == 0.45


def test_init_from_contradicted(corpus: Tiny, tmp_path: Path) -> None:
    start = tiny.save(tiny.random_bundle(), tmp_path / "start")
    with pytest.raises(ConfigError, match=r"contradicts training.init_from: d_model = 32 \(there: 16\)"):
        started(corpus, tmp_path / "run", start, model={"d_model": 32})


def test_init_from_nothing(corpus: Tiny, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is no model: it does not exist"):
        started(corpus, tmp_path / "run", tmp_path / "nowhere")


def test_a_run_from_a_model_resumes(corpus: Tiny, tmp_path: Path) -> None:
    start = tiny.save(tiny.random_bundle(), tmp_path / "start")
    tables = corpus.config.model_dump(exclude_none=True)
    del tables["model"]
    tables["training"]["init_from"] = str(start)
    for updates in (2, 4):
        tables["training"]["max_updates"] = updates
        config = parse_config(tables, where="test")
        bundle = run.train(config, tmp_path / "run", device="cpu", quiet=True)
        assert Bundle.load(bundle).config.max_length == 256  # of the start, which saw longer sources
    assert load_state(list_checkpoints(tmp_path / "run")[-1]).update == 4


# Dry run, precision, TensorBoard


def test_dry_run(corpus: Tiny, tmp_path: Path) -> None:
    facts = run.dry_run(corpus.config, tmp_path / "run", device="cpu", cache=tmp_path / "cache")
    assert list(facts) == ["data", "parameters", "peak memory (MB)", "tokens/s", "estimated minutes"]
    assert facts["data"]["train"]["read"] == 200 and 0 < facts["data"]["valid"]["kept"] <= 20
    assert facts["parameters"] == sum(t.numel() for t in weights_of(tiny.random_bundle().model).values())
    assert facts["peak memory (MB)"] > 10 and facts["tokens/s"] > 0 and facts["estimated minutes"] >= 0
    assert list_checkpoints(tmp_path / "run") == [] and not (tmp_path / "run" / "bundle").exists()


@pytest.mark.parametrize(("has_unit", "precision"), [(False, "fp32"), (True, "bf16")])
def test_auto_precision_is_resolved(
    has_unit: bool, precision: str, corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unit in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, unit, lambda: has_unit, raising=False)
    fit(corpus, tmp_path, training={"precision": "auto", "max_updates": 1})
    assert f'precision = "{precision}"' in (tmp_path / "config.toml").read_text()
    fit(corpus, tmp_path, training={"precision": "auto", "max_updates": 2})  # no contradiction with itself


def test_tensorboard_where_it_is_installed(corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.undo()
    fit(corpus, tmp_path, training={"max_updates": 1})
    assert list((tmp_path / "tensorboard").glob("events*"))
