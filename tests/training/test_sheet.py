"""The sheet that a final bundle has."""

import math
import tomllib
from pathlib import Path

import tiny
from nmt.bundle import Bundle
from nmt.config import parse_config
from nmt.evaluation.faults import length_ratio, repeated_share
from nmt.storage.manifest import damage
from nmt.training import run


def test_the_sheet_tells_what_the_model_is_and_may_be_edited(tmp_path: Path) -> None:
    made = tiny.write(tmp_path, training={"max_updates": 4})
    source = {"prefix": "train", "licence": "CC BY |\n```4.0"}
    domains = {"train_domain": "train.domain", "domain_weights": {"a": 2.0}}
    (tmp_path / "train.domain").write_text("".join("a\n" if number % 4 else "b\n" for number in range(200)))
    config = made.config.replace(data={"train": [source], **domains})
    bundle = run.train(config, tmp_path / "run", device="cpu", quiet=True)
    sheet = (bundle / "README.md").read_text()
    loaded = Bundle.load(tmp_path / "run")
    corpora = [line.split(" | ") for line in sheet.splitlines() if line.startswith("| train, ")]
    assert [(row[0], row[2:]) for row in corpora] == [
        ("| train, a", ["2", "CC BY \\| \\`\\`\\`4.0 |"]),
        ("| train, other domains", ["1", "CC BY \\| \\`\\`\\`4.0 |"]),
    ]
    kept = sum(int(row[1]) for row in corpora)
    assert kept > 150 and f"{kept} kept" in sheet and "19 held out" in sheet
    assert f"{loaded.model.num_parameters():,} parameters" in sheet
    assert "4 updates" in sheet and f"more than {loaded.config.max_length} pieces" in sheet
    recipe = tomllib.loads(sheet.split("```toml\n")[1].split("\n```\n")[0])
    assert parse_config(recipe, where="sheet") == parse_config(loaded.config.recipe, where="bundle")
    assert str(tmp_path) not in sheet.split("## Recipe")[0]
    (bundle / "README.md").write_text("mine")
    assert damage(bundle) is None
    (bundle / "README.md").unlink()
    assert damage(bundle) is None and Bundle.load(bundle)


def test_faults_are_counted() -> None:
    assert repeated_share([[1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4, 1, 2, 3], [5, 5, 5, 5, 5], [1]]) == 0.5
    assert repeated_share([]) == 0.0
    assert math.isclose(length_ratio(["abc", "d"], ["abcde", ""]), 0.8)
