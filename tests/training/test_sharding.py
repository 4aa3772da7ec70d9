"""A model spread over two ranks trains like one that each rank holds whole, and leaves the same files."""

import itertools
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import tiny
from faults import worlds
from faults.recipe import fingerprint
from faults.warm import Hook, Result, Warm
from nmt.bundle import list_checkpoints

UPDATES = 12
DEEP = {**tiny.SHAPE, "num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 18}  # odd shards: 18 rows and 27
NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0}
FULL = "training.sharding=full"
SHAPES = {
    "one parameter for both embeddings and the output": {},
    "nothing tied, post-norm, SwiGLU, layers computed twice": {
        "model.tied_embeddings": "none",
        "model.norm": "post",
        "model.activation": "swiglu",
        "training.gradient_checkpointing": "true",
    },
}


@dataclass(frozen=True)
class Runs:
    """Starts runs of one recipe, of two ranks unless told otherwise."""

    warm: Warm
    corpus: tiny.Tiny

    def results(self, folder: Path, *settings: str, world: int = 2, hooks: list[Hook] | None = None) -> list[Result]:
        """Of every rank. `settings`: section.key=value, and --allow-changed NAME as "+NAME"."""
        options = [("--allow-changed", s[1:]) if s.startswith("+") else ("--set", s) for s in settings]
        shared = ["--cache", self.corpus.cache, "--device", "cpu", "--threads", 1]
        arguments = ["train", self.corpus.toml, "--out", folder, *shared, *itertools.chain(*options)]
        return worlds.run(self.warm, arguments, world, hooks or [])

    def run(self, folder: Path, *settings: str, code: int = 0, world: int = 2, hooks: list[Hook] | None = None) -> str:
        """A run that ends with `code`. Returns: what rank 0 said."""
        results = self.results(folder, *settings, world=world, hooks=hooks)
        assert [result.code for result in results] == [code] * world, [result.stderr for result in results]
        return results[0].stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("sharding")
    corpus = tiny.write(
        folder / "corpus",
        pairs=300,
        model={**DEEP, **NO_DROPOUT},
        # Adam makes whole steps of the rounding errors that are a key bias's gradient, unless epsilon is larger.
        training={
            "max_updates": UPDATES,
            "accumulation": 2,
            "tokens_per_batch": 150,
            "clip_norm": 0.8,
            "epsilon": 1e-4,
        },
        validation={"every": 5},
    )
    with Warm(folder / "warm") as warm:
        yield Runs(warm, corpus)


@pytest.fixture(scope="module")
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks without sharding."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    runs.run(folder)
    return folder


@pytest.fixture(scope="module")
def sharded(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks with sharding; beside it what they held."""
    folder = tmp_path_factory.mktemp("sharded") / "run"
    runs.run(folder, FULL, hooks=[("rank_hooks:note_state_bytes", {"file": folder.with_name("held")})])
    return folder


def numbers(folder: Path) -> list[float]:
    """Losses and gradient norms, of updates and validations."""
    lines = [line for line in worlds.records(folder) if line["kind"] in ("update", "valid")]
    assert [line["update"] for line in lines if line["kind"] == "update"] == list(range(1, UPDATES + 1))
    return [line[key] for line in lines for key in ("loss", "grad_norm") if key in line]


def furthest(one: Path, other: Path) -> float:
    """Relative: of losses and norms, and of all final weights together."""
    pairs = zip(numbers(one), numbers(other), strict=True)
    of_numbers = max(abs(a - b) / abs(a) for a, b in pairs)
    weights = [torch.cat([t.flatten() for t in tensors(folder, "model").values()]) for folder in (one, other)]
    return max(of_numbers, float((weights[0] - weights[1]).norm() / weights[0].norm()))


def tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """A file of the last checkpoint."""
    return load_file(list_checkpoints(folder)[-1] / f"{name}.safetensors")


def test_same_losses_and_weights(whole: Path, sharded: Path, figure: Callable[..., None]) -> None:
    found = furthest(whole, sharded)
    figure("sharding_loss_difference", f"{found:.1e} relative", "<= 1e-6", found <= 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if SHAPES[shape]])
def test_same_losses_of_other_shapes(runs: Runs, tmp_path: Path, shape: str, figure: Callable[..., None]) -> None:
    settings = [f"{key}={value}" for key, value in SHAPES[shape].items()]
    runs.run(tmp_path / "whole", *settings)
    runs.run(tmp_path / "sharded", FULL, *settings)
    found = furthest(tmp_path / "whole", tmp_path / "sharded")
    figure("sharding_other_shape", f"{found:.1e} relative, {shape}", "<= 1e-6", found <= 1e-6)


def test_control_means_instead_of_sums(runs: Runs, whole: Path, tmp_path: Path, figure: Callable[..., None]) -> None:
    runs.run(tmp_path / "run", FULL, hooks=[("rank_hooks:means", {})])
    found = furthest(whole, tmp_path / "run")
    figure("sharding_control", f"{found:.1e} relative with averaged gradients", "> 1e-3", found > 1e-3)


def test_every_number_is_held_once(sharded: Path, figure: Callable[..., None]) -> None:
    held = [[int(number) for number in line[0].split()] for line in worlds.notes(sharded.with_name("held"), 2)]
    (size,) = {4 * count for _, _, count in held}
    shares = sum(weights for weights, _, _ in held) / size, sum(moments for _, moments, _ in held) / (2 * size)
    largest = max(weights + moments for weights, moments, _ in held) / (3 * size)
    said = f"{shares[0]:.3f} x weights, {shares[1]:.3f} x moments on 2 ranks, the larger share {largest:.3f}"
    figure("sharded_state_share", said, "1 x each", shares == (1.0, 1.0) and largest < 0.55)


@pytest.mark.slow
def test_control_without_sharding_every_rank_holds_all(runs: Runs, tmp_path: Path) -> None:
    runs.run(tmp_path / "run", hooks=[("rank_hooks:note_state_bytes", {"file": tmp_path / "held"})])
    for line in worlds.notes(tmp_path / "held", 2):
        weights, moments, count = map(int, line[0].split())
        assert (weights, moments) == (4 * count, 8 * count)


def test_same_files(whole: Path, sharded: Path) -> None:
    assert [c.name for c in list_checkpoints(whole)] == [c.name for c in list_checkpoints(sharded)]
    for one, other in zip(list_checkpoints(whole), list_checkpoints(sharded), strict=True):
        assert sorted(p.name for p in one.iterdir()) == sorted(p.name for p in other.iterdir())
    for name in ("model", "optimizer"):
        layouts = [[(k, t.shape, t.dtype) for k, t in tensors(run, name).items()] for run in (whole, sharded)]
        assert layouts[0] == layouts[1]
    sizes = [(run / "bundle" / "model.safetensors").stat().st_size for run in (whole, sharded)]
    assert sizes[0] == sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "world"),
    [
        ("full", "none", 2),
        ("none", "full", 2),
        pytest.param("full", "full", 4, marks=pytest.mark.slow),
        ("full", "none", 1),
    ],
)
def test_goes_on_otherwise(
    runs: Runs, whole: Path, tmp_path: Path, before: str, after: str, world: int, figure: Callable[..., None]
) -> None:
    """With sharding or without, and with other ranks, it is the same run but for rounding."""
    stop = ("rank_hooks:signal_after", {"update": 6, "rank": 1, "number": int(signal.SIGTERM)})
    runs.run(tmp_path / "run", f"training.sharding={before}", code=143, hooks=[stop])
    runs.run(tmp_path / "run", f"training.sharding={after}", "+config", "+world", world=world)
    found = furthest(whole, tmp_path / "run")
    figure(f"sharding_{before}_to_{after}_on_{world}", f"{found:.1e} relative", "<= 1e-6", found <= 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_resumes_to_the_bit(runs: Runs, tmp_path: Path, precision: str, figure: Callable[..., None]) -> None:
    settings = (FULL, "model.dropout=0.3", "model.attention_dropout=0.2", f"training.precision={precision}")
    runs.run(tmp_path / "straight", *settings)
    for update in (3, 5, 8):
        stop = ("rank_hooks:signal_after", {"update": update, "rank": update % 2, "number": int(signal.SIGTERM)})
        runs.run(tmp_path / "stopped", *settings, code=143, hooks=[stop])
    runs.run(tmp_path / "stopped", *settings)
    differ = worlds.parts_that_differ(fingerprint(tmp_path / "straight"), tmp_path / "stopped")
    figure(f"sharding_resume_{precision}", f"stopped 3 times, {len(differ)} differ {differ or ''}", "0", not differ)


@pytest.mark.slow
def test_the_host_may_look_later(runs: Runs, sharded: Path, tmp_path: Path) -> None:
    """The device's own skipping of a step, as on CUDA, works on shards."""
    runs.run(tmp_path / "run", FULL, hooks=[("rank_hooks:look_later", {})])
    assert worlds.parts_that_differ(fingerprint(sharded), tmp_path / "run") == []


@pytest.mark.parametrize("later", [False, True])
def test_a_gradient_that_is_not_finite_stops_all(runs: Runs, tmp_path: Path, later: bool) -> None:
    hooks: list[Hook] = [("rank_hooks:nan_in", {"place": "loss", "update": 7, "rank": 1})]
    hooks += [("rank_hooks:look_later", {})] * later
    said = runs.run(tmp_path / "run", FULL, code=6, hooks=hooks)
    assert "The loss of update 7 is not finite" in said


@pytest.mark.slow
def test_a_lost_rank_is_named(runs: Runs, tmp_path: Path) -> None:
    kill = ("rank_hooks:signal_after", {"update": 7, "rank": 1, "number": int(signal.SIGKILL)})
    survivor, killed = runs.results(tmp_path / "run", FULL, hooks=[kill])
    assert killed.code == -signal.SIGKILL
    assert "and rank 1 ended or cannot be reached" in survivor.stderr and "Traceback" not in survivor.stderr


@pytest.mark.slow
def test_memory_that_runs_out_ends_the_run(runs: Runs, tmp_path: Path) -> None:
    survivor, short = runs.results(
        tmp_path / "run", FULL, hooks=[("rank_hooks:out_of_memory_in", {"update": 7, "rank": 1})]
    )
    assert short.code == 2 and "does not fit into memory. Lower training.tokens_per_batch" in short.stderr
    assert survivor.code == 1 and "rank 1 ended or cannot be reached" in survivor.stderr
    assert "Traceback" not in survivor.stderr + short.stderr


@pytest.mark.slow
def test_unequal_shares_are_refused(runs: Runs, tmp_path: Path) -> None:
    stop = ("rank_hooks:signal_after", {"update": 6, "rank": 0, "number": int(signal.SIGTERM)})
    runs.run(tmp_path / "run", "training.accumulation=3", world=1, code=143, hooks=[stop])
    said = runs.run(tmp_path / "run", "training.accumulation=3", FULL, "+config", "+world", code=2)
    assert "has 3 an update, to be shared by 2 ranks" in said and 'training.sharding = "none"' in said


@pytest.mark.slow
def test_one_rank_has_nobody_to_share_with(runs: Runs, tmp_path: Path) -> None:
    runs.run(tmp_path / "none", world=1)
    runs.run(tmp_path / "full", FULL, world=1)
    one, other = fingerprint(tmp_path / "none"), fingerprint(tmp_path / "full")
    del one["bundle"], other["bundle"]  # whose config.json says "full"
    assert one == other and math.isfinite(numbers(tmp_path / "full")[0])
