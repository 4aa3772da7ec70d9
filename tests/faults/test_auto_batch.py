"""`tokens_per_batch = "auto"` under torchrun: rank 0 finds the number, all ranks train with it."""

import json
import tomllib
from pathlib import Path

from faults import worlds
from faults.recipe import Recipe, fingerprint
from faults.warm import Warm
from nmt.bundle import list_checkpoints


def test_all_ranks_take_what_the_first_found(warm: Warm, recipe: Recipe, tmp_path: Path) -> None:
    short = ("--set", "training.max_updates=14", "--set")
    for name, tokens in (("auto", "auto"), ("number", "4096")):
        arguments = recipe.arguments(tmp_path / name, *short, f"training.tokens_per_batch={tokens}")
        results = worlds.run(warm, arguments)
        assert [result.code for result in results] == [0, 0], results[0].stderr
        assert ("training.tokens_per_batch: 4,096" in results[0].stderr) == (tokens == "auto")
    found = tomllib.loads((tmp_path / "auto" / "config.toml").read_text())["training"]["tokens_per_batch"]
    assert found == 4096 and fingerprint(tmp_path / "auto") == fingerprint(tmp_path / "number")
    config = json.loads((list_checkpoints(tmp_path / "auto")[-1] / "config.json").read_text())
    assert config["recipe"]["training"]["tokens_per_batch"] == 4096
