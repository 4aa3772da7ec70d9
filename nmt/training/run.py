"""A run folder: opened, locked, filled with config, data and model, and handed to the `Trainer`.

RUN holds `config.toml` (resolved), `log.jsonl`, `checkpoints/`, `bundle/`, `cache/`, `lock`, and `tensorboard/` if that
is installed.
"""

import fcntl
import math
import resource
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nmt.bundle import Bundle, BundleConfig
from nmt.config import Config, parse_config
from nmt.data.prepare import Prepared, prepare
from nmt.decoding.translator import pick_device
from nmt.errors import ConfigError, StorageError
from nmt.model.transformer import Transformer
from nmt.storage.atomic import remove_stale, replace_file
from nmt.training.interrupt import StopRequest
from nmt.training.memory import keep_freed_pages
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer

LIMITS = ("max_updates", "max_epochs", "max_minutes")  # may change on resume, unless the schedule ends at them


def train(config: Config, run: Path, *, device: str = "auto", cache: Path | None = None, quiet: bool = False) -> Path:
    """Create or resume the run folder `run` and train to its limit. Returns: the final bundle's folder.

    Raises: ConfigError, DataError, StorageError, BundleError, DivergedError, Interrupted.
    """
    keep_freed_pages()
    log, stop = TrainingLog(quiet=quiet), StopRequest()
    with stop.handle_signals(), _locked(run):
        config = resolve(config, pick_device(device))
        _open_run(run, config)
        trainer = _trainer(config, run, device, cache or run / "cache", log, stop)
        trainer.resume()
        return trainer.fit()


def dry_run(config: Config, run: Path, *, device: str = "auto", cache: Path | None = None) -> dict[str, Any]:
    """Prepare the data, build the model, try the widest batches and time a few updates; write no checkpoint.

    Returns: data counts by split, parameters, peak memory in MB, tokens/s, estimated minutes of training.
    """
    keep_freed_pages()
    log, stop = TrainingLog(), StopRequest()
    config = resolve(config, pick_device(device))
    trainer = _trainer(config, run, device, cache or run / "cache", log, stop)
    trainer.try_widest_batches()
    peak_mb = _peak_memory_mb(trainer.device)
    began, tokens_before = time.monotonic(), trainer.state.tokens
    for _ in range(3):
        trainer.one_update()
    seconds = time.monotonic() - began
    return {
        "data": trainer.prepared.counts,
        "parameters": trainer.model.num_parameters(),
        "peak memory (MB)": round(peak_mb),
        "tokens/s": round((trainer.state.tokens - tokens_before) / seconds),
        "estimated minutes": _estimated_minutes(config, seconds / 3, trainer.stream.batches_in_epoch),
    }


def resolve(config: Config, device: torch.device) -> Config:
    """Replace every `auto` by what it means here, and take the model's shape from `init_from`.

    Raises: ConfigError (shapes that contradict `init_from`).
    """
    changes: dict[str, Any] = {}
    if config.training.precision == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        changes["training"] = {"precision": "bf16" if bf16 else "fp32"}
    if config.training.init_from is not None:
        start = Bundle.load(config.training.init_from).config.model
        given = {key: getattr(config.model, key) for key in config.model.model_fields_set}
        clashes = [key for key, value in given.items() if "dropout" not in key and value != getattr(start, key)]
        if clashes:
            keys = ", ".join(f"{key} = {given[key]} (there: {getattr(start, key)})" for key in clashes)
            raise ConfigError(f"[model] contradicts training.init_from: {keys}. Leave these keys out.")
        changes["model"] = {**start.model_dump(), **given}
    return config.replace(**changes) if changes else config


def _trainer(config: Config, run: Path, device: str, cache: Path, log: TrainingLog, stop: StopRequest) -> Trainer:
    start = Bundle.load(config.training.init_from) if config.training.init_from else None
    prepared = prepare(config, cache, log.say, start.tokenizer if start else None)
    torch.manual_seed(config.training.seed)
    bundle = _new_bundle(config, prepared, start)
    bundle.model.to(pick_device(device))
    log.say(
        f"model: {bundle.model.num_parameters():,} parameters, vocabulary {bundle.config.src_vocab_size:,} and "
        f"{bundle.config.tgt_vocab_size:,}, {config.training.precision} on {pick_device(device)}"
    )
    return Trainer(config, run, prepared, bundle, log, stop)


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


def _open_run(run: Path, config: Config) -> None:
    """Write the resolved config of a new run, or check that an old run has the same."""
    path = run / "config.toml"
    remove_stale(run)
    remove_stale(run / "checkpoints")
    if not path.is_file():
        replace_file(path, config.to_toml().encode())
        return
    old = parse_config(tomllib.loads(path.read_text()), where=str(path))
    before, now = old.model_dump(), config.model_dump()
    free = LIMITS if config.training.schedule in ("inverse_sqrt", "constant") else ()
    changed = [
        f"{section}.{key} = {now[section][key]!r} (the run has {before[section][key]!r})"
        for section in now
        for key in now[section]
        if now[section][key] != before[section][key] and key not in free
    ]
    if changed:
        raise ConfigError(
            f"{run} holds a run with another config: {'; '.join(changed)}. Give another --out for a new run, or set "
            f"these back to go on with this one."
        )
    replace_file(path, config.to_toml().encode())


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
        except OSError:
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
