"""The README's commands, run as they stand there, in a new folder."""

import shutil
from pathlib import Path

import pytest

from demo import ROOT, bleu_of, readme_commands, run
from nmt.data.toy import HELD_OUT, lexemes

pytestmark = pytest.mark.timeout(1200)  # three minutes alone on two cores, far more beside other work
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipes and nothing else."""
    path = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "configs", path / "configs")
    return path


@pytest.fixture(scope="module")
def first_minute(folder: Path) -> dict[str, str]:
    """What each command of the first minute printed on stdout."""
    return {command: run(command, folder) for command in readme_commands("The first minute")}


def test_first_minute(first_minute: dict[str, str], folder: Path, figure) -> None:
    scores = [bleu_of(output) for command, output in first_minute.items() if command.startswith("nmt eval")]
    figure("toy_test_bleu", scores[0], ">= 90", scores[0] >= 90)
    figure("toy_new_structures_bleu", scores[1], ">= 80", scores[1] >= 80)
    translation = next(output for command, output in first_minute.items() if "nmt translate" in command)
    assert translation.count("\n") == 1
    assert "Der alte Mann sieht keine Hunde." in translation
    assert (folder / "runs/toy/attention.png").read_bytes().startswith(b"\x89PNG")


def test_a_mistranslated_toy_would_be_seen(first_minute: dict[str, str], folder: Path) -> None:
    """The negative control of the figures above: sources offered as translations score next to nothing."""
    output = run("nmt eval --hyp data/toy/test.en --ref data/toy/test.de --tgt-lang de", folder)
    assert bleu_of(output) < 10


def test_your_own_text(first_minute: dict[str, str], folder: Path) -> None:
    for language in ("en", "de"):
        lines = (folder / f"data/toy/train.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / f"corpus.{language}").write_text("".join(lines[:120]), encoding="utf-8")
    shutil.copy(folder / "corpus.en", folder / "new.en")
    for command in readme_commands("Your own text"):
        run(command, folder)
    assert (folder / "new.de").read_text(encoding="utf-8").count("\n") == 120
    assert (folder / "runs/mine/config.toml").is_file()


def test_several_ranks(first_minute: dict[str, str], folder: Path) -> None:
    (command,) = readme_commands("A run that cannot be lost")
    shorter = "--set training.max_updates=4 --set training.warmup_updates=2 --set validation.max_sentences=20"
    output = run(f"{command} --out runs/two --cache runs/toy/cache {shorter}", folder)
    assert output == "runs/two/bundle\n"


def test_the_readme_says_what_the_toy_is() -> None:
    assert f"{len(lexemes())} lexemes" in README
    for name in HELD_OUT:
        assert name in README, f"the README does not list the held-out combination {name}"


def test_every_test_file_that_the_readme_names_is_there() -> None:
    rows = [line for line in README.splitlines() if line.startswith("|") and "tests/" in line]
    assert len(rows) >= 10
    for row in rows:
        for name in row.rsplit("|", 2)[1].replace("`", "").split(","):
            path = name.strip() if name.strip().startswith("tests/") else f"tests/decoding/{name.strip()}"
            assert (ROOT / path).exists(), path
