"""When a run ends, and how far it is."""

from nmt.config import Config, TrainingConfig
from nmt.training.checkpoint import TrainState


def limit_reached(config: Config, state: TrainState) -> str | None:
    """Why training ends here, or None."""
    training, validation = config.training, config.validation
    if training.max_updates is not None and state.update >= training.max_updates:
        return f"max_updates = {training.max_updates:,}"
    if training.max_epochs is not None and state.epoch >= training.max_epochs:
        return f"max_epochs = {training.max_epochs}"
    if training.max_minutes is not None and state.minutes >= training.max_minutes:
        return f"max_minutes = {training.max_minutes:g}"
    if validation.patience and state.worse_in_a_row >= validation.patience:
        return f"no better {validation.metric} in {validation.patience} validations (best: {state.best_update:,})"
    return None


def left(config: TrainingConfig, state: TrainState, epochs: float) -> str:
    """What is left of each limit, for the user. `epochs` are those done, with fractions."""
    parts = []
    if config.max_updates is not None:
        parts.append(f"{max(0, config.max_updates - state.update):,} of {config.max_updates:,} updates")
    if config.max_epochs is not None:
        parts.append(f"{max(0.0, config.max_epochs - epochs):.1f} of {config.max_epochs:,} epochs")
    if config.max_minutes is not None:
        parts.append(f"{max(0.0, config.max_minutes - state.minutes):.1f} of {config.max_minutes:g} minutes")
    return ", ".join(parts)


def fraction_done(config: TrainingConfig, state: TrainState, epochs: float) -> float:
    """How much of the run is done, by the limit that comes first: 0 to 1."""
    fractions = [
        state.update / config.max_updates if config.max_updates else 0.0,
        epochs / config.max_epochs if config.max_epochs else 0.0,
        state.minutes / config.max_minutes if config.max_minutes else 0.0,
    ]
    return min(1.0, max(fractions))
