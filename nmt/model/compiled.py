"""torch.compile for a part of the model that many layers share: one program for all of them and for all shapes."""

from collections.abc import Callable

import torch
from torch import Tensor

Region = Callable[..., Tensor]

_MOST_PROGRAMS = 64  # of one region; there should be two: with a mask, and without


def compiled(region: Region) -> Region:
    """The region compiled when it is first called; `compile_problem` says beforehand whether that works.

    Nothing falls back to uncompiled code without a word: what cannot be compiled as a whole, or has to be compiled too
    often, is an error. Kernels are chosen by rules, not by timing, so that a resumed run repeats an uninterrupted one.
    """
    from torch._dynamo import config as dynamo  # not above: importing these takes a second
    from torch.fx.experimental import _config as shapes

    dynamo.recompile_limit = _MOST_PROGRAMS
    dynamo.fail_on_recompile_limit_hit = True
    shapes.use_duck_shape = False  # else two lengths that are equal at first count as one, until they differ
    return torch.compile(region, dynamic=True, fullgraph=True, options={"deterministic": True})


def compile_problem(device: torch.device) -> str | None:
    """Why torch.compile does not work on a device, by trying it; None where it does."""
    try:
        torch.compile(_trial, fullgraph=True)(torch.ones(8, device=device))
    except Exception as error:  # of many kinds: no C++ compiler, no Triton, an old GPU
        return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
    return None


def _trial(x: Tensor) -> Tensor:
    return x.cos() + 1.0
