"""`tokens_per_batch = "auto"`: the largest batch that fits, found once, kept in the run's config."""

import itertools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from faults.hooks import Memory
from nmt.bundle import Bundle, list_checkpoints
from nmt.config import load_config
from nmt.data.batching import widest_batch
from nmt.errors import ConfigError
from nmt.training import batch_size, run
from nmt.training.batch_size import Meter, ladder
from nmt.training.checkpoint import load_state


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    recipe = {"tokens_per_batch": "auto", "max_updates": 4}
    return tiny.write(tmp_path_factory.mktemp("tiny"), pairs=900, training=recipe, validation={"every": 2})


def fit(corpus: tiny.Tiny, folder: Path, **training: Any) -> Path:
    config = corpus.config.replace(training=training)
    with tiny.one_thread():
        return run.train(config, folder, device="cpu", cache=corpus.cache, quiet=True)


def tokens_in(folder: Path) -> int:
    return int(tomllib.loads((folder / "config.toml").read_text())["training"]["tokens_per_batch"])


def test_the_ladder() -> None:
    assert ladder(4096) == [1024, 1472, 2048, 2880, 4096]
    rungs = ladder(65_536)
    assert rungs[-1] == 65_536 and len(rungs) == 13 and all(rung % 64 == 0 for rung in rungs)
    assert all(1.35 < later / earlier < 1.48 for earlier, later in itertools.pairwise(rungs))


def simulate(monkeypatch: pytest.MonkeyPatch, limit: int, backward: bool = False) -> list[int]:
    """A memory that holds `limit` padded tokens. Returns: the rungs tried so far."""
    whole_loss, fits, tried = batch_size.batch_loss, batch_size._fits, list[int]()
    memory = Memory(limit, backward, lambda: None)
    monkeypatch.setattr(
        batch_size, "batch_loss", lambda *args: memory.hold(lambda: whole_loss(*args), args[0], args[1])
    )

    def noting(*args: Any) -> bool:
        tried.append(args[-1])
        return fits(*args)

    monkeypatch.setattr(batch_size, "_fits", noting)
    return tried


@pytest.mark.parametrize(
    ("limit", "backward", "found"),
    [(10**6, False, 4096), (2500, False, 2048), (2500, True, 2048), (1100, True, 1024), (100, False, 1024)],
)
def test_the_largest_that_fits(
    corpus: tiny.Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    backward: bool,
    found: int,
    figure: Callable[..., None],
) -> None:
    tried = simulate(monkeypatch, limit, backward)
    opened = run._open(corpus.config, tmp_path, torch.device("cpu"), corpus.cache, 1, run.TrainingLog(quiet=True))
    got = opened.config.training.batch_tokens
    widest = widest_batch(opened.prepared.train, opened.prepared.tokenizer.special, got)
    fits = max(widest.src.size, widest.tgt_out.size) <= limit or limit == 100  # there nothing fits: parts will do
    assert fits and tokens_in(tmp_path) == got and tried == sorted(tried)
    assert got in tried[-2:]  # the one above was tried, and did not fit
    figure(f"auto_batch_of_{limit}{'_backward' * backward}", got, str(found), got == found)


def test_other_errors_are_not_swallowed(corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> torch.Tensor:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(batch_size, "batch_loss", broken)
    with pytest.raises(RuntimeError, match="multiplied"):
        fit(corpus, tmp_path)


def test_little_memory_is_measured(corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trial used is held against what was free."""
    used = iter([500, 869, 871])  # 85 % of 1024 bytes are 870
    monkeypatch.setattr(Meter, "used", lambda self: next(used))
    monkeypatch.setattr(batch_size, "_kilobytes", lambda file, name: 1)
    fit(corpus, tmp_path, max_updates=1)
    assert tokens_in(tmp_path) == 1472


def test_the_meter_sees_memory() -> None:
    meter = Meter(torch.device("cpu"))
    assert meter.room > 2**20
    held = torch.ones(64 * 2**20)
    assert held.sum() > 0 and meter.used() > 200 * 2**20


def test_it_is_the_run_of_its_number(corpus: tiny.Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "auto")
    fit(corpus, tmp_path / "number", tokens_per_batch=4096)
    assert tokens_in(tmp_path / "auto") == 4096
    weights = [(tmp_path / name / "bundle" / "model.safetensors").read_bytes() for name in ("auto", "number")]
    assert weights[0] == weights[1]
    assert Bundle.load(tmp_path / "auto").config.recipe["training"]["tokens_per_batch"] == 4096
    assert load_config(tmp_path / "auto" / "config.toml").training.batch_tokens == 4096


def test_a_resume_takes_the_number_that_was_found(
    corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        simulate(patch, 1500)
        fit(corpus, tmp_path, max_updates=2)
    assert tokens_in(tmp_path) == 1472
    monkeypatch.setattr(run, "largest_that_fits", lambda *_: pytest.fail("looked for again"))
    fit(corpus, tmp_path)  # with more memory, and "auto" still in its config
    assert tokens_in(tmp_path) == 1472 and load_state(list_checkpoints(tmp_path)[-1]).update == 4
    fit(corpus, tmp_path, tokens_per_batch=1472, max_updates=5)  # and so does its number
    with pytest.raises(ConfigError, match=r"tokens_per_batch = 2048 \(the run has 1472\)"):
        fit(corpus, tmp_path, tokens_per_batch=2048)


def test_a_dry_run_finds_it_too(corpus: tiny.Tiny, tmp_path: Path) -> None:
    facts = run.dry_run(corpus.config, tmp_path, device="cpu", cache=corpus.cache, quiet=True)
    assert facts["tokens/s"] > 0 and tokens_in(tmp_path) == 4096
