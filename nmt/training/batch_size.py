"""`training.tokens_per_batch = "auto"`: the largest batch that a model can be trained with in the memory there is.

It is found by trying, before a run's first update, and written into the run's config.
"""

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from nmt.config import Config
from nmt.data.batching import widest_batch
from nmt.data.prepare import Prepared
from nmt.model.memory import is_out_of_memory
from nmt.model.seq2seq import Seq2Seq
from nmt.training.loss import batch_loss
from nmt.training.optim import make_optimizer

SHARE = 0.85  # of the memory that is free; the rest is for what differs between batches, and for fragments
MOST = {"cuda": 65_536, "cpu": 4_096}  # larger batches gain no speed there
_LEAST = 1024


def ladder(most: int) -> list[int]:
    """1024 and so on in steps of sqrt(2), as multiples of 64, up to `most`."""
    rungs: list[int] = []
    while (rung := 64 * round(_LEAST * 2 ** (len(rungs) / 2) / 64)) <= most:
        rungs.append(rung)
    return rungs


def largest_that_fits(model: Seq2Seq, config: Config, prepared: Prepared, say: Callable[[str], None]) -> int:
    """The largest rung of the ladder whose widest batches fit, one after the other, from the smallest up.

    Args:
        model: on its device; its weights are spoilt.
    """
    device = next(model.parameters()).device
    rungs = ladder(MOST.get(device.type, MOST["cpu"]))
    meter, largest = Meter(device), 0
    model.train().gradient_checkpointing = config.training.gradient_checkpointing
    optimizer = make_optimizer(model, config.training)
    for tokens in rungs:
        if not _fits(model, optimizer, config, prepared, tokens) or meter.used() > SHARE * meter.room:
            break
        largest = tokens
    del optimizer
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if not largest:
        say(f"warning: even batches of {rungs[0]:,} tokens do not fit into memory: they will be computed in parts")
    why = "the most that gain speed there" if largest == rungs[-1] else "the most that fit into memory"
    say(f"training.tokens_per_batch: {largest or rungs[0]:,}, {why} ({device.type})")
    return largest or rungs[0]


def _fits(model: Seq2Seq, optimizer: torch.optim.AdamW, config: Config, prepared: Prepared, tokens: int) -> bool:
    """Whether a whole update on the widest batch, and the loss of the widest validation batch, can be computed."""
    training, special = config.training, prepared.tokenizer.special
    try:
        batch = widest_batch(prepared.train, special, tokens)
        loss = batch_loss(model, batch, special.pad, training.label_smoothing, training.precision)
        torch.autograd.backward(loss / batch.num_tokens)
        optimizer.step()
        with torch.inference_mode():
            batch_loss(model, widest_batch(prepared.valid, special, tokens), special.pad, 0.0, training.precision)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        optimizer.zero_grad(set_to_none=True)
    return True


class Meter:
    """Measures the most memory used from here on, in bytes.

    Attributes:
        room: what is free at the beginning, and on CUDA what this process holds already, since that counts as used.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._resident = 0
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            self.room: float = free + torch.cuda.memory_reserved(device)
            torch.cuda.reset_peak_memory_stats(device)
        elif sys.platform == "linux":
            self.room = _kilobytes(Path("/proc/meminfo"), "MemAvailable:") * 1024
            self._resident = _kilobytes(Path("/proc/self/status"), "VmRSS:") * 1024
        else:  # there nothing is known but that an allocation failed
            self.room = float("inf")

    def used(self) -> int:
        """The most so far."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self._resident


def _kilobytes(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(name))
