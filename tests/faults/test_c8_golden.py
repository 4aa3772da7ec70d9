"""C8: what a released format holds can be read, and translates as it did."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from faults.recipe import digest
from faults.warm import Warm
from nmt.bundle import Bundle
from nmt.config import TrainingConfig
from nmt.training.checkpoint import newest_whole, restore
from nmt.training.optim import make_optimizer

GOLDEN = Path(__file__).parent / "golden"
FORMATS = sorted(path.name for path in GOLDEN.iterdir())


@pytest.mark.parametrize("version", FORMATS)
def test_c8_a_bundle_translates_as_it_did(warm: Warm, version: str, figure: Callable[..., None]) -> None:
    folder = GOLDEN / version
    source, expected = folder / "source.txt", (folder / "translations.txt").read_text("utf-8").splitlines()
    result = warm.run(["translate", "--model", folder / "bundle", "--input", source, "--device", "cpu"])
    assert result.code == 0, result.stderr
    found = result.stdout.splitlines()
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    figure(f"c8_golden_{version}", f"{same} of {len(expected)}", "20 of 20", same == len(expected) == 20)
    assert len(set(expected)) > 10  # a control: the model does not say the same of everything


@pytest.mark.parametrize("version", FORMATS)
def test_c8_a_checkpoint_restores(version: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / version / "expected.json").read_bytes())
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / version / "run", run)
    checkpoint, damaged = newest_whole(run)
    assert checkpoint is not None and damaged == []
    assert digest(checkpoint / "model.safetensors") == expected["weights"]
    model = Bundle.load(GOLDEN / version / "bundle").model  # of that shape, with other weights
    optimizer = make_optimizer(model, TrainingConfig(max_updates=1))
    state = restore(checkpoint, model, optimizer)
    assert state.update == expected["update"]
    weights, moments = load_file(checkpoint / "model.safetensors"), load_file(checkpoint / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name])
        assert torch.equal(optimizer.state[parameter]["exp_avg"], moments[f"{name}.exp_avg"])
        assert optimizer.state[parameter]["step"] == expected["update"]
