"""F4: when memory runs out the same pairs are computed in smaller parts; none is lost, and none counts twice."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tiny
from faults.hooks import Memory
from faults.recipe import Recipe, scale
from faults.warm import Hook, Warm
from nmt.bundle import list_checkpoints
from nmt.training import run, trainer
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer

UPDATES = ("--set", "training.max_updates=10")


def noting(file: Path) -> Hook:
    return ("hooks:note_pairs", {"file": str(file)})


def failing(limits: list[int], notes: Path, backward: bool = False) -> Hook:
    return ("hooks:out_of_memory", {"limits": limits, "notes": str(notes), "backward": backward})


@pytest.mark.timeout(scale(300, 3600))
def test_f4_recovers(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    assert warm.run(recipe.arguments(tmp_path / "run", *UPDATES), [noting(tmp_path / "pairs")]).code == 0
    expected = (tmp_path / "pairs").read_text()
    rng, failures, wrong, runs = random.Random(4), 0, [], 0
    while failures < scale(10, 50):
        files, limit = [tmp_path / f"{runs}.{name}" for name in ("run", "pairs", "failures")], rng.randint(90, 148)
        hooks = [noting(files[1]), failing([limit, limit // 2, limit // 4], files[2], backward=bool(runs % 2))]
        stop = ("hooks:stop_after", {"update": 9})
        stopped = warm.run(recipe.arguments(files[0], *UPDATES), [*hooks, stop])
        count = len(files[2].read_text().splitlines())
        state = json.loads((list_checkpoints(files[0])[-1] / "state.json").read_bytes())
        # What was learnt is kept: the resumed run has the least memory from its start, and does not fail.
        hooks[1] = failing([limit // 4], files[2], backward=bool(runs % 2))
        resumed = warm.run(recipe.arguments(files[0], *UPDATES), hooks)
        found = {
            "exit code": (stopped.code, resumed.code) != (143, 0),
            "warnings": stopped.stderr.count("warning: out of memory at update") != count,
            "parts": state["parts"] != 2**count,
            "failed after the resume": "out of memory" in resumed.stderr,
            "pairs": files[1].read_text() != expected,
        }
        wrong += [f"{runs}: {name}" for name, bad in found.items() if bad]
        failures, runs = failures + count, runs + 1
    said = f"{failures} failures in {runs} runs, {len(wrong)} violations {wrong or ''}".strip()
    figure("f4_out_of_memory", said, "0 pairs lost or repeated", not wrong)


def test_f4_control_a_dropped_batch_is_seen(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    hooks = [noting(tmp_path / "pairs"), failing([10**6, 100], tmp_path / "failures"), ("hooks:drop_what_fails", {})]
    assert warm.run(recipe.arguments(tmp_path / "run", "--set", "training.max_updates=5"), hooks).code == 0
    noted = [line.partition("[")[2] for line in (tmp_path / "pairs").read_text().splitlines()]
    assert (tmp_path / "failures").exists() and "]" in noted  # a micro-batch of which no pair was trained on


def test_f4_the_allocator_fails(warm: Warm, tmp_path: Path, figure: Callable[..., None]) -> None:
    """90 pairs in one micro-batch need several tensors of 65 MB, of which there is room for one."""
    large = {**tiny.SHAPE, "d_ff": 2**14, "dropout": 0.0}
    corpus = tiny.write(
        tmp_path,
        pairs=100,
        model=large,
        training={"tokens_per_batch": 10_000, "max_updates": 2},
        validation={"every": 2, "max_sentences": 1},
    )
    args = ["train", corpus.toml, "--out", tmp_path / "run", "--cache", corpus.cache, "--device", "cpu", "--threads", 1]
    result = warm.run(args, [("hooks:limit_address_space", {"extra_mb": 120})])
    said = [line.split(":")[1].strip() for line in result.stderr.splitlines() if line.startswith("warning: out of")]
    figure("f4_real_allocator", f"exit {result.code}, {said}", "recovers", result.code == 0 and len(said) > 0)


def test_f4_one_row_does_not_fit(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    result = warm.run(recipe.arguments(tmp_path / "run"), [failing([2], tmp_path / "notes")])
    assert result.code == 2 and "Lower training.tokens_per_batch" in result.stderr
    assert "Even one sentence pair at a time does not fit into memory" in result.stderr


def trainer_in_double(folder: Path, corpus: tiny.Tiny) -> Trainer:
    log, device = TrainingLog(quiet=True), torch.device("cpu")
    folder.mkdir()
    work = run._trainer(
        run._open(corpus.config, folder, device, corpus.cache, 1, log), folder, device, log, StopRequest(), Ranks()
    )
    work.model.double()
    return work


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("keep_gradients", [False, True])  # True is the control
def test_f4_the_gradient_is_that_of_the_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backward: bool,
    keep_gradients: bool,
    figure: Callable[..., None],
) -> None:
    without = dict.fromkeys(("dropout", "embedding_dropout", "attention_dropout", "activation_dropout"), 0.0)
    corpus, worst, failures = tiny.write(tmp_path / "corpus", model={**tiny.SHAPE, **without}), 0.0, list[int]()
    work = trainer_in_double(tmp_path / "run", corpus)
    whole_loss = trainer.batch_loss
    if keep_gradients:  # what the failed attempt has added by then stays
        monkeypatch.setattr(work.optimizer, "zero_grad", lambda **_: None)
    for _ in range(5):
        pairs = {number: work.stream.draw() for number in range(3)}
        tokens = sum(map(work.stream.num_tokens, pairs.values()))
        gradients = []
        for limit in (10**6, 60):
            work.state.parts = 1
            memory = Memory(limit, backward, lambda: failures.append(1))
            monkeypatch.setattr(
                trainer, "batch_loss", lambda *args, m=memory: m.hold(lambda: whole_loss(*args), args[0], args[1])
            )
            loss = work._gradients(pairs, tokens)
            grads = [p.grad for p in work.model.parameters() if p.grad is not None]
            gradients.append(torch.cat([loss[None] / tokens, *(gradient.flatten() for gradient in grads)]))
            work.model.zero_grad(set_to_none=True)
        worst = max(worst, float((gradients[0] - gradients[1]).abs().max()))
    assert len(failures) >= 5
    if keep_gradients:
        assert worst > 1e-3
        return
    said = f"{worst:.0e} after {len(failures)} failures"
    figure(f"f4_gradient_{'backward' if backward else 'forward'}", said, "fp64 <= 1e-12", worst <= 1e-12)
