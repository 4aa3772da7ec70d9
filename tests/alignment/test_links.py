"""Pieces to white-space tokens, weights to links, and two directions to one."""

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from nmt.alignment.links import (
    SYMMETRISED,
    Links,
    flipped,
    links_of,
    piece_shares,
    token_numbers,
)
from nmt.config import TokenizerConfig
from nmt.decoding.parts import Cutter
from nmt.text.lines import clean, places_kept
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

HOSTILE = [
    "a",
    "the",
    "dog",
    " ",
    "  ",
    "\t",
    "\u00a0",
    "\u2028",
    "\u200b",
    "½",
    "ﬁ",
    "\ufdfa",
    "e\u0301",
    "🙂",
    "\u3000",
]
HOSTILE += ["Ａ", "▁", "<lo>", "</s>", "\x00", "\x1c", "\x85", "\u00ad", "\u202e", "ำ", "한", "…", ".", "\n"]


def made(normalization: str = "nmt_nfkc", byte_fallback: bool = True) -> Tokenizer:
    src, tgt = tiny.sentences(100)
    options = TokenizerConfig(
        vocab_size=420, byte_fallback=byte_fallback, normalization=normalization, user_symbols=["<lo>"]
    )
    return Tokenizer(train_sentencepiece(src + tgt, options))


@pytest.fixture(scope="module")
def tokenizers() -> list[Tokenizer]:
    return [made(), made(byte_fallback=False), made("identity")]


def tokens_of(tokenizer: Tokenizer, line: str) -> list[list[int]]:
    """The tokens of the line that each of its pieces belongs to."""
    shares, first = piece_shares(tokenizer.src_spans(line), token_numbers(line))
    return [[first + int(token) for token in np.flatnonzero(row)] for row in shares]


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("the dog", [0, 1]),
        ("  the  dog ", [0, 1]),
        ("the\u00a0dog", [0, 1]),
        ("the\u2028dog\u3000the", [0, 1, 2]),
        ("the\u200bdog the", [0, 0, 1]),  # two words for the model, which makes a space of it; one token of the text
        ("\u200b the", [1]),  # of the first token nothing is left
        ("½ the", [0] * 6 + [1]),  # a "▁", and the bytes of "1⁄2"
        ("the 🙂", [0] + [1] * 5),
        ("\ufdfa", [0] * 34),  # a character that becomes four words
        ("", []),
        (" \u00a0 ", []),
    ],
)
def test_each_piece_has_its_token(tokenizers: list[Tokenizer], line: str, tokens: list[int]) -> None:
    assert tokens_of(tokenizers[0], line) == [[token] for token in tokens]


def test_counting_words_of_pieces_would_be_wrong(tokenizers: list[Tokenizer]) -> None:
    """The control: "▁" opens three words in a text of two tokens."""
    line = "the\u200bdog the"
    pieces = tokenizers[0].src_pieces(tokenizers[0].encode_src([line])[0])
    assert sum(piece.startswith("▁") for piece in pieces) == 3 > len(line.split())


def lines() -> st.SearchStrategy[str]:
    return st.one_of(st.text(max_size=30), st.lists(st.sampled_from(HOSTILE), max_size=12).map("".join))


def check_line(tokenizer: Tokenizer, line: str) -> int:
    """Places of pieces in a line, cut into parts and whole, are within the line and in order; how many pieces."""
    cleaned, kept = clean(line), places_kept(line)
    assert len(kept) == len(cleaned) and all(line[place].isspace() or line[place] for place in kept)
    count = len(line.split())
    cutter = Cutter(tokenizer, ("en", "de"), 6, "<lo>")
    (parts,) = cutter.cut([cleaned], [True])
    pieces = 0
    for part in [*parts, *cutter.whole([cleaned])]:
        (spans,) = cutter.spans([part])
        assert len(spans) == len(part.ids) - 1
        moved = [(kept[a], kept[b - 1] + 1) if b > a >= 0 else (-1, -1) for a, b in spans]
        assert all(0 <= a < b <= len(line) for a, b in moved if a >= 0)
        assert moved == sorted(moved, key=lambda span: span[0]) or (-1, -1) in moved
        shares, first = piece_shares(moved, token_numbers(line))
        assert not shares.size or 0 <= first <= first + shares.shape[1] <= count
        assert np.all(np.isclose(shares.sum(1), 1) | (shares.sum(1) == 0))
        pieces += len(spans)
    texts = [cleaned[part.start :].startswith(part.text) for part in parts]
    assert all(texts)
    return pieces


def test_tokens_are_within_any_text(tokenizers: list[Tokenizer], full: bool, figure: Callable[..., None]) -> None:
    seen = [0, 0]

    @settings(max_examples=2000 if full else 30, deadline=None)
    @given(lines())
    def check(line: str) -> None:
        for tokenizer in tokenizers:
            seen[1] += check_line(tokenizer, line)
        seen[0] += 1

    check()
    figure("alignment_hostile_lines", f"{seen[0]} lines, {seen[1]} pieces: 0 outside", "0 outside", seen[1] > seen[0])


def test_spans_of_parts_are_those_of_the_line(tokenizers: list[Tokenizer]) -> None:
    line = "<lo> The dog sees.  A cat hears the tree, and thethethethethethethethethe man"
    cutter = Cutter(tokenizers[0], ("en", "de"), 8, "", ["<lo>"])
    (parts,) = cutter.cut([line], [True])
    assert len(parts) > 4 and any(part.skipped for part in parts)
    for part in parts:
        covered = "".join(line[max(a, 0) : max(b, 0)] for a, b in cutter.spans([part])[0])
        assert covered.strip() == tokenizers[0].decode(part.ids).removeprefix("<lo>").strip()


# Links


def shares(*tokens: Iterable[int]) -> tuple[np.ndarray, int]:
    """Pieces by their tokens, given as characters of a text: "0", "01" for a piece of two, "" for one of none."""
    rows = [list(each) for each in tokens]
    found = np.zeros((len(rows), 1 + max((token for row in rows for token in row), default=-1)))
    for row, of_piece in enumerate(rows):
        for token in of_piece:
            found[row, token] = 1 / len(of_piece)
    return found, 0


def test_links_by_hand() -> None:
    weights = np.array([[0.2, 0.3, 0.4], [0.5, 0.1, 0.1], [0.0, 0.1, 0.3]])
    one_to_one = shares([0], [1], [2])
    assert links_of(weights, one_to_one, one_to_one) == {(2, 0), (0, 1), (2, 2)}
    # Source pieces are summed: 0.2 + 0.3 > 0.4. Target pieces are averaged: rows 0 and 1.
    assert links_of(weights, shares([0], [0], [1]), one_to_one) == {(0, 0), (0, 1), (1, 2)}
    assert links_of(weights, one_to_one, shares([0], [0], [1])) == {(0, 0), (2, 1)}
    assert links_of(weights, one_to_one, shares([0], [], [1])) == {(2, 0), (2, 1)}
    assert links_of(weights, one_to_one, one_to_one, threshold=0.35) == {(2, 0), (0, 1)}
    assert links_of(weights, (one_to_one[0], 4), (one_to_one[0], 7)) == {(6, 7), (4, 8), (6, 9)}
    assert links_of(weights, shares([0, 1], [1], [1]), one_to_one) == {(1, 0), (1, 1), (1, 2)}
    assert links_of(np.zeros((0, 3)), one_to_one, shares()) == frozenset()
    assert links_of(np.zeros((3, 3)), one_to_one, one_to_one) == frozenset()


FORWARD: Links = frozenset([(0, 0), (1, 1), (1, 2), (4, 4), (6, 6)])
REVERSE: Links = frozenset([(0, 0), (1, 1), (2, 2), (4, 5), (6, 8)])


@pytest.mark.parametrize(
    ("method", "links"),
    [
        ("intersection", {(0, 0), (1, 1)}),
        ("union", FORWARD | REVERSE),
        # (1, 2) is next to (1, 1) and token 2 is free; then (2, 2), whose source token is. The rest touches nothing.
        ("grow-diag", {(0, 0), (1, 1), (1, 2), (2, 2)}),
        # (4, 4) and (6, 6) of the first direction; of the second (4, 5) and (6, 8) have a free target token.
        ("grow-diag-final", FORWARD | REVERSE),
        # ... but no free source token any more.
        ("grow-diag-final-and", {(0, 0), (1, 1), (1, 2), (2, 2), (4, 4), (6, 6)}),
    ],
)
def test_symmetrised_by_hand(method: str, links: set[tuple[int, int]]) -> None:
    assert SYMMETRISED[method](FORWARD, REVERSE) == links


@given(*(st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12) for _ in range(2)))
@settings(max_examples=40, deadline=None)
def test_symmetrised_in_order(forward: Links, reverse: Links) -> None:
    """Each method has what the one before it has, and the sides may change places."""
    found = {name: method(forward, reverse) for name, method in SYMMETRISED.items()}
    order = ["intersection", "grow-diag", "grow-diag-final-and", "union"]
    for less, more in pairwise(order):
        assert found[less] <= found[more]
    assert found["grow-diag"] <= found["grow-diag-final"] <= found["union"]
    assert flipped(flipped(forward)) == forward
    for name in ("intersection", "union"):
        assert SYMMETRISED[name](flipped(reverse), flipped(forward)) == flipped(found[name])
