"""What must be the same when a run goes on, what may change, and what a change means.

A run is resumed if its config, text, tokenizer and number of ranks are those it began with: then it ends bit-equal to
one that was never stopped. `--allow-changed` gives that up by name.
"""

import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import torch

from nmt.bundle import list_checkpoints
from nmt.config import Config
from nmt.errors import BundleError, ConfigError
from nmt.storage.atomic import remove_stale
from nmt.training.checkpoint import TrainState, load_state, newest_whole

ALLOWED = {
    "config": "keys of [training], [validation], [decoding] and dropout rates: they hold from here on",
    "data": "[data] and the training text: the epoch begins anew with it, the tokenizer stays",
    "world": "the number of ranks: they share the same updates, which differ by rounding alone",
}
ALWAYS_FREE = ("training.max_updates", "training.max_epochs", "training.max_minutes", "training.rank_timeout_s")
NEW_ORDER = ("training.tokens_per_batch", "training.seed")  # with these the batches of an epoch are others


def check_allowed(names: Collection[str]) -> None:
    """Raises: ConfigError, for a name that `--allow-changed` does not know."""
    unknown = [name for name in names if name not in ALLOWED]
    if unknown:
        known = "; ".join(f"{name} ({meaning})" for name, meaning in ALLOWED.items())
        raise ConfigError(f"--allow-changed {unknown[0]} is not known. There are: {known}.")


def changed_keys(run: Path, earlier: Config, config: Config, allowed: Collection[str]) -> list[str]:
    """The keys that differ from the run's own config. Raises: ConfigError, if one of them may not."""
    before, now = earlier.model_dump(), config.model_dump()
    to_the_end = config.training.schedule in ("linear", "cosine")
    free = [key for key in ALWAYS_FREE if not (to_the_end and key == "training.max_updates")]
    keys = [f"{section}.{key}" for section in now for key in now[section] if now[section][key] != before[section][key]]
    keys = [key for key in keys if key not in free]
    refused = [key for key in keys if _permission(key) not in allowed]
    if not refused:
        return keys
    shown = []
    for key in refused:
        section, _, name = key.partition(".")
        shown.append(f"{key} = {now[section][name]!r} (the run has {before[section][name]!r})")
    permissions = {_permission(key) for key in refused}
    way_out = f", or give --allow-changed {' --allow-changed '.join(sorted(permissions))}" if all(permissions) else ""
    raise ConfigError(
        f"{run} holds a run with another config: {'; '.join(shown)}. Give another --out for a new run, or set these "
        f"back to go on with this one{way_out}."
    )


def tidy(run: Path) -> None:
    """Remove what killed processes left in a run folder whose lock we hold."""
    for folder in (run, run / "checkpoints"):
        remove_stale(folder, ours_alone=True)


def choose_checkpoint(run: Path, now: TrainState, allowed: Collection[str], say: Callable[[str], None]) -> str:
    """The name of the newest checkpoint that is whole, or nothing if there is none; damaged ones are set aside.

    Args:
        now: the state of a run that would begin now, with the same config.
        say: told what was verified, and what is wrong with the others.
    Raises: ConfigError (text, tokenizer or ranks changed), BundleError (no checkpoint is whole).
    """
    checkpoint, damaged = newest_whole(run)
    if checkpoint is None and damaged:
        raise BundleError(
            f"No checkpoint of {run} is whole: {damaged[0][0].name}: {damaged[0][1]}. Restore one, or give another "
            f"--out to begin anew."
        )
    for folder, problem in damaged:
        aside = folder.with_name(f"{folder.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        say(f"warning: the checkpoint {folder} is damaged: {problem}; set aside as {aside.name}")
    if checkpoint is None:
        return ""
    state = load_state(checkpoint)
    _refuse_changes(run, state, now, allowed)
    files = [path for path in checkpoint.iterdir() if path.is_file()]
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    others = len(list_checkpoints(run)) - 1
    say(
        f"verified: {checkpoint.name}, {len(files)} files ({size_mb:,.1f} MB) by sha256; config, training text, "
        f"tokenizer and {now.world} rank{'s' * (now.world > 1)} {'as allowed' if allowed else 'as before'}; "
        f"{others} older checkpoint{'s' * (others != 1)} kept"
    )
    if state.torch not in ("", torch.__version__):
        say(f"warning: the run was trained with torch {state.torch}, this is {torch.__version__}: rounding may differ")
    return checkpoint.name


def adopt(earlier: TrainState, now: TrainState, changed: Collection[str]) -> TrainState:
    """The state from which the run goes on: the earlier one, with what was allowed to change.

    Args:
        now: the state of a run that would begin now.
        changed: keys of the config that changed.
    """
    reordered = earlier.data != now.data or any(key in NEW_ORDER for key in changed)
    resized = not earlier.batches_per_update or "training.accumulation" in changed
    return replace(
        earlier,
        data=now.data,
        batch_index=0 if reordered else earlier.batch_index,
        world=now.world,
        batches_per_update=now.batches_per_update if resized else earlier.batches_per_update,
        torch=now.torch,
    )


def _permission(key: str) -> str:
    """Which name of `--allow-changed` lets this key change; nothing for what the weights depend on."""
    section, _, name = key.partition(".")
    if section == "data" and name not in ("src_lang", "tgt_lang"):
        return "data"
    if section in ("training", "validation", "decoding") or "dropout" in name:
        return "config"
    return ""


def _refuse_changes(run: Path, state: TrainState, now: TrainState, allowed: Collection[str]) -> None:
    if state.data != now.data and "data" not in allowed:
        raise ConfigError(
            f"{run} began with another training text or tokenizer ({state.data}; now {now.data}). Restore them to go "
            f"on, give another --out for a new run, or --allow-changed data: the epoch then begins anew with this text."
        )
    if state.world != now.world and "world" not in allowed:
        raise ConfigError(
            f"{run} is a run of {state.world} rank{'s' * (state.world > 1)}, this is one of {now.world}. Start as many "
            f"as before, or give --allow-changed world: they then share the same {state.batches_per_update} "
            f"micro-batches an update, and results differ by rounding alone."
        )
