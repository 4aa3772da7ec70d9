"""What the tests on a GPU share. Without one they skip."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from nmt.training import run
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer

SHAPE = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 128, "num_heads": 2, "d_ff": 256}
DROPOUT = {"dropout": 0.2, "embedding_dropout": 0.1, "activation_dropout": 0.1}


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """The GPU, with torch set up as `nmt train` does."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    return run._device_of(Ranks(), "cuda")


@pytest.fixture
def corpus(cuda: torch.device, tmp_path: Path) -> tiny.Tiny:
    recipe = {
        "tokens_per_batch": 2000,
        "learning_rate": 2e-3,
        "warmup_updates": 20,
        "max_updates": 8,
        "precision": "auto",
        "log_every": 1,
    }
    return tiny.write(tmp_path / "corpus", pairs=3000, model={**SHAPE, **DROPOUT}, training=recipe)


@pytest.fixture
def trainer(corpus: tiny.Tiny, cuda: torch.device, tmp_path: Path) -> Callable[..., Trainer]:
    """`trainer(name, key=value, …)`: one at update 0, with some keys of [training] changed."""
    return functools.partial(_new_trainer, corpus, cuda, tmp_path)


def _new_trainer(corpus: tiny.Tiny, cuda: torch.device, folder: Path, name: str, **training: Any) -> Trainer:
    (folder / name).mkdir()
    log = TrainingLog(quiet=True)
    opened = run._open(corpus.config.replace(training=training), folder / name, cuda, corpus.cache, 1, log)
    return run._trainer(opened, folder / name, cuda, log, StopRequest(), Ranks())
