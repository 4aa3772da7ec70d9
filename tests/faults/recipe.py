"""The tiny run that faults are tried on, what two runs are compared by, and how much is tried."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.warm import Result, Warm
from nmt.bundle import list_checkpoints
from nmt.storage.manifest import damage
from tiny import SHAPE, write

VOLATILE = {"minutes"}  # of state.json: wall time
COMPARED = ("kind", "update", "epoch", "loss", "lr", "grad_norm", "bleu", "chrf", "best")  # of log.jsonl


def scale(short: int, full: int) -> int:
    """How many of something to try: `NMT_FAULTS=full` asks for all."""
    return full if os.environ.get("NMT_FAULTS") == "full" else short


@dataclass(frozen=True)
class Recipe:
    """A recipe on disk and what its uninterrupted run left.

    Attributes:
        reference: the uninterrupted run's folder.
        expected: its fingerprint.
        seconds: that it took.
    """

    folder: Path
    toml: Path
    cache: Path
    reference: Path
    expected: dict[str, Any]
    seconds: float

    def arguments(self, run: Path, *more: object, cache: Path | None = None) -> list[object]:
        """The command that makes or resumes `run`."""
        shared = ["--cache", cache or self.cache, "--device", "cpu", "--threads", 1]
        return ["train", self.toml, "--out", run, *shared, *more]


def make_recipe(warm: Warm, folder: Path) -> Recipe:
    """Write corpus and recipe, and run it to its end."""
    tiny = write(
        folder,
        pairs=400,
        model={**SHAPE, "dropout": 0.3},
        training={
            "max_updates": 60,
            "accumulation": 2,
            "tokens_per_batch": 150,
            "label_smoothing": 0.1,
            "keep_last": 3,
            "keep_best": 1,
            "average_count": 2,
        },
        validation={"every": 7},
    )
    unfinished = Recipe(folder, tiny.toml, tiny.cache, folder / "reference", {}, 0.0)
    done = warm.run(unfinished.arguments(unfinished.reference))
    assert done.code == 0, done.stderr
    done = warm.run(unfinished.arguments(folder / "again"))  # the cache is there now
    expected = fingerprint(unfinished.reference)
    assert differences(expected, fingerprint(folder / "again")) == []
    return Recipe(folder, tiny.toml, tiny.cache, unfinished.reference, expected, done.seconds)


def fingerprint(run: Path) -> dict[str, Any]:
    """All that must not depend on interruptions: weights, moments, state, final bundle, losses."""
    last = list_checkpoints(run)[-1]
    state = json.loads((last / "state.json").read_bytes())
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {
        "checkpoints": [folder.name for folder in list_checkpoints(run) if damage(folder) is None],
        "weights": digest(last / "model.safetensors"),
        "moments": digest(last / "optimizer.safetensors"),
        "state": {key: value for key, value in state.items() if key not in VOLATILE},
        "bundle": tree(run / "bundle"),
        # The line of kind "final" is left out: it tells of the bundle, whose bytes are compared.
        "log": [repr([line.get(key) for key in COMPARED]) for line in log if line["kind"] != "final"],
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The parts of two fingerprints that are not equal."""
    return [part for part in one if one[part] != other[part]]


def problems_of(result: Result, run: Path, recipe: Recipe) -> list[str]:
    """In what a run differs from one that ended well and is bit-equal to the uninterrupted one."""
    if result.code != 0:
        return [f"exit code {result.code}: {result.stderr[-500:]}"]
    return [f"{part} differ" for part in differences(recipe.expected, fingerprint(run))]


def assert_finished(result: Result, run: Path, recipe: Recipe) -> None:
    assert problems_of(result, run, recipe) == []


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its relative path."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
