"""Placeholders, tags and addresses through a model: each way to keep them, and what is said when none does."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import tiny
from nmt.alignment.maps import pair_maps
from nmt.cli import _run
from nmt.decoding import protected
from nmt.decoding.attention import HeadChoice, forced_attention
from nmt.decoding.protected import ProtectingTranslator, Way
from nmt.decoding.translator import Translation, Translator
from nmt.errors import ConfigError
from nmt.model.inference import int8_works, prepare
from nmt.text.protect import find_items
from protect import kept, plant

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    decoding = {"beam_size": 1, "max_length": 9}
    return tiny.save(tiny.random_bundle(decoding=decoding), tmp_path_factory.mktemp("model") / "bundle")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], str]], tuple[ProtectingTranslator, list[str]]]:
    """`asked(says)`: a translator whose model answers each line by `says`, and the lines that it was asked."""

    def answering(says: Callable[[str], str]) -> tuple[ProtectingTranslator, list[str]]:
        translator, lines_asked = Translator(tiny.random_bundle()), []

        def translations(lines: Sequence[str]) -> list[Translation]:
            lines_asked.extend(line for line in lines if line)
            return [Translation(says(line) if line else "") for line in lines]

        monkeypatch.setattr(translator, "translations", translations)
        return ProtectingTranslator(translator), lines_asked

    return answering


def no_items(line: str) -> str:
    return "der hund sieht haus"


@pytest.mark.parametrize(
    ("says", "line", "text", "way", "asked_of"),
    [
        (str.upper, "the {0} dog", "THE {0} DOG", Way.copied, ["the {0} dog"]),
        (no_items, "the dog", "der hund sieht haus", None, ["the dog"]),
        (no_items, "<p>the dog</p>", "<p>der hund sieht haus</p>", Way.copied, ["the dog"]),
        (no_items, "{0}: %s (3)", "{0}: %s (3)", Way.copied, []),
        (lambda line: line.replace("{0}", "0").upper(), "the {0} dog", "THE {0} DOG", Way.masked, None),
        (no_items, "a dog {0}", "der hund sieht haus {0}", Way.placed, ["a dog {0}", "a dog 211", "a dog "]),
        (lambda line: "211 und 211", "a b {0}", "211 und 211 {0}", Way.placed, None),
        (no_items, "the dog {0}", "der hund sieht haus {0}", Way.placed, None),
        (lambda line: "der hund %d", "the dog {0}", "der hund {0}", Way.placed, None),  # what it made up is dropped
        (lambda line: ".", "{0} the <b>dog</b>", "{0} <b>.</b>", Way.placed, None),
        (lambda line: "", "the {0} dog", "", Way.lost, None),
        (lambda line: "{1}", "the {0} dog", "{1}", Way.lost, None),
        (lambda line: "der {1} hund", "<b>the dog</b>", "<b>der hund</b>", Way.copied, None),
    ],
)
def test_each_way(
    asked: Callable[..., tuple[ProtectingTranslator, list[str]]],
    says: Callable[[str], str],
    line: str,
    text: str,
    way: Way | None,
    asked_of: list[str] | None,
) -> None:
    translator, lines_asked = asked(lambda line: says(line).replace("THE 0 DOG", "THE DOG"))
    (found,) = translator.translations([line])
    assert (found.text, found.protected) == (text, way)
    assert asked_of is None or lines_asked == asked_of


def test_a_tag_goes_around_a_stand_in(asked: Callable[..., tuple[ProtectingTranslator, list[str]]]) -> None:
    translator, _ = asked(lambda line: "die 211 hunde" if line == "the 211 dogs" else "hunde")
    (found,) = translator.translations(["the <b>{0}</b> dogs"])
    assert (found.text, found.protected) == ("die <b>{0}</b> hunde", Way.placed)


def test_only_what_the_first_ways_lost_is_asked_again(
    asked: Callable[..., tuple[ProtectingTranslator, list[str]]],
) -> None:
    translator, lines_asked = asked(lambda line: line.replace("{1}", "").upper())
    lines = ["the {0} dog", "the {1} dog", "", "the dog"]
    texts = [each.text for each in translator.translations(lines)]
    assert texts == ["THE {0} DOG", "THE {1} DOG", "", "THE DOG"]
    assert lines_asked == ["the {0} dog", "the {1} dog", "the dog", "the 211 dog"]


@pytest.mark.parametrize("precision", ["as trained", "fp32", "bf16", "int8"])
def test_attention_of_a_batch_is_that_of_each_pair(precision: str) -> None:
    if precision == "int8" and not int8_works():
        pytest.skip("no kernel")
    bundle = tiny.random_bundle(num_decoder_layers=4)
    src, tgt = tiny.sentences(6)
    tokenizer = bundle.tokenizer
    pairs = list(zip(tokenizer.encode_src(src), tokenizer.encode_tgt(tgt), strict=True))
    exact = [pair_maps(bundle, *pair).cross[2:].mean((0, 1))[:-1, :-1] for pair in pairs]
    if precision != "as trained":
        prepare(bundle.model, precision)  # type: ignore[arg-type]
    found = forced_attention([bundle.model], tokenizer.special, pairs)
    apart = [float(np.abs(a - b).mean()) for a, b in zip(found, exact, strict=True) if a is not None]
    assert len(apart) == len(pairs) and max(apart) < {"int8": 0.04, "bf16": 0.04}.get(precision, 1e-6)
    assert np.abs(exact[0] - exact[0].mean()).mean() > 0.04  # the control: uniform attention would be further away
    twice = forced_attention([bundle.model, bundle.model], tokenizer.special, pairs[:1])[0]
    assert twice is not None and found[0] is not None and np.allclose(twice, found[0], atol=0.1)


def test_a_pair_too_long_for_attention_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.decoding.attention.MOST_WEIGHTS", 4)
    line = "the <b>{0} dog</b> sees the %s cat"
    (found,) = ProtectingTranslator(Translator(tiny.random_bundle())).translations([line])
    assert found.protected is Way.placed
    assert [item.text for item in find_items(found.text)] == ["<b>", "{0}", "</b>", "%s"]


@pytest.mark.parametrize("decoding", [{"beam_size": 2}, {"sample": True}])
def test_a_model_that_never_saw_any_keeps_them(
    decoding: dict[str, object], full: bool, figure: Callable[..., None]
) -> None:
    """Two models together, of random weights: the hardest case."""
    bundles = [
        tiny.random_bundle(seed, decoding={"max_length_ratio": 1.0, "beam_size": 1, **decoding}) for seed in (0, 1)
    ]
    rng = random.Random(1)
    lines = [plant(line, rng) for line in tiny.sentences(400 if full else 20)[0]]
    translator = Translator(bundles)
    found = ProtectingTranslator(translator).translations(lines)
    ways = Counter(str(each.protected) for each in found)
    whole = kept(lines, [each.text for each in found])
    percent = 100 * whole / len(lines)
    name = "_".join(["protected_kept_by_random_models", *decoding])
    assert whole + ways["lost"] >= len(lines)
    figure(name, f"{percent:.1f} % of {len(lines)} lines kept: {dict(ways)}", ">= 99 %", percent >= 99)
    without = kept(lines, translator.translate(lines))  # the control
    assert without < len(lines) / 4
    again = ProtectingTranslator(Translator(bundles, num_workers=2, batch_rows=8)).translations(lines[9::-1])
    assert [each.text for each in again][::-1] == [each.text for each in found[:10]]  # in any company, in any order


def test_several_translations_are_refused() -> None:
    with pytest.raises(ConfigError, match="n_best is 2"):
        ProtectingTranslator(Translator(tiny.random_bundle(decoding={"n_best": 2})))


# The command line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """`run(lines, *options)`: exit code, stdout and stderr of nmt translate."""

    def call(lines: Sequence[str], *options: str) -> tuple[int, str, str]:
        file = tmp_path / "in"
        file.write_text("".join(f"{line}\n" for line in lines))
        capsys.readouterr()
        code = _run(["translate", "-m", str(model), "-i", str(file), *options], False)
        return code, *capsys.readouterr()

    return call


def test_the_command(run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    lines = ["the dog {0}", "", "the dog", "<b>the</b> dog %s"]
    expected = ProtectingTranslator(Translator(model)).translations(lines)
    code, out, err = run(lines, "--protect")
    assert (code, out, err) == (0, "".join(f"{each.text}\n" for each in expected), "")
    assert [each.protected for each in expected] == [Way.placed, None, None, Way.placed]
    assert run(lines)[1].splitlines() == Translator(model).translate(lines) != out.splitlines()
    assert run(lines, "--protect", "--line-buffered")[1] == out

    objects = [json.dumps({"text": line, "protected": "old"}) for line in lines]
    code, out, err = run(objects, "--protect", "--format", "jsonl")
    answers = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [each["translation"] for each in answers] == [each.text for each in expected]
    assert [each["protected"] for each in answers] == [each.protected for each in expected]
    assert json.loads(run(objects[:1], "--format", "jsonl")[1])["protected"] == "old"  # a field as any other

    monkeypatch.setattr(protected, "same_items", lambda one, other: False)
    code, out, err = run(lines, "--protect")
    assert code == 0 and out.count("\n") == 4
    assert "warning: " in err and "2 line(s) (1, 4) lost placeholders" in err
    assert run(lines, "--protect", "--quiet")[2] == ""
    lost = json.loads(run(objects[:1], "--protect", "--format", "jsonl")[1])
    assert lost["protected"] == "lost"


def test_what_the_command_refuses(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, out, err = run(["x"], "--protect", "--prefix", str(tmp_path / "p"))
    assert (code, out) == (2, "") and "--protect does not go with --prefix" in err
    code, out, err = run(['{"text": "x"}'], "--protect", "--format", "jsonl", "--sample", "--n-best", "2")
    assert (code, out) == (2, "") and "--protect gives one translation a line" in err
    code, out, _ = run(['{"text": "x", "prefix": "der"}'], "--protect", "--format", "jsonl")
    assert code == 3 and "does not go with --protect" in json.loads(out)["error"]


def test_a_symbol_of_the_tokenizer_reaches_the_model(
    asked: Callable[[Callable[[str], str]], tuple[ProtectingTranslator, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, lines = asked(lambda line: line)
    monkeypatch.setattr(translator._translator.bundle.tokenizer, "src_symbols", ["<lo>"])
    (found,) = translator.translations(["<lo> the dog <b>sees</b> it"])
    assert lines == ["<lo> the dog <b>sees</b> it"] and found.text == lines[0]


def test_attention_is_that_of_the_tagged_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag's pieces stand for no text: alignment is by what comes behind them."""
    translator = Translator(tiny.random_bundle())
    tokenizer, given = translator.bundle.tokenizer, []

    def attends(
        models: object, special: object, pairs: Sequence[tuple[list[int], list[int]]], choice: HeadChoice
    ) -> list[np.ndarray]:
        given.extend(pairs)
        weights = np.full((len(pairs[0][1]), len(pairs[0][0])), 0.01, dtype=np.float32)
        for row in range(len(pairs[0][1])):
            weights[row, -len(pairs[0][1]) + row] = 1.0  # the k-th from the end looks at the k-th from the end
        return [weights]

    plain = tokenizer.encode_src(["the dog sees"])[0]
    tag = tokenizer.encode_src(["cat"])[0][:-1]
    monkeypatch.setattr("nmt.decoding.protected.forced_attention", attends)
    monkeypatch.setattr(translator, "encode", lambda lines: [[*tag, *ids] for ids in tokenizer.encode_src(lines)])
    (aligned,) = ProtectingTranslator(translator)._align([("the dog sees", "the dog sees")])
    assert given == [([*tag, *plain], tokenizer.encode_tgt(["the dog sees"])[0])]
    assert aligned is not None and aligned.tolist() == [0, 1, 2]
