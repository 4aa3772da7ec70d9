"""A run whose config, data, tokenizer or ranks changed is not resumed, unless that is allowed by name."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny
from faults.recipe import Recipe, differences, fingerprint
from faults.warm import Hook, Result, Warm
from nmt.bundle import list_checkpoints
from nmt.config import load_config
from nmt.data.batching import BatchStream, Position
from nmt.data.cache import TokenCache
from nmt.storage.manifest import MANIFEST, manifest_of
from nmt.training.checkpoint import load_state

STOPPED, END = 16, 20  # within an epoch
# What changes, the permission that lets it, and what the refusal names. No permission: never.
CHANGES: dict[str, tuple[str, str]] = {
    "training.learning_rate=0.02": ("config", "training.learning_rate = 0.02 (the run has 0.01)"),
    "training.tokens_per_batch=120": ("config", "training.tokens_per_batch = 120 (the run has 150)"),
    "model.dropout=0.1": ("config", "model.dropout = 0.1 (the run has 0.3)"),
    "data.max_length=9": ("data", "began with another training text or tokenizer"),
    "data.valid_size=30": ("data", "began with another"),
    "text": ("data", "began with another training text or tokenizer"),
    "world": ("world", "is a run of 2 ranks, this is one of 1"),
    "tokenizer.vocab_size=120": ("", "tokenizer.vocab_size = 120 (the run has 150)"),
    "model.d_ff=64": ("", "model.d_ff = 64 (the run has 32)"),
    "data.tgt_lang=fr": ("", "data.tgt_lang = 'fr' (the run has 'de')"),
}


@pytest.fixture(scope="module")
def stopped(warm: Warm, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped, and its text."""
    folder = tmp_path_factory.mktemp("stopped")
    for text in recipe.folder.glob("train.*"):
        shutil.copy(text, folder)
    result = warm.run(arguments(recipe, folder), [("hooks:stop_after", {"update": STOPPED})])
    assert result.code == 143
    state = load_state(list_checkpoints(folder / "run")[-1])
    assert state.batch_index > 0 and state.epoch > 0
    shutil.copytree(folder / "run", folder / "kept")
    return folder


def arguments(recipe: Recipe, folder: Path, *more: object) -> list[object]:
    settings = (f"data.dir={folder}", f"training.max_updates={END}")
    return recipe.arguments(folder / "run", *(word for s in settings for word in ("--set", s)), *more)


class Changed:
    """A copy of the stopped run, with one change."""

    def __init__(self, warm: Warm, recipe: Recipe, stopped: Path, change: str) -> None:
        self._warm, self._recipe, self.folder, self._options = warm, recipe, stopped, list[str]()
        shutil.rmtree(stopped / "run")
        shutil.copytree(stopped / "kept", stopped / "run")
        shutil.copy(recipe.folder / "train.en", stopped)
        if change == "text":
            (stopped / "train.en").write_text("".join(f"{line}\n" for line in tiny.sentences(400, seed=9)[0]))
        elif change == "world":  # as a run of two ranks would have left it
            newest = list_checkpoints(stopped / "run")[-1]
            state = json.loads((newest / "state.json").read_bytes())
            (newest / "state.json").write_text(json.dumps({**state, "world": 2}))
            (newest / MANIFEST).write_bytes(manifest_of(newest))
        elif change:
            self._options = ["--set", change]

    def resume(self, *allowed: str, hook: Hook | None = None) -> Result:
        self.notes = self.folder / "pairs"
        self.notes.unlink(missing_ok=True)
        options = [*self._options, *(word for name in allowed for word in ("--allow-changed", name))]
        noting = ("hooks:note_pairs", {"file": str(self.notes)})
        hooks = [noting, *([hook] if hook else [])]
        return self._warm.run(arguments(self._recipe, self.folder, *options), hooks)

    def pairs(self) -> list[list[int]]:
        """Of the micro-batches since the resume."""
        return [json.loads(line[line.index("[") :]) for line in self.notes.read_text().splitlines()]

    def log(self, key: str) -> list[Any]:
        lines = [json.loads(line) for line in (self.folder / "run" / "log.jsonl").read_text().splitlines()]
        return [line[key] for line in lines if line["kind"] == "update"]


def test_p1_refused_or_allowed(warm: Warm, recipe: Recipe, stopped: Path, figure: Callable[..., None]) -> None:
    refused, went_on, wrong = 0, 0, []
    for change, (permission, named) in CHANGES.items():
        changed = Changed(warm, recipe, stopped, change)
        other = next(name for name in ("data", "config") if name != permission)
        results = [changed.resume(), changed.resume(other)]
        codes, said = [result.code for result in results], results[0].stderr
        ways_out = ["another --out", *[f"--allow-changed {permission}"] * bool(permission)] * (change != "world")
        right = named in said and all(way in said for way in ways_out) and bool(permission) == ("--allow" in said)
        if right and codes == [2, 2] and not changed.notes.exists():
            refused += 1
        else:
            wrong.append(f"{change}: exits {codes}: {said[-300:]}")
        if permission:
            allowed = changed.resume(permission)
            if allowed.code == 0 and changed.log("update") == list(range(1, END + 1)):
                went_on += 1
            else:
                wrong.append(f"{change} does not go on: {allowed.stderr[-300:]}")
    possible = sum(bool(permission) for permission, _ in CHANGES.values())
    values = f"{refused} of {len(CHANGES)} refused, {went_on} of {possible} go on when allowed {wrong or ''}"
    figure("p1_changed", values.strip(), "all", not wrong)
    assert Changed(warm, recipe, stopped, "").resume().code == 0  # the control


def test_p1_another_learning_rate(warm: Warm, recipe: Recipe, stopped: Path) -> None:
    changed = Changed(warm, recipe, stopped, "training.learning_rate=0.02")
    assert changed.resume("config").code == 0
    log = [json.loads(line) for line in (recipe.reference / "log.jsonl").read_text().splitlines()]
    usual = [line["lr"] for line in log if line["kind"] == "update"]
    assert changed.log("lr") == pytest.approx([*usual[:STOPPED], *(2 * rate for rate in usual[STOPPED:END])])


@pytest.mark.parametrize(
    ("change", "permission", "budget"), [("training.tokens_per_batch=120", "config", 120), ("text", "data", 150)]
)
def test_p1_the_epoch_begins_anew(
    warm: Warm, recipe: Recipe, stopped: Path, change: str, permission: str, budget: int
) -> None:
    changed = Changed(warm, recipe, stopped, change)
    before = load_state(list_checkpoints(stopped / "run")[-1])
    assert changed.resume(permission).code == 0
    after = load_state(list_checkpoints(stopped / "run")[-1])
    assert (after.data != before.data) == (change == "text")
    cache, seed = TokenCache(recipe.cache / after.data), load_config(recipe.toml).training.seed
    stream = BatchStream(cache, tiny.tokenizer().special, budget, seed, Position(before.epoch, 0))
    assert changed.pairs() == [stream.draw().tolist() for _ in range(2 * (END - STOPPED))]


@pytest.mark.parametrize("change", ["training.accumulation=3", "training.tokens_per_batch=3000"])
def test_p1_killed_before_the_first_save(warm: Warm, recipe: Recipe, stopped: Path, change: str) -> None:
    """What was allowed is neither lost nor taken for the run's own."""
    changed = Changed(warm, recipe, stopped, change)
    assert changed.resume("config").code == 0
    expected = fingerprint(stopped / "run")
    changed = Changed(warm, recipe, stopped, change)
    killed = changed.resume("config", hook=("hooks:stop_after", {"update": STOPPED + 1, "number": signal.SIGKILL}))
    assert killed.code == -signal.SIGKILL
    assert changed.resume().code == 2
    assert changed.resume("config").code == 0
    assert differences(expected, fingerprint(stopped / "run")) == []


def test_p1_another_metric_forgets_the_scores(warm: Warm, recipe: Recipe, stopped: Path) -> None:
    """Scores of BLEU and of the loss cannot be compared."""
    changed = Changed(warm, recipe, stopped, "validation.metric='loss'")
    assert load_state(list_checkpoints(stopped / "run")[-1]).scores
    assert changed.resume("config").code == 0
    scores = load_state(list_checkpoints(stopped / "run")[-1]).scores
    assert scores and all(int(update) > STOPPED and score < 0 for update, score in scores.items())
