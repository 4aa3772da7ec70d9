"""What must be the same when a run goes on, what may change, and what a change means.

A run is resumed if its config, text, tokenizer and number of ranks are those it began with: then it ends bit-equal to
one that was never stopped. `--allow-changed` gives that up by name.
"""

import itertools
import json
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import ValidationError

from nmt.bundle import list_checkpoints
from nmt.config import Config
from nmt.data.batching import ORDER
from nmt.data.domains import corpus_weights
from nmt.data.prepare import Prepared
from nmt.errors import BundleError, ConfigError
from nmt.storage.atomic import remove_stale
from nmt.training.checkpoint import TrainState, load_state, newest_whole

ALLOWED = {
    "config": "keys of [training], [validation], [decoding] and dropout rates: they hold from here on",
    "data": "the training or validation text that is left after cleaning: the epoch begins anew, the tokenizer stays",
    "world": "the number of ranks: they share the same updates, which differ by rounding alone",
}
_FREE = {  # what may change without a word: it does not touch the updates; of [data] the text itself is compared
    *(f"training.{key}" for key in ("max_updates", "max_epochs", "max_minutes", "rank_timeout_s")),
    *(f"training.{key}" for key in ("log_every", "keep_last", "keep_best", "gradient_checkpointing")),
}
_LANGUAGES = ("data.src_lang", "data.tgt_lang")
_NEW_ORDER = (
    "training.tokens_per_batch",
    "training.equal_source_lengths",
    "training.seed",
    "training.bpe_dropout",
    "training.unigram_alpha",
)  # with these the batches of an epoch are others
_BEFORE = {
    "compile": False,
    "equal_source_lengths": False,
}  # what a recipe means that does not know the key: `auto` is resolved in all others
_OTHER_BATCHES = "training.accumulation"


def new_state(config: Config, prepared: Prepared, world: int) -> TrainState:
    """The state of a run that begins."""
    return TrainState(
        data=_data_of(config, prepared),
        valid=prepared.valid.folder.name,
        order=ORDER,
        world=world,
        batches_per_update=config.training.accumulation * world,
        torch=torch.__version__,
    )


def _data_of(config: Config, prepared: Prepared) -> str:
    """A name of the training text and of how often its corpora are seen in an epoch."""
    weights = corpus_weights(config.data)
    seen = f" x {weights}" if any(weight != 1 for weight in weights) else ""
    return prepared.train.folder.name + seen


def check_allowed(names: Collection[str]) -> None:
    """Raises: ConfigError, for a name that `--allow-changed` does not know."""
    unknown = [name for name in names if name not in ALLOWED]
    if unknown:
        known = "; ".join(f"{name} ({meaning})" for name, meaning in ALLOWED.items())
        raise ConfigError(f"--allow-changed {unknown[0]} is not known. There are: {known}.")


def tidy(run: Path) -> None:
    """Remove what killed processes left in a run folder whose lock we hold."""
    for folder in (run, run / "checkpoints"):
        remove_stale(folder, ours_alone=True)


def newest_checkpoint(run: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint whose every sum is right, if there is any; damaged ones are set aside, and told of.

    Raises: BundleError (there are checkpoints and none is whole).
    """
    checkpoint, damaged = newest_whole(run)
    if checkpoint is None and damaged:
        raise BundleError(
            f"No checkpoint of {run} is whole: {damaged[0][0].name}: {damaged[0][1]}. Restore one, or give another "
            f"--out to begin anew."
        )
    for folder, problem in damaged:
        names = (folder.with_name(f"{folder.name}.damaged{number or ''}") for number in itertools.count())
        aside = next(name for name in names if not os.path.lexists(name))
        folder.rename(aside)
        say(f"warning: the checkpoint {folder} is damaged: {problem}; set aside as {aside.name}")
    return checkpoint


def config_of(checkpoint: Path) -> Config:
    """The resolved config that a checkpoint was trained with. Raises: BundleError."""
    path = checkpoint / "config.json"
    try:
        recipe = json.loads(path.read_bytes())["recipe"]
        return Config.model_validate({**recipe, "training": {**_BEFORE, **recipe["training"]}})
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} holds no recipe that this nmt can read: use the nmt that wrote it.") from error


def trained_length(checkpoint: Path) -> int:
    """Pieces of the longest source that a checkpoint, verified before, was trained on, EOS included."""
    return int(json.loads((checkpoint / "config.json").read_bytes())["max_length"])


def changed_keys(run: Path, earlier: Config, config: Config, allowed: Collection[str]) -> dict[str, str]:
    """The keys that differ from the run's own config, each with how. Raises: ConfigError, if one of them may not."""
    before, now = earlier.model_dump(), config.model_dump()
    keys = [(section, name) for section in now for name in now[section] if now[section][name] != before[section][name]]
    changed = {f"{section}.{name}": (before[section][name], now[section][name]) for section, name in keys}
    changed = {key: values for key, values in changed.items() if not _is_free(key, config)}
    refused = {key: values for key, values in changed.items() if _permission(key) not in allowed}
    if refused:
        shown = "; ".join(f"{key} = {new!r} (the run has {old!r})" for key, (old, new) in refused.items())
        permitted = all(_permission(key) for key in refused)
        way_out = ", or give --allow-changed config: they then hold from here on" if permitted else ""
        raise ConfigError(
            f"{run} holds a run with another config: {shown}. Give another --out for a new run, or set these back to "
            f"go on with this one{way_out}."
        )
    return {key: f"{old!r} -> {new!r}" for key, (old, new) in changed.items()}


def refuse_changes(run: Path, checkpoint: Path, now: TrainState, allowed: Collection[str]) -> list[str]:
    """What changed besides the config, in words. Raises: ConfigError, if it may not.

    Args:
        now: the state of a run that would begin now.
    """
    state, changes = load_state(checkpoint), []
    for kind, before, after in (("training", state.data, now.data), ("validation", state.valid, now.valid)):
        if before in ("", after):
            continue
        if "data" not in allowed:
            raise ConfigError(
                f"{run} began with another {kind} text or tokenizer ({before}; now {after}). Restore them to go on, "
                f"give another --out for a new run, or --allow-changed data: the epoch then begins anew with this text."
            )
        changes.append(f"the {kind} text")
    if state.order != now.order:
        changes.append("this nmt lays out an epoch's batches otherwise, so the epoch begins anew")
    if state.world != now.world:
        if "world" not in allowed:
            raise ConfigError(
                f"{run} is a run of {state.world} rank{'s' * (state.world > 1)}, this is one of {now.world}. Start as "
                f"many as before, or give --allow-changed world: they then share the same updates of "
                f"{state.batches_per_update} micro-batches, and results differ by rounding alone."
            )
        changes.append(f"ranks {state.world} -> {now.world}")
    return changes


def describe(checkpoint: Path, run: Path, changes: Collection[str]) -> str:
    """What was verified of a checkpoint, for the user."""
    files = [path for path in checkpoint.iterdir() if path.is_file()]
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    others = len(list_checkpoints(run)) - 1
    same = "config, text, tokenizer and ranks are the run's own"
    warning = ""
    if (earlier := load_state(checkpoint).torch) not in ("", torch.__version__):
        warning = f"\nwarning: trained so far with torch {earlier}, this is {torch.__version__}: rounding may differ"
    return (
        f"verified: {checkpoint.name}, {len(files)} files ({size_mb:,.1f} MB) by sha256; "
        f"{'changed as allowed: ' + '; '.join(changes) if changes else same}; "
        f"{others} older checkpoint{'s' * (others != 1)}{warning}"
    )


def adopt(earlier: TrainState, now: TrainState, changed: Collection[str]) -> TrainState:
    """The state from which the run goes on: the earlier one, with what was allowed to change.

    Args:
        now: the state of a run that would begin now.
        changed: keys of the config that changed.
    """
    relaid = earlier.data != now.data or earlier.order != now.order
    reordered = relaid or any(key in _NEW_ORDER for key in changed)
    resized = not earlier.batches_per_update or _OTHER_BATCHES in changed
    state = replace(
        earlier,
        data=now.data,
        valid=now.valid,
        order=now.order,
        batch_index=0 if reordered else earlier.batch_index,
        world=now.world,
        batches_per_update=now.batches_per_update if resized else earlier.batches_per_update,
        torch=now.torch,
    )
    if earlier.valid not in ("", now.valid) or any(map(_changes_scores, changed)):  # they cannot be compared any more
        state = replace(state, scores={}, best_update=0, worse_in_a_row=0)
    return state


def _is_free(key: str, config: Config) -> bool:
    if key == "training.max_updates":  # some schedules end there
        return config.training.schedule not in ("linear", "cosine")
    return key in _FREE or (key.startswith("data.") and key not in _LANGUAGES)


def _permission(key: str) -> str:
    """Which name of `--allow-changed` lets this key change; nothing for what the weights depend on."""
    section, _, name = key.partition(".")
    return "config" if section in ("training", "validation", "decoding") or "dropout" in name else ""


def _changes_scores(key: str) -> bool:
    section, _, name = key.partition(".")
    return section == "decoding" or (section == "validation" and name not in ("every", "patience"))
