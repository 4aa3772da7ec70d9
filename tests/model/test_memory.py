"""What the process is told about memory before it computes."""

import os

import pytest

from nmt.model.memory import keep_kernels

CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def test_a_user_s_own_number_of_kernels_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CAPACITY, raising=False)
    keep_kernels()
    assert int(os.environ[CAPACITY]) > 1600  # what an epoch of Multi30k needs
    monkeypatch.setenv(CAPACITY, "7")
    keep_kernels()
    assert os.environ[CAPACITY] == "7"
