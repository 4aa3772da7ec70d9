"""The learning rate as a pure function of the update, and AdamW."""

import math

import torch
from torch import nn

from nmt.config import TrainingConfig


def learning_rate(update: int, config: TrainingConfig) -> float:
    """The rate of the given update (from 1): linear warm-up to the peak, then the schedule.

    inverse_sqrt falls with 1/sqrt(update) (Vaswani et al. 2017, equation 3); linear and cosine reach 0 at max_updates.
    """
    peak, warmup = config.learning_rate, config.warmup_updates
    if update < warmup:
        return peak * update / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(1, warmup) / max(1, update))
    assert config.max_updates is not None  # the config demands it for the two schedules below
    left = max(0.0, config.max_updates - update) / max(1, config.max_updates - warmup)
    return peak * (left if config.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * min(1.0, left)))


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); matrices decay, biases and norms do not."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
