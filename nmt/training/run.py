"""A run folder: opened, locked, filled with config, data and model, and handed to the `Trainer`.

RUN holds `config.toml` (resolved), `log.jsonl`, `checkpoints/`, `bundle/`, `cache/`, `lock`, and `tensorboard/` if that
is installed.
"""

import fcntl
import json
import math
import os
import resource
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt.bundle import Bundle, BundleConfig, read_tokenizer
from nmt.config import Config, ModelConfig
from nmt.data.prepare import Prepared, prepare
from nmt.decoding.translator import pick_device
from nmt.errors import ConfigError, StorageError
from nmt.model.build import build_model
from nmt.model.compiled import compile_problem
from nmt.model.memory import keep_freed_pages, keep_kernels
from nmt.storage.atomic import replace_file
from nmt.training.batch_size import largest_that_fits
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.resume import (
    changed_keys,
    check_allowed,
    config_of,
    describe,
    new_state,
    newest_checkpoint,
    refuse_changes,
    tidy,
    trained_length,
)
from nmt.training.trainer import Trainer
from nmt.training.validation import check_metrics


def train(
    config: Config,
    run: Path,
    *,
    device: str = "auto",
    cache: Path | None = None,
    threads: int = 0,
    quiet: bool = False,
    allow_changed: Collection[str] = (),
    stop: StopRequest | None = None,
) -> Path:
    """Create or resume the run folder `run` and train to its limit. Returns: the final bundle's folder.

    Started by torchrun, every rank calls this with the same arguments.

    Args:
        cache: folder of tokenizer and token caches, RUN/cache by default.
        threads: for preparing data; 0 means all cores.
        allow_changed: what may differ from the run that is resumed: `config`, `data`, `world` (see `resume.ALLOWED`).
        stop: whose signals end training after the current update; without one signals are left alone.
    Raises: ConfigError, DataError, StorageError, BundleError, DivergedError, RankError, Interrupted.
    """
    ranks, stop = Ranks.from_environment(), stop or StopRequest()
    log = TrainingLog(quiet=quiet or not ranks.first)
    target = _device_of(ranks, device)
    with ranks.joined(target, config.training.rank_timeout_s), ExitStack() as held:

        def open_locked() -> str:
            check_allowed(allow_changed)
            held.enter_context(_locked(run))
            return _open(config, run, target, cache, threads, log, ranks.world, allow_changed).to_json()

        opened = _Opened.from_json(ranks.from_first("run", open_locked))
        return _trainer(opened, run, target, log, stop, ranks).fit()


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
    ranks = Ranks.from_environment()
    if ranks.world > 1:
        raise ranks.agreed(ConfigError("--dry-run looks at one process: run it without torchrun."))
    log, target = TrainingLog(quiet=quiet), _device_of(Ranks(), device)
    with _locked(run):
        opened = _open(config, run, target, cache, threads, log)
        trainer = _trainer(opened, run, target, log, StopRequest(), Ranks())
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


@dataclass(frozen=True)
class _Opened:
    """What rank 0 finds out, for all ranks.

    Attributes:
        checkpoint: the name of the one to go on from, every sum verified; empty for a run that begins.
        changed: keys of the config that differ from the run's own, as allowed.
    """

    config: Config
    prepared: Prepared
    checkpoint: str = ""
    changed: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As it travels between ranks."""
        config = self.config.model_dump(exclude_unset=True)
        return json.dumps([config, self.prepared.to_json(), self.checkpoint, self.changed])

    @classmethod
    def from_json(cls, text: str) -> "_Opened":
        """The other end of `to_json`."""
        config, prepared, checkpoint, changed = json.loads(text)
        return cls(Config.model_validate(config), Prepared.from_json(prepared), checkpoint, tuple(changed))


def _open(
    config: Config,
    run: Path,
    device: torch.device,
    cache: Path | None,
    threads: int,
    log: TrainingLog,
    world: int = 1,
    allow_changed: Collection[str] = (),
) -> _Opened:
    """Find the checkpoint to go on from, resolve the config, prepare the data, refuse what may not have changed.

    The run's own config is that of its newest checkpoint: before the first one nothing binds it. RUN/config.toml, for
    the reader, is written when nothing was refused.
    """
    tidy(run)
    checkpoint = newest_checkpoint(run, log.say)
    earlier = config_of(checkpoint) if checkpoint else None
    start = _start(config) if earlier is None else None
    config = resolve(config, device, earlier, start)
    check_metrics(config)
    changed = changed_keys(run, earlier, config, allow_changed) if earlier else {}
    log.say(f"run folder: {run}")
    tokenizer = read_tokenizer(checkpoint) if checkpoint else start.tokenizer if start else None
    prepared = prepare(config, cache or run / "cache", log.say, tokenizer=tokenizer, threads=threads)
    if checkpoint:
        others = refuse_changes(run, checkpoint, new_state(config, prepared, world), allow_changed)
        log.say(describe(checkpoint, run, [*(f"{key} {how}" for key, how in changed.items()), *others]))
    if config.training.tokens_per_batch == "auto":
        found = largest_that_fits(_new_bundle(config, prepared, None).model.to(device), config, prepared, log.say)
        config = config.replace(training={"tokens_per_batch": found})
    replace_file(run / "config.toml", config.to_toml().encode())
    return _Opened(config, prepared, checkpoint.name if checkpoint else "", tuple(changed))


def _trainer(
    opened: _Opened, run: Path, device: torch.device, log: TrainingLog, stop: StopRequest, ranks: Ranks
) -> Trainer:
    """A trainer, at update 0 or where the checkpoint stands."""
    config = opened.config
    keep_kernels()
    keep_freed_pages()  # from here on: what the tokenizer's training freed goes back to the system
    torch.manual_seed(config.training.seed)
    checkpoint = run / "checkpoints" / opened.checkpoint if opened.checkpoint else None
    start = None if checkpoint else _start(config)
    seen = trained_length(checkpoint) if checkpoint else start.config.max_length if start else 1
    bundle = _new_bundle(config, opened.prepared, start, seen)
    bundle.model.to(device)
    how = config.training.precision + (", compiled," if config.training.compile is True else "")
    log.say(
        f"model: {bundle.model.num_parameters():,} parameters, vocabulary {bundle.config.src_vocab_size:,} and "
        f"{bundle.config.tgt_vocab_size:,}, {how} on "
        + (f"{ranks.world} ranks of {device.type}" if ranks.world > 1 else str(device))
    )
    for note in _notes(config, bundle):
        log.say(note)
    trainer = Trainer(config, run, opened.prepared, bundle, log, stop, ranks)
    if checkpoint:
        trainer.resume(checkpoint, opened.changed)
    return trainer


def _notes(config: Config, bundle: Bundle) -> Iterator[str]:
    """What is to be known of the model before it is trained."""
    model = config.model
    defaults, used = ModelConfig(), model.used()
    idle = [key for key, value in model.model_dump().items() if key not in used and value != getattr(defaults, key)]
    if idle and config.training.init_from is None:
        yield f'note: a model of type = "{model.type}" with these keys does not use {", ".join(idle)}'
    if bundle.model.max_positions is not None:
        yield (
            f"positions: {bundle.model.max_positions:,} are learned, so no translation will have more pieces; the "
            f"longest source has {bundle.config.max_length:,}"
        )


def _set_up_cuda() -> None:
    """What is set in torch for the whole process, before it first works on a GPU."""
    torch.set_float32_matmul_precision("high")  # TF32, where a product is in fp32
    # Torch prefers cuDNN's attention on newer GPUs, which plans anew for every shape; without it flash is the first.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # The backward pass of flash adds up in any order unless told otherwise; a resumed run is to repeat its bits.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # A help for debugging that costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _device_of(ranks: Ranks, device: str) -> torch.device:
    """Under torchrun every rank of a machine takes a GPU of its own."""
    target = pick_device(device)
    if ranks.world > 1 and target.type == "cuda":
        target = pick_device(f"cuda:{ranks.local_rank}")
    if target.type == "cuda":
        _set_up_cuda()
        if target.index is not None:
            torch.cuda.set_device(target)  # whose generator dropout draws from
    return target


def _start(config: Config) -> Bundle | None:
    """The model of `training.init_from`."""
    return Bundle.load(config.training.init_from) if config.training.init_from else None


def resolve(config: Config, device: torch.device, earlier: Config | None = None, start: Bundle | None = None) -> Config:
    """Replace `auto` by what it means here, and fill the model's shape from `init_from`.

    `tokens_per_batch` of a run that begins stays as it is: it needs data and model (see `_open`).

    Args:
        earlier: the resolved config of the run that is resumed; what was found once stays.
        start: the model of `training.init_from`, for a new run.
    Raises: ConfigError (shapes that contradict `init_from`).
    """
    meant = {
        "precision": "bf16" if _computes_in_bf16(device) else "fp32",
        "equal_source_lengths": device.type == "cuda",
        "tokens_per_batch": "auto",
    }
    found = earlier.training.model_dump() if earlier else meant
    autos = {key for key in meant if getattr(config.training, key) == "auto"}
    changes: dict[str, Any] = {"training": {key: found[key] for key in autos}}
    changes["training"]["compile"] = _compiled(config, device, earlier)
    shape = earlier.model if earlier else start.config.model if start else None
    if config.training.init_from is not None and shape is not None:
        given = {key: getattr(config.model, key) for key in config.model.model_fields_set}
        clashes = [key for key, value in given.items() if "dropout" not in key and value != getattr(shape, key)]
        if clashes:
            keys = ", ".join(f"{key} = {given[key]} (there: {getattr(shape, key)})" for key in clashes)
            raise ConfigError(f"[model] contradicts training.init_from: {keys}. Leave these keys out.")
        changes["model"] = {**shape.model_dump(), **given}
    return config.replace(**changes)


def _computes_in_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies in bf16, and faster than in fp32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    units = [getattr(torch.cpu, f"_is_{unit}_supported", None) for unit in ("amx_tile", "avx512_bf16")]
    return device.type == "cpu" and any(bool(has_unit()) for has_unit in units if has_unit is not None)


def _compiled(config: Config, device: torch.device, earlier: Config | None) -> bool:
    """Whether layers are to be compiled. Raises: ConfigError (they are, and that does not work here)."""
    asked = config.training.compile
    if asked == "auto" and earlier is not None:
        asked = earlier.training.compile
    if asked == "auto" and (device.type != "cuda" or config.training.sharding == "full" or config.model.type == "rnn"):
        return False
    if asked is False:
        return False
    problem = compile_problem(device)
    if problem and asked is True:
        raise ConfigError(
            f"training.compile = true, but torch.compile does not work on {device.type} here: {problem} "
            f"Give training.compile = false."
        )
    return problem is None


def _new_bundle(config: Config, prepared: Prepared, start: Bundle | None, at_least: int = 1) -> Bundle:
    """A model at the beginning: that of `start`, or a random one.

    Args:
        at_least: pieces of the longest source that the model was trained on before.
    """
    tokenizer = prepared.tokenizer
    bundle_config = BundleConfig(
        src_lang=config.data.src_lang,
        tgt_lang=config.data.tgt_lang,
        src_vocab_size=tokenizer.src_vocab_size,
        tgt_vocab_size=tokenizer.tgt_vocab_size,
        max_length=max(at_least, int(prepared.train.src_lengths.max())),
        one_sentence_share=prepared.one_sentence_share,
        model=config.model,
        decoding=config.decoding,
        recipe=config.model_dump(exclude_none=True),
        tags=sorted({source.tag for source in config.data.train if source.tag}),
    )
    model = build_model(config.model, tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
    if start is not None:
        model.load_state_dict(start.model.state_dict())
    return Bundle(bundle_config, model, tokenizer)


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
