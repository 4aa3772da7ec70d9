"""What users of other toolkits complained of: tokenizers (rows 11 to 15), scores (46, 48), installing (50, 51)."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import test_cli
import tiny
from nmt.config import TokenizerConfig
from nmt.data.prepare import prepare
from nmt.text.tokenizer import UNK, Tokenizer, train_sentencepiece
from test_cli import Nmt, refused
from tiny import Tiny

run = test_cli.run
ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return tiny.write(tmp_path_factory.mktemp("tiny"))


def prepared(corpus: Tiny, cache: Path, *settings: str) -> list[str]:
    """Arguments of `nmt data prepare` on the corpus."""
    pairs = [part for setting in settings for part in ("--set", setting)]
    return ["data", "prepare", str(corpus.toml), "--out", str(cache), *pairs]


def test_row_11_a_small_corpus_lowers_the_vocabulary_with_a_warning(run: Nmt, corpus: Tiny, tmp_path: Path) -> None:
    model = tmp_path / "t.model"
    code, _, said = run("tokenizer", "train", corpus.src, "-o", model, "--vocab-size", "32000")
    size = Tokenizer.from_files(model).src_vocab_size
    assert code == 0 and "warning: the text holds fewer pieces than the 32,000 asked" in said
    assert size < 1000 and f"{size:,} pieces from 200 lines" in said
    code, _, said = run(*prepared(corpus, tmp_path / "cache", "tokenizer.vocab_size=32000"))
    assert code == 0 and "pieces, fewer than vocab_size = 32,000" in said


def test_row_12_a_tokenizer_is_trained_on_a_sample_and_says_so(run: Nmt, corpus: Tiny, tmp_path: Path) -> None:
    assert TokenizerConfig().train_lines == 1_000_000  # and not all that there are
    said = run(
        "tokenizer", "train", corpus.src, corpus.tgt, "-o", tmp_path / "t", "--vocab-size", "300", "--lines", "150"
    )
    assert said[0] == 0 and "from 150 of 400 lines" in said[2]
    said = run(*prepared(corpus, tmp_path / "cache", "tokenizer.train_lines=100"))
    assert said[0] == 0 and "training a bpe tokenizer on 100 lines" in said[2]


# What each normalisation makes of a text; everything else comes back as it was.
NORMALISED = {
    "a  b": ("a b", "a b"),
    " leading": ("leading", "leading"),
    "wait…": ("wait...", "wait…"),
    "ﬁne ｆｕｌｌ": ("fine full", "ﬁne ｆｕｌｌ"),
    "👨\u200d👩\u200d👧 family": ("👨\u200d👩\u200d👧 family", "👨\u200d👩\u200d👧 family"),
    "non\xa0breaking": ("non breaking", "non\xa0breaking"),
}


def test_row_14_text_comes_back_but_for_what_is_documented(run: Nmt, corpus: Tiny, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in NORMALISED).encode()
    for place, rule in enumerate(("nmt_nfkc", "identity")):
        lines = corpus.src.read_text().splitlines()
        model = tmp_path / rule
        model.write_bytes(train_sentencepiece(lines, TokenizerConfig(vocab_size=400, normalization=rule)))  # type: ignore[arg-type]
        code, pieces, _ = run("tokenizer", "encode", "-m", model, stdin=text)
        back = run("tokenizer", "decode", "-m", model, stdin=pieces.encode())
        assert (code, back) == (0, (0, "".join(f"{both[place]}\n" for both in NORMALISED.values()), ""))
    # A score takes raw references: what a tokenizer would make equal counts as different.
    (tmp_path / "hyp").write_text("one two three four ﬁne\n")
    (tmp_path / "ref").write_text("one two three four fine\n")
    score = run("eval", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "ref", "--metric", "bleu")[1]
    assert 0 < float(score.split()[1]) < 100


def test_row_15_the_share_of_unknown_pieces_is_told_and_a_foreign_tokenizer_refused(
    run: Nmt, corpus: Tiny, tmp_path: Path
) -> None:
    said = run(*prepared(corpus, tmp_path / "cache"))
    assert said[0] == 0 and "unknown pieces: 0.00% of the source, 0.00% of the target" in said[2]
    russian = ["кошка видит собаку", "большой дом и маленький человек", "сегодня не вижу дерева"] * 50
    for bytes_too in (False, True):
        options = TokenizerConfig(vocab_size=400, byte_fallback=bytes_too)
        model = tmp_path / f"{bytes_too}.model"
        model.write_bytes(train_sentencepiece(russian, options))
        said = run(*prepared(corpus, tmp_path / "cache", f"tokenizer.src_model={model}"))
        if bytes_too:
            assert said[0] == 0 and "0.00% of the source" in said[2]
        else:
            assert said[0] == 3 and re.search(r"\d\d% of the source pieces of the valid text are <unk>", said[2])
    assert UNK not in Tokenizer.from_files(tmp_path / "True.model").encode_src(["an unseen alphabet"])[0]


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("▁the ▁cat ▁sat ▁here", "subword marks"),
        ("the un@@ known cat", "subword marks"),
        ("A cat sat .", "as tokenised text"),
        ("A cat sat.", None),
    ],
)
def test_row_46_a_score_of_what_is_no_plain_text_warns(run: Nmt, tmp_path: Path, line: str, warned: str | None) -> None:
    (tmp_path / "hyp").write_text(f"{line}\n" * 3)
    code, out, said = run("eval", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "hyp")
    assert code == 0 and "BLEU 100.00" in out and "|tok:13a|" in out and "version:" in out
    assert warned in said if warned else said == ""


def test_row_48_scores_take_the_raw_references(run: Nmt, corpus: Tiny, tmp_path: Path) -> None:
    """Not what labels decode to: the last batch is padded, and a normalised reference is another text."""
    raw = ["der ﬁsch  sieht…", "ein", "der hund sieht die katze heute nicht"]
    (tmp_path / "valid.en").write_text("the dog\na\nthe small cat sees the dog\n")
    (tmp_path / "valid.de").write_text("".join(f"{line}\n" for line in raw))
    config = corpus.config.replace(data={"valid": {"prefix": str(tmp_path / "valid")}})
    assert prepare(config, tmp_path / "cache", lambda text: None).valid_tgt == raw
    model, saved = tiny.save(tiny.random_bundle(), tmp_path / "model"), tmp_path / "saved"
    references = ("--ref", tmp_path / "valid.de", "--tgt-lang", "de")
    code, scores, _ = run("eval", "-m", model, "--src", tmp_path / "valid.en", "--save-hyp", saved, *references, "-q")
    assert code == 0 and len(saved.read_text().split("\n")) == 4
    assert run("eval", "--hyp", saved, *references, "-q") == (0, scores, "")


def project() -> dict[str, object]:
    tables: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tables


def test_row_50_supported_pythons_are_stated_and_nothing_is_held_back() -> None:
    stated, needed = project()["requires-python"], project()["dependencies"]
    assert stated == ">=3.11" and "Python 3.11 or newer" in (ROOT / "README.md").read_text()
    assert isinstance(needed, list) and len(needed) > 8
    upper = re.compile(r"<|==|~=|!=")
    assert upper.search("torch<3")  # the negative control
    assert [each for each in [*needed, stated] if upper.search(each)] == []
    assert sys.version_info >= (3, 11)


@pytest.mark.parametrize("package", ["sentencepiece", "sacrebleu"])
def test_row_51_a_missing_package_is_named(
    run: Nmt, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert importlib.import_module(package)
    for name in list(sys.modules):
        if name.startswith(("nmt.text", "nmt.evaluation", "nmt.bundle", f"{package}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "text").write_text("a\n")
    commands = {
        "sentencepiece": ("tokenizer", "encode", "-m", tmp_path / "text"),
        "sacrebleu": ("eval", "--hyp", tmp_path / "text", "--ref", tmp_path / "text"),
    }
    refused(run(*commands[package]), 2, f"The package {package} is missing", "pip install")
