"""A gradient that is not finite is refused without keeping the host waiting for the device at every update.

The device itself skips the step of such an update, weights, moments and Adam's counter alike; the host looks at the
norm one update later, when the answer has long come. It looks before the next step, a checkpoint, a validation or a
line of the log, so all that stands by then is as it was before the update that failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.batching import Ids


def skip_unless_finite(optimizer: torch.optim.AdamW, grad_norm: Tensor) -> None:
    """Let the next `optimizer.step()` change nothing if the norm, a scalar on the device, is NaN or infinite.

    By the attribute through which `torch.amp.GradScaler` tells fused optimisers so.
    """
    optimizer.found_inf = 1.0 - grad_norm.isfinite().float()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Unseen:
    """An update whose gradient norm the host has not seen yet, with what a message about it has to say.

    Attributes:
        update, rate, micro_batches, losses: as in `checks.not_finite`.
    """

    update: int
    rate: float
    micro_batches: Mapping[int, Ids]
    losses: Mapping[int, Tensor]
    _copy: Tensor
    _copied: torch.cuda.Event | None

    @classmethod
    def of(
        cls, grad_norm: Tensor, update: int, rate: float, micro_batches: Mapping[int, Ids], losses: Mapping[int, Tensor]
    ) -> "Unseen":
        """Begin to copy the norm, a scalar, to the host."""
        on_cuda = grad_norm.device.type == "cuda"
        copy = grad_norm.detach().to("cpu", non_blocking=on_cuda, copy=True)  # non-blocking: into pinned memory
        copied = None
        if on_cuda:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        return cls(update, rate, micro_batches, losses, copy, copied)

    def grad_norm(self) -> float:
        """Waits for the device to have reached that update, no further."""
        if self._copied is not None:
            self._copied.synchronize()
        return float(self._copy.numpy())  # host memory: nothing is asked of the device
