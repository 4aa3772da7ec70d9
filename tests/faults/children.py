"""What children of the fork server run besides the command line, and hooks that change them."""

import functools
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import tiny
from nmt.bundle import Bundle, checkpoint_name
from nmt.config import TrainingConfig, load_config
from nmt.data.prepare import prepare
from nmt.storage.atomic import remove_stale
from nmt.storage.manifest import MANIFEST, manifest_of
from nmt.training import checkpoint, trainer
from nmt.training.checkpoint import Snapshot, TrainState, best_updates, prune, save_checkpoint
from nmt.training.optim import make_optimizer

SCORES = {7: 1.0, 14: 3.0, 21: 2.0, 28: 2.5, 35: 2.25, 42: 1.0}  # of the made-up checkpoints; 14 is the best


@functools.cache
def made_up(update: int) -> tuple[Bundle, torch.optim.AdamW]:
    """What a run could hold after an update: other weights and moments each time."""
    bundle = tiny.random_bundle(seed=update)
    optimizer = make_optimizer(bundle.model, TrainingConfig(max_updates=60))
    for parameter in bundle.model.parameters():
        moments = {"exp_avg": torch.randn_like(parameter), "exp_avg_sq": torch.rand_like(parameter)}
        optimizer.state[parameter] = {"step": torch.tensor(float(update)), **moments}
    return bundle, optimizer


def made_up_state(update: int) -> TrainState:
    """Its state, with the scores so far."""
    state = TrainState(data="train-made-up")
    for number in (number for number in SCORES if number <= update):
        state.update = number
        state.add_score(SCORES[number])
    return state


def save_made_up(run: str | Path, update: int, keep_last: int = 2) -> None:
    """What a run does at a checkpoint: save it, then delete all but the last ones and the best."""
    run = Path(run)
    remove_stale(run / "checkpoints")  # as a run does when it begins
    state = made_up_state(update)
    save_checkpoint(run, Snapshot.take(*made_up(update), state))
    prune(run, kept(run, state, keep_last))


def kept(run: Path, state: TrainState, keep_last: int = 2) -> set[Path]:
    """The last checkpoints and the best one."""
    updates = [*sorted(map(int, state.scores))[-keep_last:], *best_updates(state, 1)]
    return {run / "checkpoints" / checkpoint_name(update) for update in updates}


def save_in_place() -> None:
    """A negative control: checkpoints are filled under their final name."""

    @contextmanager
    def folder_in_place(final: Path) -> Iterator[Path]:
        final.mkdir(parents=True, exist_ok=True)
        yield final
        (final / MANIFEST).write_bytes(manifest_of(final))

    checkpoint.atomic_folder = folder_in_place  # type: ignore[assignment]


def limit_file_size(size: int) -> None:
    """No file may grow beyond it: writing fails with EFBIG, as Python ignores SIGXFSZ."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def hang() -> None:
    time.sleep(600)


def forget_seeding() -> None:
    """A negative control: dropout is not seeded by the micro-batch."""
    trainer._seed_dropout = lambda seed, micro_batch: None


def prepare_caches(toml: str, cache: str) -> None:
    """Tokenizer and token caches, as `nmt train` makes them."""
    prepare(load_config(Path(toml)), Path(cache), lambda text: print(text, file=sys.stderr), threads=1)
