"""What is shown: which rows and columns, words, entropy, gold links; and the maps as text."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from alignment.cases import HOSTILE, maps, view
from nmt.alignment.maps import pair_maps
from nmt.alignment.terminal import as_text
from nmt.alignment.view import Choice, Link, PairView, as_record, entropy_bits, entropy_text, shown_maps, with_gold
from nmt.alignment.words import word_spans
from nmt.bundle import Bundle
from nmt.decoding.translator import Translator
from nmt.errors import ConfigError
from tiny import random_bundle, sentences

Figure = Callable[..., None]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return random_bundle(num_encoder_layers=2, num_decoder_layers=3, decoding={"beam_size": 4, "n_best": 2})


def shown(bundle: Bundle, src: list[int], tgt: list[int], *, pieces: bool) -> PairView:
    labels = bundle.tokenizer.src_pieces(src), bundle.tokenizer.tgt_pieces(tgt)
    return PairView("", "", "", shown_maps(pair_maps(bundle, src, tgt), *labels, pieces=pieces))


def test_rows_sum_to_one_and_later_words_have_nothing(bundle: Bundle, figure: Figure) -> None:
    """Over words and over pieces, of every kind; the texts have words of several pieces."""
    lines = [text.replace("an", "onion") for text in sentences(6, seed=3)[0]]
    worst = masked = rows = 0.0
    for src, tgt in zip(bundle.tokenizer.encode_src(lines), reversed(bundle.tokenizer.encode_tgt(lines)), strict=True):
        for pieces in (True, False):
            for kind, found in shown(bundle, src, tgt, pieces=pieces).maps.items():
                layers = 2 if kind == "encoder" else 3
                assert found.weights.shape == (layers, 2, len(found.rows), len(found.columns))
                worst = max(worst, np.abs(found.weights.sum(-1) - 1).max())
                masked = max(masked, np.abs(found.weights[..., ~found.seen]).max(initial=0))
                rows += found.weights[..., 0].size
    figure("attention_rows_sum_to_1", f"{worst:.1e} off in {rows:.0f} rows, hidden {masked}", "1e-6, 0", worst < 1e-6)
    assert masked == 0


def test_decoder_columns_are_what_stood_before(bundle: Bundle) -> None:
    src, tgt = bundle.tokenizer.encode_src(["the dog"])[0], bundle.tokenizer.encode_tgt(["onion ein hund"])[0]
    tgt_pieces = bundle.tokenizer.tgt_pieces(tgt)
    spans = word_spans(tgt_pieces)
    assert len(spans) < len(tgt_pieces)
    over_pieces = shown(bundle, src, tgt, pieces=True).maps["decoder"]
    assert over_pieces.columns == ["<s>", *over_pieces.rows[:-1]]
    found = shown(bundle, src, tgt, pieces=False).maps["decoder"]
    assert found.columns == ["<s>", "onion", "ein", "hund"] and found.rows == ["onion", "ein", "hund", "</s>"]
    # Piece t of the target stands in column t + 1 and is seen from row t + 1 on; a word, as soon as one piece of it.
    for row, (_, last) in enumerate(spans):
        assert list(found.seen[row]) == [True, *(first + 1 <= last - 1 for first, _ in spans[:-1])]


def test_maps_are_of_the_printed_text_and_another_pass_is_caught(bundle: Bundle) -> None:
    translator = Translator(bundle)
    src = translator.encode(["the small dog sees a red house"])[0]
    (best, other) = translator.search([src])[0]
    eos = bundle.tokenizer.special.eos
    printed = shown(bundle, src, [*best.ids, eos], pieces=True).maps["cross"]
    again = pair_maps(bundle, src, [*best.ids, eos]).cross
    assert printed.rows == bundle.tokenizer.tgt_pieces([*best.ids, eos])
    np.testing.assert_allclose(printed.weights, again, atol=1e-6)
    control = pair_maps(bundle, src, [*other.ids, eos]).cross
    assert control.shape != again.shape or np.abs(control - again).max() > 1e-4


def test_weights_of_low_precision_are_made_to_sum_to_one(bundle: Bundle) -> None:
    src = bundle.tokenizer.encode_src(["the dog"])[0]
    rough = pair_maps(bundle, src, src)
    rough = rough._replace(cross=rough.cross.astype(np.float16).astype(np.float64))
    assert np.abs(rough.cross.sum(-1) - 1).max() > 1e-5
    labels = bundle.tokenizer.src_pieces(src)
    np.testing.assert_allclose(shown_maps(rough, labels, labels, pieces=True)["cross"].weights.sum(-1), 1, atol=1e-12)


def test_a_model_without_self_attention_shows_cross_attention_alone(bundle: Bundle) -> None:
    src = bundle.tokenizer.encode_src(["the dog"])[0]
    recurrent = pair_maps(bundle, src, src)._replace(encoder=None, decoder=None)
    labels = bundle.tokenizer.src_pieces(src)
    assert list(shown_maps(recurrent, labels, labels, pieces=False)) == ["cross"]


def test_entropy_by_hand() -> None:
    weights = np.array([[[1.0, 0, 0, 0], [0.25] * 4], [[0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0]]])
    np.testing.assert_allclose(entropy_bits(weights), [1.0, 1.25])
    sharp = np.eye(2)[None, :, None]  # two heads that each look at one thing, at another one
    assert entropy_text(sharp) == "mean entropy of 2 heads 0.00 bits" and entropy_bits(sharp.mean((0, 1))) == 1
    assert entropy_text(weights[None, :1]) == "entropy 1.00 bits"


def test_choice() -> None:
    some = maps(["x", "y"], ["a", "b", "c"], shape=(3, 2))
    np.testing.assert_array_equal(Choice(2, 1).of(some), some.weights[1:2, :1])
    assert Choice().of(some).shape == (3, 2, 2, 3) and Choice(None, 2).names(some) == "all 3 layers (mean), head 2"
    with pytest.raises(ConfigError, match=r"--head 3: the model has 2"):
        Choice(1, 3).of(some)


def test_gold_links() -> None:
    pair = view(["a", "b", "c"], ["x", "y"])
    links = with_gold(pair, " 0-0 2p1 1p0  1-0 ", tagged=False).maps["cross"].links
    assert links == (Link(0, 0, True), Link(0, 1, True), Link(1, 2, False))  # 1-0 wins over 1p0
    assert with_gold(pair, "", tagged=True).maps["cross"].links == ()
    tagged = replace(pair, source="b c")  # the model was given a tag before it
    assert with_gold(tagged, "1-1", tagged=True).maps["cross"].links == (Link(1, 2, True),)
    for bad in ("3-0", "0-2", "9999999-0"):
        with pytest.raises(ConfigError, match=bad):
            with_gold(pair, f"0-0 {bad}", tagged=False)
    for bad in ("0", "0-", "-1-0", "0x0", "1-1,2-2", "٠-٠"):
        with pytest.raises(ConfigError, match="is no link"):
            with_gold(pair, bad, tagged=False)
    with pytest.raises(ConfigError, match="the source has 2 white-space words, but the model was given 3"):
        with_gold(tagged, "0-0", tagged=False)


def test_record_has_all_numbers() -> None:
    record = as_record(view(["a", "b"], ["x"]))["attention"]
    assert list(record) == ["cross", "encoder", "decoder"]
    assert np.array(record["decoder"]["weights"]).shape == (2, 2, 2, 2)
    assert np.array(record["cross"]["entropy_bits"]).shape == (2, 2)


def test_as_text() -> None:
    pair = view(["the", "small", "dog"], ["der", "kleine", "hund"])
    cross, decoder = pair.maps["cross"], pair.maps["decoder"]
    weights = Choice(1, 1).of(cross)[0, 0]
    text = as_text(cross, weights, "title", width=80, colour=False)
    title, head, *rows, help_line = text.splitlines()
    assert (title, head.split()) == ("title", cross.columns) and "gold" in help_line
    percents = [[int(cell.strip("[]()")) for cell in row.split()[1:]] for row in rows]
    np.testing.assert_array_equal(percents, np.rint(100 * weights))
    assert rows[0].split()[1].startswith("[") and rows[-1].split()[-1].startswith("(")
    blank = as_text(decoder, Choice(1, 1).of(decoder)[0, 0], "title", width=80, colour=False).splitlines()[2:]
    assert [len(row.split()) for row in blank] == [2, 3, 4, 5]  # what is hidden stays blank
    best = as_text(cross, weights, "title", width=20, colour=False)
    strongest = cross.columns[int(weights[0].argmax())]
    assert "the three most" in best and f"\n   der {strongest} " in best and "small" in best
    assert "[n]" not in best and "[" in best and "(" in best
    assert "\x1b" not in text + best and "\x1b[" in as_text(cross, weights, "title", width=80, colour=True)


def test_words_that_occur_again_have_their_place() -> None:
    columns = ["room", *(f"w{i}" for i in range(30)), "room"]
    weights = np.array([[0.2, 0.1, *[0.0] * 29, 0.7]])
    text = as_text(maps(["raum"], columns, "encoder"), weights, "title", width=80, colour=False)
    help_line = "the three most looked at, in percent, word[n]: the n-th of them all"
    assert text == f"title\n{help_line}\nraum room[32] 70, room[1] 20, w0 10\n"


@pytest.mark.parametrize("width", [20, 80, 400])
def test_as_text_keeps_to_the_width_and_lets_no_label_drive_the_terminal(
    width: int, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "7")  # which is not asked
    src = bundle.tokenizer.encode_src(["the dog"])[0]
    labels = HOSTILE[: len(src)] if len(src) < len(HOSTILE) else [*HOSTILE, *"abcdefghijk"][: len(src)]
    labels[0] = HOSTILE[-2]
    found = shown_maps(pair_maps(bundle, src, src), labels, labels, pieces=True)["cross"]
    text = as_text(found, Choice().of(found).mean((0, 1)), "title", width=width, colour=False)
    assert max(map(len, text.splitlines())) <= width
    assert not any(char in text for char in "\x1b\u202e\u2028")
