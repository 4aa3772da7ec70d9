"""Memory: allocator and kernel cache told to keep what they have, and how running out is recognised."""

import ctypes
import os
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8  # from glibc's malloc.h
_LARGEST = 2**31 - 1


def keep_freed_pages() -> None:
    """Let glibc reuse large freed blocks instead of handing them back to the kernel and faulting them in again.

    Every update frees and allocates the same large tensors; on a CPU that was the largest single cost found. Threads to
    come share one heap: those of their own would be too small for large blocks. Does nothing where the C library is not
    glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    if not mallopt(_M_MMAP_THRESHOLD, _LARGEST):  # an older glibc has a ceiling
        mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _LARGEST)
    mallopt(_M_ARENA_MAX, 1)


def keep_kernels() -> None:
    """Let oneDNN, which computes products of bf16 on a CPU, remember more of the kernels that it has made.

    It makes one for every shape of every product, in 1 to 30 ms, and remembers 1,024. An epoch of Multi30k needs 1,600,
    so at every epoch most would be made again. Not many more, since each holds some 0.3 MB. To be called before the
    first product.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "2048")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch could not allocate a tensor. Only CUDA has an exception class for that."""
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in said or "out of memory" in said
