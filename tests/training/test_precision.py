"""Training in bf16 ends where training in fp32 ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.training.run import train
from tiny import write

UPDATES = 2000


def valid_losses(folder: Path, precision: str) -> list[float]:
    """Of a validation every 500 updates."""
    model = {"d_model": 32, "num_heads": 4, "d_ff": 64, "dropout": 0.1}
    training = {"max_updates": UPDATES, "precision": precision, "learning_rate": 1e-3, "warmup_updates": 200}
    tiny = write(
        folder,
        pairs=2000,
        data={"valid_size": 300},
        model=model,
        training={**training, "log_every": 500, "average_count": 1},
        validation={"every": 500, "metric": "loss", "max_sentences": 1},
    )
    train(tiny.config, folder / "run", quiet=True)
    records = map(json.loads, (folder / "run" / "log.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "valid"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_bf16_ends_where_fp32_does(tmp_path: Path, figure: Callable[..., None]) -> None:
    full, half = (valid_losses(tmp_path / precision, precision) for precision in ("fp32", "bf16"))
    assert len(full) == len(half) == UPDATES // 500
    difference = abs(half[-1] / full[-1] - 1)
    figure(
        "bf16_valid_loss",
        f"{half[-1]:.4f}, fp32 {full[-1]:.4f}, {difference:.2%} apart after {UPDATES:,} updates",
        "within 1 %",
        difference <= 0.01,
    )
    assert full[0] / full[-1] - 1 > 0.01  # the control: the loss moves by more while training
