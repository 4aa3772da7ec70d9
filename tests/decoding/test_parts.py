"""Lines translated in parts: several sentences, and more pieces than the model was trained for."""

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny
from nmt.bundle import Bundle
from nmt.config import TokenizerConfig
from nmt.decoding.parts import Cutter, Joined, best_together
from nmt.decoding.search import Hypothesis
from nmt.decoding.translator import Translator
from nmt.text.sentences import split
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

LINE = "The dog sees. A cat hears the tree!  The old man"
SENTENCES = ["The dog sees.", "A cat hears the tree!", "The old man"]


pytestmark = pytest.mark.usefixtures("one_thread")


def made(decoding: dict[str, Any] | None = None, **config: Any) -> Bundle:
    """A random model, of which `config` is known."""
    bundle = tiny.random_bundle(decoding={"max_length_ratio": 1.0, **(decoding or {})})
    return Bundle(bundle.config.model_copy(update=config), bundle.model, bundle.tokenizer)


@pytest.mark.real_data
def test_sentences_on_a_line_are_translated_alone(
    real_data: Path, full: bool, figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line for line in (real_data / "tatoeba" / "test.en").read_text("utf-8").split("\n") if line]
    real = Tokenizer(train_sentencepiece(lines[:400], TokenizerConfig(vocab_size=400)))
    monkeypatch.setattr(tiny, "tokenizer", lambda joint: real)
    bundle = made(one_sentence_share=0.99)
    singles = [line for line in lines if len(split(line, "en")) == 1]
    rng = random.Random(1)
    chosen = [rng.sample(singles, rng.randint(2, 5)) for _ in range(200 if full else 40)]
    chosen = [each for each in chosen if [text for text, _ in split(" ".join(each), "en")] == each]
    joined = [" ".join(each) for each in chosen]
    alone = iter(Translator(bundle).translate([line for each in chosen for line in each]))
    expected = [" ".join(next(alone) for _ in each) for each in chosen]
    same = sum(map(str.__eq__, Translator(bundle).translate(joined), expected))
    enough = 0.95 * (200 if full else 40)  # a few lines whose boundaries the splitter misses may be left out
    figure("split_lines_equal", f"{same}/{len(joined)}", f"all of >= {enough:.0f}", same == len(joined) >= enough)
    whole = Translator(bundle, decoding={"split_sentences": "never"}).translate(joined)  # the control
    assert sum(map(str.__eq__, whole, expected)) < len(joined) / 10


@pytest.mark.parametrize(
    ("asked", "share", "splits"),
    [
        ("auto", 0.951, True),
        ("auto", 0.95, False),
        ("auto", None, False),
        ("always", None, True),
        ("never", 1.0, False),
    ],
)
def test_when_lines_are_split(asked: str, share: float | None, splits: bool) -> None:
    translator = Translator(made({"split_sentences": asked}, one_sentence_share=share))
    alone = translator.translate(SENTENCES)
    assert (translator.translate([LINE]) == [f"{alone[0]} {alone[1]}  {alone[2]}"]) is splits


def test_languages_without_spaces() -> None:
    for languages, between in (({"tgt_lang": "ja"}, ""), ({"src_lang": "ja"}, " ")):
        translator = Translator(made(one_sentence_share=1.0, **languages))
        first, second = translator.translate(["犬 the dog。", "猫 the cat。"])
        assert translator.translate(["犬 the dog。猫 the cat。"]) == [first + between + second]


def test_hypotheses_of_parts_are_joined() -> None:
    bundle = made({"split_sentences": "always", "beam_size": 4, "n_best": 3})
    translator, eos = Translator(bundle), bundle.tokenizer.special.eos
    parts = [translation.hypotheses for translation in translator.translations(SENTENCES)]
    found = translator.translations([LINE])[0]
    best = found.hypotheses[0]
    assert len(found.hypotheses) == 3 and len({translator.text(each) for each in found.hypotheses}) > 1
    assert isinstance(best, Joined) and found.text == translator.text(best)
    assert best.parts == tuple(each[0] for each in parts)
    assert best.ids == (*parts[0][0].ids, eos, *parts[1][0].ids, eos, *parts[2][0].ids)
    assert best.log_prob == pytest.approx(sum(each[0].log_prob for each in parts))
    assert sum(best.token_log_probs) == pytest.approx(best.log_prob) and len(best.token_log_probs) == len(best.ids) + 1
    every = sorted((sum(h.score for h in each) for each in itertools.product(*parts)), reverse=True)
    assert [each.score for each in found.hypotheses] == pytest.approx(every[:3])
    assert found.src_pieces == sum(map(len, bundle.tokenizer.encode_src(SENTENCES)))


def test_the_best_together_are_those_of_all_choices(figure: Callable[..., None]) -> None:
    rng, equal = random.Random(1), 0
    for _ in range(200):
        n_best = rng.randint(1, 6)
        found = [
            sorted((Hypothesis(-rng.random(), 0.0, (i,)) for i in range(rng.randint(1, n_best))), reverse=True)
            for _ in range(rng.randint(2, 4))
        ]
        every = sorted((sum(h.score for h in each) for each in itertools.product(*found)), reverse=True)
        together = [sum(h.score for h in each) for each in best_together(found, n_best)]
        equal += together == pytest.approx(every[:n_best])
    figure("split_n_best", f"{equal} of 200", "all", equal == 200)


def test_sampled_parts() -> None:
    translator = Translator(made({"split_sentences": "always", "sample": True, "n_best": 3}))
    parts = translator.translations(SENTENCES)
    found = translator.translations([LINE])[0].hypotheses
    joined = [each.parts for each in found if isinstance(each, Joined)]
    assert joined == list(zip(*(part.hypotheses for part in parts), strict=True))  # each draw once


def test_a_prefix_keeps_sentences_together() -> None:
    bundle = made(one_sentence_share=1.0)
    never = Translator(bundle, decoding={"split_sentences": "never"})
    lines, prefixes = [LINE, LINE, ""], ["der hund", " ", "der"]
    found = Translator(bundle).translations(lines, prefixes)
    assert found[0].text == never.translations(lines[:1], prefixes[:1])[0].text
    assert found[0].text.startswith("der hund") and not isinstance(found[0].hypotheses[0], Joined)
    assert found[1].text == Translator(bundle).translate([LINE])[0] and found[2].text == ""
    short = Translator(made(max_length=8))
    whole = short.translations([LINE], ["der hund"])[0].hypotheses[0]
    assert isinstance(whole, Joined) and short.text(whole.parts[0]).startswith("der hund")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[int]]:
    """The ids of every source that a model was given, in order of the lines."""
    seen: list[Sequence[int]] = []
    found = Translator._found

    def noted(self: Translator, src_ids: list[list[int]], *rest: Any) -> Any:
        seen.extend(src_ids)
        return found(self, src_ids, *rest)

    monkeypatch.setattr(Translator, "_found", noted)
    return seen


def test_long_lines_reach_the_model_whole(
    given: list[Sequence[int]], full: bool, figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(self: Translator, src_ids: list[list[int]], prefixes: object = None) -> list[list[Hypothesis]]:
        return [[Hypothesis(0.0, 0.0, tuple(ids[:-1]), (0.0,) * len(ids))] for ids in src_ids]

    monkeypatch.setattr(Translator, "search", copy)
    rng = random.Random(1)
    words = " ".join(rng.choices(["the", "dog", "cat", "sees,", "small", "(big)", "house;", "old"], k=600))
    lines = [words, "dog" * 600, "\ufdfa" * (10_000 if full else 1000), "tree house " + "doghouse" * 40 + " here"]
    lost, longest = 0, -1
    for most in (2, 7, 64):
        bundle = made(max_length=most)
        for line in lines:
            given.clear()
            copied = Translator(bundle).translations([line])[0]
            pieces, whole = [piece for ids in given for piece in ids[:-1]], bundle.tokenizer.encode_src([line])[0][:-1]
            text = bundle.tokenizer.decode(whole)  # of unknown characters with spaces, which parts have once more
            lost += pieces != whole or "".join(copied.text.split()) != "".join(text.split())
            longest = max(longest, *(len(ids) - most for ids in given))
    shown = f"{lost} of {3 * len(lines)} lose something; {longest:+} pieces over the limit"
    figure("long_lines_whole", shown, "0; +0", not lost and longest == 0)
    given.clear()  # the control: a model that was trained for it is given all at once
    Translator(made(max_length=1_000_000)).translate([words])
    assert len(given) == 1


def test_parts_of_a_long_line_are_about_equal(given: list[Sequence[int]]) -> None:
    bundle = made({"split_sentences": "never", "beam_size": 1}, max_length=40)
    line = " ".join(random.Random(1).choices(["The dog sees the cat.", "A bird hears it.", "Who?"], k=60))
    Translator(bundle).translate([line])
    assert all(10 <= len(ids) <= 40 for ids in given)
    pieces = bundle.tokenizer.src_pieces([ids[-2] for ids in given])
    assert len(given) > 8 and all(piece[-1] in ".?" or piece == "<unk>" for piece in pieces)  # whole sentences


def test_a_blank_part_never_meets_the_model(given: list[Sequence[int]]) -> None:
    translator = Translator(made(one_sentence_share=1.0, max_length=4))
    lines = ["", " \u200b ", "the dog\u200b \u200b", "\u3000the.\u00a0\u200b\u00a0Cat.\ufeff"]
    out = translator.translate(lines)
    assert out[:2] == ["", ""] and all(out[2:]) and all(len(ids) > 1 for ids in given if ids)


def test_every_part_has_the_tag() -> None:
    options = TokenizerConfig(vocab_size=150, byte_fallback=False, user_symbols=["<lo>"])
    known = Tokenizer(train_sentencepiece([text for side in tiny.sentences(200) for text in side], options))
    symbol = known.encode_src(["<lo>"])[0]
    for most_pieces in (1000, 12, 5):
        cutter = Cutter(known, ("en", "de"), most_pieces, tag="<lo>")
        (parts,) = cutter.cut([f"The dog sees. A cat hears{'zz' * 20}."], [True])
        assert all(part.ids[: len(symbol) - 1] == symbol[:-1] and len(part.ids) <= most_pieces for part in parts)
        assert (len(parts) == 2) == (most_pieces == 1000)
    by_hand = Cutter(known, ("en", "de"), 1000, tags=["<lo>"]).cut(["<lo> The dog sees. A cat hears."], [True])[0]
    assert [part.ids for part in by_hand] == known.encode_src(["<lo> The dog sees.", "<lo> A cat hears."])
    written = Cutter(known, ("en", "de"), 1000)  # of a symbol no one knows whether it is for every sentence
    assert [len(parts) for parts in written.cut(["<lo> The dog. A cat.", "The dog. A cat."], [True, True])] == [1, 2]
