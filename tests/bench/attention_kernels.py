"""Which kernel computes each attention: what it is called with, what could run on that, what did run."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmt.data.batching import Batch, Position
from nmt.training.loss import batch_loss
from nmt.training.trainer import Trainer

# Parts of the names of CUDA kernels, in the order in which they are looked for: cuDNN's name has "flash" in it too.
_NAMES = {"cudnn": ("cudnn",), "flash": ("flash_fwd", "flash_bwd"), "efficient": ("fmha_cutlass", "mem_eff")}


def unpadded_batch(trainer: Trainer, rows: int = 64) -> Batch:
    """Some pairs of the most common source length."""
    lengths = trainer.prepared.train.src_lengths
    same = np.flatnonzero(lengths == np.bincount(lengths).argmax())
    return trainer.stream.batch(same[:rows])


def unpadded_percent(trainer: Trainer) -> float:
    """The share of an epoch's batches whose source has no padding, so that their attention has no mask."""
    lengths, stream = trainer.prepared.train.src_lengths, trainer._stream_from(Position())
    batches = [lengths[stream.draw()] for _ in range(stream.batches_in_epoch)]
    return 100 * float(np.mean([of_batch.min() == of_batch.max() for of_batch in batches]))


def flash_by_attention(trainer: Trainer, batch: Batch) -> dict[str, bool]:
    """For each attention of the model: whether all its calls go without a mask, and flash takes their inputs."""
    with _calls() as flash, torch.no_grad():
        trainer.model.eval()  # then layers run as they are written, not compiled
        batch_loss(trainer.model, batch, trainer.pad, 0.0, trainer.config.training.precision)
        trainer.model.train()
    return flash


@contextmanager
def _calls() -> Iterator[dict[str, bool]]:
    """Within the block every SDPA call is tried with flash alone."""
    original, seen = F.scaled_dot_product_attention, dict[str, bool]()

    def spy(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        causal = bool(options.get("is_causal"))
        kind = "decoder" if causal else "cross" if "decoder" in seen else "encoder"
        fits = attn_mask is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells by them why a kernel does not run
            try:
                with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                    original(q, k, v, attn_mask=attn_mask, **options)
            except RuntimeError:
                fits = False
        seen[kind] = seen.get(kind, True) and fits
        return original(q, k, v, attn_mask=attn_mask, **options)

    F.scaled_dot_product_attention = spy
    try:
        yield seen
    finally:
        F.scaled_dot_product_attention = original


def kernels_of_updates(trainer: Trainer, updates: int = 2) -> set[str]:
    """The attention kernels that the GPU ran in some updates, as they are compiled: cudnn, flash, efficient."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if trainer.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(updates):
            trainer.one_update()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
    names = [event.key.lower() for event in profile.key_averages()]
    found = set()
    for name in names:
        kernel = next((kind for kind, parts in _NAMES.items() if any(part in name for part in parts)), None)
        if kernel is not None:
            found.add(kernel)
    return found
