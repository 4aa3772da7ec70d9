"""What the GPU path does on a GPU, in at most eight minutes: `make gpu-check`, or this file where nmt is importable.

First tests/gpu. Then, of the base and the big model of Vaswani et al. 2017, complete training steps against the GEMM
peak of the same GPU, the attention kernels that ran, programs compiled after the start, waits. Last a base model is
trained for some minutes and scored. Text is that of $NMT_DATA (../shared/data by default), else the toy corpus.
`--dry-run` goes the same way on a CPU with tiny models.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._dynamo.utils import counters

from attention_kernels import flash_by_attention, kernels_of_updates, unpadded_batch, unpadded_percent
from figures import REAL_DATA, ROOT, figure_line
from flops import training_flops
from nmt.config import Config, ModelConfig, parse_config
from nmt.data.toy import write_toy
from nmt.decoding.translator import Translator
from nmt.evaluation.metrics import score
from nmt.training import run
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer

SECONDS = 480
TESTS_S, BEFORE_TRAINING_S, SCORING_S = 150, 300, 45  # at most; training begins by then; kept for the end


@dataclass(frozen=True)
class Scale:
    """How much is done.

    Attributes:
        shapes: models by name, each with the asked share of the GEMM peak in percent.
        gemm: rows and columns of the square matrices.
        seconds: of measured updates, a model.
        minutes: of training at the end.
    """

    device: str
    shapes: dict[str, tuple[dict[str, Any], float]]
    pairs: int | None
    vocab_size: int
    training: dict[str, Any]
    gemm: int
    warm_up: int
    seconds: float
    lines: int
    minutes: float
    prefix: str = "gpu"


_BASE = {"num_encoder_layers": 6, "num_decoder_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048}
GPU = Scale(
    device="cuda",
    shapes={
        "base": (_BASE, 30.0),
        "big": ({**_BASE, "d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}, 45.0),
    },
    pairs=None,
    vocab_size=16_000,
    training={"tokens_per_batch": "auto"},
    gemm=8192,
    warm_up=10,
    seconds=15.0,
    lines=500,
    minutes=2.25,
)
_TINY = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32}
DRY = Scale(
    device="cpu",
    shapes={"base": (_TINY, 0.0), "big": ({**_TINY, "d_model": 32}, 0.0)},
    pairs=400,
    vocab_size=500,
    training={"tokens_per_batch": 500},
    gemm=128,
    warm_up=1,
    seconds=0.0,
    lines=5,
    minutes=0.01,
    prefix="dry_run",
)


@dataclass
class Check:
    """One run of this bench: its scale, its text, and the clock."""

    scale: Scale
    folder: Path
    began: float = field(default_factory=time.monotonic)

    def tell(self, name: str, value: object, asked: str = "to be told", ok: bool = True) -> None:
        """Print a figure. In a dry run nothing is asked."""
        dry = self.scale.prefix != "gpu"
        print(figure_line(f"{self.scale.prefix}_{name}", value, "nothing" if dry else asked, ok or dry), flush=True)

    def left(self) -> float:
        """Seconds of the eight minutes."""
        return SECONDS - (time.monotonic() - self.began)


def main() -> None:
    """Run all; print figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny models")
    dry = parser.parse_args().dry_run
    if not dry and not torch.cuda.is_available():
        print("There is no GPU here: nothing was checked.")
        return
    with tempfile.TemporaryDirectory() as name:
        check = Check(DRY if dry else GPU, Path(name))
        _run_tests(check)
        data, test = _text(check)
        run._device_of(Ranks(), check.scale.device)  # sets torch up as `nmt train` does
        peak = _gemm_peak(check)
        for shape in check.scale.shapes:
            if dry or check.left() > SECONDS - BEFORE_TRAINING_S:
                _bench(check, shape, data, peak)
            else:
                print(f"no time is left for the {shape} model")
        _train(check, data, test)
        check.tell("check_seconds", round(SECONDS - check.left()), f"<= {SECONDS}", check.left() >= 0)


def _run_tests(check: Check) -> None:
    """tests/gpu, in a process of their own; without a GPU they skip."""
    if importlib.util.find_spec("pytest") is None:
        print("pytest is not here: tests/gpu were not run")
        return
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=TESTS_S)
        said, ok = f"exit {done.returncode}", done.returncode in (0, 5)
    except subprocess.TimeoutExpired:
        said, ok = f"not ended after {TESTS_S} s", False
    check.tell("tests", said, "exit 0", ok)


def _text(check: Check) -> tuple[dict[str, Any], tuple[list[str], list[str]]]:
    """The `[data]` section, and source and reference lines to be scored."""
    folder = Path(os.environ.get("NMT_DATA", REAL_DATA))
    real = check.scale.pairs is None and (folder / "mixed" / "train.en").is_file()
    if real:
        data = {"dir": str(folder), "train": "mixed/train", "valid": "tatoeba/dev"}
        test = folder / "tatoeba" / "test"
    else:
        folder = check.folder / "toy"
        write_toy(folder)
        for language in ("en", "de"):
            train = folder / f"train.{language}"
            train.write_text("".join(train.read_text().splitlines(keepends=True)[: check.scale.pairs]))
        data, test = {"dir": str(folder), "train": "train", "valid": "valid"}, folder / "test"
    print(f"text: {'mixed' if real else 'the toy corpus'}")
    src, ref = (test.with_suffix(f".{language}").read_text().splitlines() for language in ("en", "de"))
    return data, (src, ref)


def _gemm_peak(check: Check) -> float:
    """FLOP/s of products of large square matrices in the precision of training: the best of five."""
    device, size = torch.device(check.scale.device), check.scale.gemm
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def twenty() -> None:
        for _ in range(20):
            left @ right

    twenty()
    peak = max(20 * 2 * size**3 / _timed(twenty, device) for _ in range(5))
    check.tell("gemm_peak_tflops", f"{peak / 1e12:.1f} ({size} x {size}, {str(dtype).removeprefix('torch.')})")
    return peak


def _config(check: Check, shape: dict[str, Any], data: dict[str, Any], **training: Any) -> Config:
    tables = {
        "data": {"src_lang": "en", "tgt_lang": "de", "max_length": 128, **data},
        "tokenizer": {"vocab_size": check.scale.vocab_size},
        "model": {**shape},
        "training": {
            "learning_rate": 1e-3,
            "warmup_updates": 1000,
            "log_every": 100_000,
            "max_updates": 100_000,
            **check.scale.training,
            **training,
        },
        "validation": {"every": 100_000, "max_sentences": 500},
    }
    return parse_config(tables, where="the bench's recipe")


def _new_trainer(check: Check, name: str, config: Config) -> Trainer:
    folder, log = check.folder / name, TrainingLog(quiet=True)
    folder.mkdir()
    device = torch.device(check.scale.device)
    opened = run._open(config, folder, device, check.folder / "cache", 0, log)
    return run._trainer(opened, folder, device, log, StopRequest(), Ranks())


def _bench(check: Check, name: str, data: dict[str, Any], peak: float) -> None:
    """Complete training steps of one model."""
    shape, asked = check.scale.shapes[name]
    trainer = _new_trainer(check, name, _config(check, shape, data))
    began = time.monotonic()
    trainer.try_widest_batches()
    for _ in range(check.scale.warm_up):
        _update(trainer)
    print(f"{name}: {trainer.model.num_parameters():,} parameters, {trainer.config.training.batch_tokens:,} tokens a ")
    print(f"  micro-batch, {trainer.config.training.precision}, compiled: {trainer.config.training.compile}; ")
    print(f"  ready after {time.monotonic() - began:.0f} s, {_programs()} programs")
    programs = _programs()
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    watched = _Watched(trainer)
    updates = 0

    def measured() -> None:
        nonlocal updates
        until = time.monotonic() + check.scale.seconds
        while updates < 2 or time.monotonic() < until:
            _update(trainer)
            updates += 1

    seconds = _timed(measured, trainer.device)
    flops = watched.flops(trainer.config.model)
    used = 100 * flops / seconds / peak
    check.tell(f"{name}_target_tokens_per_s", f"{watched.tgt_tokens / seconds:,.0f} ({updates} updates)")
    check.tell(f"{name}_source_tokens_per_s", f"{watched.src_tokens / seconds:,.0f}")
    check.tell(f"{name}_mfu_percent", f"{used:.1f} of the measured GEMM peak", f">= {asked:g}", used >= asked)
    more = _programs() - programs
    check.tell(f"{name}_recompiles_after_warmup", more, "0", more == 0)
    waited = 100 * watched.seconds / seconds
    check.tell(f"{name}_loader_percent", f"{waited:.2f} of the time", "<= 2", waited <= 2)
    if trainer.device.type == "cuda":
        check.tell(f"{name}_peak_memory_gb", f"{torch.cuda.max_memory_allocated() / 1e9:.1f}")
    _kernels(check, name, trainer)
    syncs = _host_syncs(trainer)
    check.tell(f"{name}_host_syncs_per_update", syncs, "0", syncs == 0)


def _kernels(check: Check, name: str, trainer: Trainer) -> None:
    """Which attention kernel ran, and whether it can be flash everywhere."""
    flash = flash_by_attention(trainer, unpadded_batch(trainer))
    said = ", ".join(f"{kind} {'yes' if fits else 'no'}" for kind, fits in flash.items()) or "no SDPA call"
    check.tell(f"{name}_flash", said, "encoder, decoder and cross", len(flash) == 3 and all(flash.values()))
    check.tell(f"{name}_unpadded_batches_percent", f"{unpadded_percent(trainer):.1f}")
    found = kernels_of_updates(trainer)
    check.tell(f"{name}_attention_kernels", ", ".join(sorted(found)) or "none", "flash", found == {"flash"})


def _host_syncs(trainer: Trainer, updates: int = 3) -> float:
    """How often an update waits for the GPU, by torch's own count."""
    if trainer.device.type != "cuda":
        return 0.0
    _update(trainer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        for _ in range(updates):
            _update(trainer)
        torch.cuda.set_sync_debug_mode("default")
    places = [f"{w.filename}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]
    for place in sorted(set(places)):
        print(f"  waits at {place} ({places.count(place)} times in {updates} updates)")
    return round(len(places) / updates, 2)


def _train(check: Check, data: dict[str, Any], test: tuple[list[str], list[str]]) -> None:
    """Train the base model for what is left, translate and score."""
    minutes = min(check.scale.minutes, (check.left() - SCORING_S) / 60)
    if minutes <= 0:
        print("no time is left for training")
        return
    src, ref = (lines[: None if check.scale.pairs is None else check.scale.lines] for lines in test)
    shape, _ = check.scale.shapes["base"]
    tokens = 16_384 if check.scale.device == "cuda" else check.scale.training["tokens_per_batch"]
    config = _config(
        check,
        {**shape, "dropout": 0.2},
        data,
        max_minutes=minutes,
        tokens_per_batch=tokens,
        learning_rate=1.5e-3,
        warmup_updates=400,
        keep_last=1,
        average_count=1,
    )
    folder = check.folder / "trained"
    run.train(config, folder, device=check.scale.device, cache=check.folder / "cache", quiet=True)
    device, lines = torch.device(check.scale.device), src[: check.scale.lines]
    for beam in (1, 4):
        translator = Translator(folder, device=check.scale.device, decoding={"beam_size": beam})
        translator.translate(lines[:8])
        seconds = _timed(lambda: translator.translate(lines), device)  # noqa: B023
        check.tell(f"translate_beam_{beam}_sentences_per_s", f"{len(lines) / seconds:,.1f} ({len(lines)} lines)")
    bleu = score(translator.translate(src), [ref], metrics=("bleu",), tgt_lang="de")[0]
    check.tell("bleu", f"{bleu.value:.2f} after {minutes:.2f} minutes of training, {len(src)} lines, beam 4")


class _Watched:
    """Notes the pairs that a trainer draws, and how long it waits for its batches."""

    def __init__(self, trainer: Trainer) -> None:
        self.seconds = 0.0
        self._cache, self._vocab_size = trainer.prepared.train, trainer.bundle.config.tgt_vocab_size
        self._pairs: list[np.ndarray] = []
        draw, batch = trainer.stream.draw, trainer.stream.batch

        def drawing() -> Any:
            pairs = self._waiting(draw)
            self._pairs.append(pairs)
            return pairs

        trainer.stream.draw = drawing  # type: ignore[method-assign]
        trainer.stream.batch = lambda pairs: self._waiting(lambda: batch(pairs))  # type: ignore[method-assign]

    def _waiting(self, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        result = work()
        self.seconds += time.monotonic() - began
        return result

    @property
    def src_tokens(self) -> int:
        """Real ones."""
        return int(self._cache.src_lengths[np.concatenate(self._pairs)].sum())

    @property
    def tgt_tokens(self) -> int:
        """Real ones."""
        return int(self._cache.tgt_lengths[np.concatenate(self._pairs)].sum())

    def flops(self, model: ModelConfig) -> float:
        """Of all that was drawn."""
        pairs = np.concatenate(self._pairs)
        lengths = self._cache.src_lengths[pairs], self._cache.tgt_lengths[pairs]
        return training_flops(model, self._vocab_size, *lengths)


def _update(trainer: Trainer) -> None:
    """As in `Trainer.fit`."""
    rates = trainer.one_update()
    trainer._agree()
    trainer._record_update(rates)


def _programs() -> int:
    return int(counters["stats"]["unique_graphs"])


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds, the device's queue emptied before and after."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
