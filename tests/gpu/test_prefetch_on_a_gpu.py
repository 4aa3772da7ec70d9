"""Batches that come from pinned memory, if this nmt has a prefetch."""

import importlib.util

import pytest
import torch


def test_pinned_memory_is_copied_without_waiting(cuda: torch.device) -> None:
    if importlib.util.find_spec("nmt.training.prefetch") is None:
        pytest.skip("this nmt has no prefetch")
    held = torch.arange(1 << 20).pin_memory()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        moved = held.to(cuda, non_blocking=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(moved.cpu(), held)
