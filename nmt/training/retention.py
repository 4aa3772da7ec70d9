"""Which checkpoints of a run are kept, and which of them make its final bundle."""

from collections.abc import Callable
from pathlib import Path

from nmt.bundle import checkpoint_name, list_checkpoints
from nmt.config import Config
from nmt.errors import BundleError
from nmt.storage.manifest import damage
from nmt.training.checkpoint import TrainState, best_updates


def kept(run: Path, config: Config, state: TrainState) -> set[Path]:
    """The checkpoints that stay: the last ones, the best ones, and that of the state itself."""
    last = _scheduled(run, config, state)[-config.training.keep_last :]
    best = [_folder(run, update) for update in best_updates(state, config.training.keep_best)]
    return {*last, *best, _folder(run, state.update)}


def final_candidates(
    run: Path, config: Config, state: TrainState, say: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Names of whole checkpoints: those to average, and the best one. Raises: BundleError (none is left)."""
    count = config.training.average_count
    if config.training.average == "best":
        averaged = [_folder(run, update) for update in best_updates(state, count)]
    else:
        averaged = _scheduled(run, config, state)[-count:]
    best = [_folder(run, state.best_update)]
    whole = {folder for folder in {*averaged, *best} if _is_whole(folder, say)}
    if not whole:
        raise BundleError(f"No checkpoint of {run} is whole any more, so there is nothing to average.")
    best = [folder for folder in best if folder in whole]
    averaged = [folder for folder in averaged if folder in whole] or best
    return [folder.name for folder in averaged], [folder.name for folder in best]


def _scheduled(run: Path, config: Config, state: TrainState) -> list[Path]:
    """Those that an uninterrupted run has, too: only these are counted and averaged."""
    every = config.training.checkpoint_every or config.validation.every
    updates = {folder: int(folder.name.removeprefix("ckpt-")) for folder in list_checkpoints(run)}
    return [folder for folder, u in updates.items() if u > 0 and (u % every == 0 or str(u) in state.scores)]


def _folder(run: Path, update: int) -> Path:
    return run / "checkpoints" / checkpoint_name(update)


def _is_whole(checkpoint: Path, say: Callable[[str], None]) -> bool:
    problem = damage(checkpoint)
    if problem:
        say(f"warning: the checkpoint {checkpoint} is damaged: {problem}; it is left out")
    return problem is None
