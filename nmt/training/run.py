"""A run folder: opened, locked, filled with config, data and model, and handed to the `Trainer`.

RUN holds `config.toml` (resolved), `log.jsonl`, `checkpoints/`, `bundle/`, `cache/`, `lock`, and `tensorboard/` if that
is installed.
"""

import fcntl
import math
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nmt.bundle import Bundle, BundleConfig, list_checkpoints, read_tokenizer
from nmt.config import Config, load_config
from nmt.data.prepare import Prepared, prepare
from nmt.decoding.translator import pick_device
from nmt.errors import ConfigError, StorageError
from nmt.model.transformer import Transformer
from nmt.storage.atomic import remove_stale, replace_file
from nmt.storage.manifest import damage
from nmt.text.tokenizer import Tokenizer
from nmt.training.interrupt import StopRequest
from nmt.training.memory import keep_freed_pages
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer
from nmt.training.validation import check_metrics

LIMITS = ("max_updates", "max_epochs", "max_minutes")


def train(
    config: Config,
    run: Path,
    *,
    device: str = "auto",
    cache: Path | None = None,
    threads: int = 0,
    quiet: bool = False,
) -> Path:
    """Create or resume the run folder `run` and train to its limit. Returns: the final bundle's folder.

    Args:
        cache: folder of tokenizer and token caches, RUN/cache by default.
        threads: for preparing data; 0 means all cores.
    Raises: ConfigError, DataError, StorageError, BundleError, DivergedError, Interrupted.
    """
    log, stop = TrainingLog(quiet=quiet), StopRequest()
    with stop.handle_signals(), _locked(run):
        trainer = _open(config, run, device, cache, threads, log, stop)
        trainer.resume()
        return trainer.fit()


def dry_run(
    config: Config,
    run: Path,
    *,
    device: str = "auto",
    cache: Path | None = None,
    threads: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Prepare the data, build the model, try the widest batches and time a few updates; write no checkpoint.

    Returns: data counts by split, parameters, peak memory in MB, tokens/s, estimated minutes of training.
    """
    log, stop = TrainingLog(quiet=quiet), StopRequest()
    with _locked(run):
        trainer = _open(config, run, device, cache, threads, log, stop)
    trainer.try_widest_batches()
    trainer.one_update()  # the first one is slower
    began, tokens_before = time.monotonic(), trainer.state.tokens
    for _ in range(3):
        trainer.one_update()
    seconds = time.monotonic() - began
    return {
        "data": trainer.prepared.counts,
        "parameters": trainer.model.num_parameters(),
        "peak memory (MB)": round(_peak_memory_mb(trainer.device)),
        "tokens/s": round((trainer.state.tokens - tokens_before) / seconds),
        "estimated minutes": _estimated_minutes(trainer.config, seconds / 3, trainer.stream.batches_in_epoch),
    }


def _open(
    config: Config, run: Path, device: str, cache: Path | None, threads: int, log: TrainingLog, stop: StopRequest
) -> Trainer:
    """Resolve the config, check it against the run's own, prepare data and model."""
    target = pick_device(device)
    remove_stale(run)
    remove_stale(run / "checkpoints")
    earlier = _earlier_config(run)
    start = Bundle.load(config.training.init_from) if config.training.init_from and earlier is None else None
    config = resolve(config, target, earlier, start)
    check_metrics(config)
    _write_config(run, config, earlier)
    tokenizer = _tokenizer_of(run) if earlier else start.tokenizer if start else None
    log.say(f"run folder: {run}")
    prepared = prepare(config, cache or run / "cache", log.say, tokenizer=tokenizer, threads=threads)
    keep_freed_pages()  # from here on: what the tokenizer's training freed goes back to the system
    torch.manual_seed(config.training.seed)
    bundle = _new_bundle(config, prepared, start)
    bundle.model.to(target)
    log.say(
        f"model: {bundle.model.num_parameters():,} parameters, vocabulary {bundle.config.src_vocab_size:,} and "
        f"{bundle.config.tgt_vocab_size:,}, {config.training.precision} on {target}"
    )
    return Trainer(config, run, prepared, bundle, log, stop)


def resolve(config: Config, device: torch.device, earlier: Config | None = None, start: Bundle | None = None) -> Config:
    """Replace every `auto` by what it means here, and fill the model's shape from `init_from`.

    Args:
        earlier: the resolved config of the run that is resumed; what was found once stays.
        start: the model of `training.init_from`, for a new run.
    Raises: ConfigError (shapes that contradict `init_from`).
    """
    changes: dict[str, Any] = {}
    if config.training.precision == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        changes["training"] = {"precision": earlier.training.precision if earlier else "bf16" if bf16 else "fp32"}
    shape = earlier.model if earlier else start.config.model if start else None
    if config.training.init_from is not None and shape is not None:
        given = {key: getattr(config.model, key) for key in config.model.model_fields_set}
        clashes = [key for key, value in given.items() if "dropout" not in key and value != getattr(shape, key)]
        if clashes:
            keys = ", ".join(f"{key} = {given[key]} (there: {getattr(shape, key)})" for key in clashes)
            raise ConfigError(f"[model] contradicts training.init_from: {keys}. Leave these keys out.")
        changes["model"] = {**shape.model_dump(), **given}
    return config.replace(**changes) if changes else config


def _new_bundle(config: Config, prepared: Prepared, start: Bundle | None) -> Bundle:
    tokenizer = prepared.tokenizer
    bundle_config = BundleConfig(
        src_lang=config.data.src_lang,
        tgt_lang=config.data.tgt_lang,
        src_vocab_size=tokenizer.src_vocab_size,
        tgt_vocab_size=tokenizer.tgt_vocab_size,
        max_length=config.data.max_length,
        model=config.model,
        decoding=config.decoding,
        recipe=config.model_dump(exclude_none=True),
    )
    model = Transformer(config.model, tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
    if start is not None:
        model.load_state_dict(start.model.state_dict())
    return Bundle(bundle_config, model, tokenizer)


def _earlier_config(run: Path) -> Config | None:
    """The resolved config of a run that has a checkpoint; before the first one nothing binds it."""
    return load_config(run / "config.toml") if list_checkpoints(run) else None


def _tokenizer_of(run: Path) -> Tokenizer | None:
    """The tokenizer that the run's weights were trained with."""
    whole = (folder for folder in reversed(list_checkpoints(run)) if damage(folder) is None)
    return next((read_tokenizer(folder) for folder in whole), None)


def _write_config(run: Path, config: Config, earlier: Config | None) -> None:
    """Save the resolved config. Raises: ConfigError if the run goes on and its own is another one."""
    if earlier is not None:
        before, now = earlier.model_dump(), config.model_dump()
        to_the_end = config.training.schedule in ("linear", "cosine")
        free = [key for key in LIMITS if not (to_the_end and key == "max_updates")]
        changed = [
            f"{section}.{key} = {now[section][key]!r} (the run has {before[section][key]!r})"
            for section in now
            for key in now[section]
            if now[section][key] != before[section][key] and key not in free
        ]
        if changed:
            raise ConfigError(
                f"{run} holds a run with another config: {'; '.join(changed)}. Give another --out for a new run, or "
                f"set these back to go on with this one."
            )
    replace_file(run / "config.toml", config.to_toml().encode())


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Hold the run folder's lock. Raises: ConfigError if another process trains in it."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = (run / "lock").open("w")
    except OSError as error:
        raise StorageError(f"Cannot use the run folder {run}: {error.strerror}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"Another nmt train is using {run}. Wait for it, or give another --out.") from None
        yield


def _peak_memory_mb(device: torch.device) -> float:
    """The most memory used so far: of the GPU, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _estimated_minutes(config: Config, seconds_per_update: float, batches_in_epoch: int) -> float:
    """Minutes until the first of the limits, without validations."""
    training = config.training
    updates = [
        training.max_updates or math.inf,
        (training.max_epochs or math.inf) * batches_in_epoch / training.accumulation,
    ]
    return round(min(min(updates) * seconds_per_update / 60, training.max_minutes or math.inf), 1)
