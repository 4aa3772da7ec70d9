"""Subword sampling: the same text in other pieces, as often as its authors say, repeatable in any process."""

import itertools
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from nmt.config import TokenizerConfig
from nmt.errors import ConfigError
from nmt.text.model_proto import model_type, piece_table
from nmt.text.subwords import SubwordSampling
from nmt.text.tokenizer import Tokenizer, tagged, train_sentencepiece

Figure = Callable[..., None]
Rows = list[list[int]]
KINDS = ["bpe", "unigram"]
SYLLABLES = ["ba", "do", "ki", "lu", "me", "na", "po", "ri", "sa", "te"]


def words(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(count)]


LINES = [" ".join(words(8, seed)) for seed in range(300)]


@cache
def tokenizer(kind: str) -> Tokenizer:
    options = {"type": kind, "vocab_size": 400, "user_symbols": ["<2de>"]}
    return Tokenizer(train_sentencepiece(LINES, TokenizerConfig.model_validate(options)))


def sampling(kind: str, amount: float, seed: int = 1) -> SubwordSampling:
    amounts = (amount, 0.0) if kind == "bpe" else (0.0, amount)
    return SubwordSampling(tokenizer(kind), *amounts, seed)


def sampled(sampler: SubwordSampling, rows: Rows, epoch: int = 0, pairs: list[int] | None = None) -> Rows:
    lengths = np.array(list(map(len, rows)))
    numbers = np.arange(len(rows)) if pairs is None else np.array(pairs)
    ids, new_lengths = sampler("tgt", np.concatenate(rows).astype(np.uint16), lengths, numbers, epoch)
    return [part.tolist() for part in np.split(ids, np.cumsum(new_lengths)[:-1])]


# The oracles: what the papers say, in the plainest way, on one word.


def bpe_dropout(word: str, scores: dict[str, float], p: float) -> Counter[tuple[str, ...]]:
    """Provilkov et al., algorithm 1: at each step every merge is left out or not; the best of the others is made."""
    found: Counter[tuple[str, ...]] = Counter()

    def step(symbols: tuple[str, ...], probability: float) -> None:
        pairs = [(i, scores[a + b]) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores]
        places = [i for i, _ in sorted(pairs, key=lambda pair: (-pair[1], pair[0]))]
        for better, i in enumerate(places):  # those that are better are left out
            merged = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
            step(merged, probability * p**better * (1 - p))
        found[symbols] += probability * p ** len(places)

    step(tuple(word), 1.0)
    return found


def unigram(word: str, scores: dict[str, float], alpha: float) -> Counter[tuple[str, ...]]:
    """Kudo: every division of the word, by its probability to the power of alpha."""

    def divisions(rest: str) -> Iterator[tuple[str, ...]]:
        if not rest:
            yield ()
        for end in range(1, len(rest) + 1):
            if rest[:end] in scores:
                yield from ((rest[:end], *others) for others in divisions(rest[end:]))

    weights = {pieces: math.exp(alpha * sum(scores[piece] for piece in pieces)) for pieces in divisions(word)}
    return Counter({pieces: weight / sum(weights.values()) for pieces, weight in weights.items()})


@pytest.mark.parametrize(("kind", "amount"), [("bpe", 0.1), ("bpe", 0.5), ("unigram", 0.1), ("unigram", 0.7)])
def test_frequencies_are_those_of_the_papers(kind: str, amount: float, figure: Figure, full: bool) -> None:
    word, many = "▁dokisa", 100_000 if full else 10_000
    table = piece_table(tokenizer(kind).tgt_model)
    scores = {piece: score for piece, score, type in table if type == 1}
    (row,) = tokenizer(kind).encode_tgt([word.replace("▁", " ")])
    drawn = Counter(
        tuple(tokenizer(kind).tgt_pieces(ids[:-1])) for ids in sampled(sampling(kind, amount), [row] * many)
    )
    oracle = {"bpe": bpe_dropout, "unigram": unigram}[kind]
    expected, other = oracle(word, scores, amount), oracle(word, scores, amount * 1.25)
    assert drawn.keys() <= expected.keys() and sum(expected.values()) == pytest.approx(1)

    def off(probabilities: Counter[tuple[str, ...]]) -> float:
        """The largest distance of a frequency, in standard deviations."""
        return max(
            abs(drawn[pieces] - many * p) / math.sqrt(many * p * (1 - p))
            for pieces, p in probabilities.items()
            if many * p > 20
        )

    assert off(other) > 5  # the negative control
    figure(
        f"sampling_{kind}_{amount}",
        f"{off(expected):.1f} standard deviations off at most",
        "<= 4.5",
        off(expected) <= 4.5,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_the_same_and_what_is_fixed_stays(kind: str, figure: Figure) -> None:
    hard = ["", "漢字 a dog 👍", "</s> <pad> a<2de>dog", "▁ ▁▁", "<2de>", "a " * 50, "x" * 300, "the"]
    lines = [*LINES, *tagged("<2de>", hard)]
    rows = tokenizer(kind).encode_tgt(lines)
    others = [sampled(sampling(kind, 0.3), rows, epoch) for epoch in range(3)]
    texts = [tokenizer(kind).decode(ids) for ids in rows]
    wrong = sum(tokenizer(kind).decode(ids) != text for each in others for ids, text in zip(each, texts, strict=True))
    assert sum(a != b for a, b in zip(rows, others[0], strict=True)) > len(rows) / 2  # the control: they do differ
    assert others[0] != others[1]
    fixed = [number for number, (_, _, type) in enumerate(piece_table(tokenizer(kind).tgt_model)) if type != 1]
    kept = [[[n for n in ids if n in fixed] for ids in each] for each in (rows, *others)]
    assert all(each == kept[0] for each in kept)
    figure(f"sampling_text_{kind}", f"{wrong} of {3 * len(lines)} texts differ", "0", wrong == 0)


def test_without_dropout_the_merges_are_sentencepieces() -> None:
    divider = sampling("bpe", 0.5)._dividers["tgt"]
    assert divider is not None
    rows = [ids[:-1] for ids in tokenizer("bpe").encode_tgt(words(500, 1))]
    assert [divider._merged("".join(tokenizer("bpe").tgt_pieces(ids)), ids, [False])[0] for ids in rows] == rows
    rows = tokenizer("bpe").encode_tgt(LINES)
    assert sampled(SubwordSampling(tokenizer("bpe"), 0.0, 0.0, 1), rows) == rows
    assert sampled(sampling("bpe", 1e-12), rows) == rows
    best = tokenizer("unigram").encode_tgt(LINES)
    nearly = sampled(sampling("unigram", 100.0), best)
    assert sum(a != b for a, b in zip(nearly, best, strict=True)) < len(best) / 50  # of nearly equal probabilities


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_a_function_of_seed_epoch_and_pair_alone(kind: str) -> None:
    rows, amount = tokenizer(kind).encode_tgt(LINES), 0.3
    whole = sampled(sampling(kind, amount), rows, epoch=5)
    one = sampling(kind, amount)  # which has seen nothing, and sees them backwards and alone
    alone = [sampled(one, [rows[pair]], 5, [pair])[0] for pair in reversed(range(len(rows)))]
    assert alone[::-1] == whole
    for others in (
        sampled(sampling(kind, amount, seed=2), rows, 5),
        sampled(one, rows, 6),
        sampled(one, rows[::-1], 5),
    ):
        assert others != whole
    sides = [
        one(side, np.concatenate(rows), np.array(list(map(len, rows))), np.arange(len(rows)), 5)[0]
        for side in ("src", "tgt")
    ]
    assert sides[0].tolist() != sides[1].tolist()


def test_another_process_draws_the_same() -> None:
    """SentencePiece itself does not: it mixes a number of the process into the seed."""
    code = (
        "from text.test_subwords import KINDS, LINES, sampled, sampling, tokenizer\n"
        "print([sampled(sampling(kind, 0.3), tokenizer(kind).encode_tgt(LINES[:50])) for kind in KINDS])"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    here = [sampled(sampling(kind, 0.3), tokenizer(kind).encode_tgt(LINES[:50])) for kind in KINDS]
    assert there.stdout.strip() == str(here)


def test_an_option_for_another_type_is_refused() -> None:
    assert [model_type(tokenizer(kind).src_model) for kind in KINDS] == KINDS
    with pytest.raises(
        ConfigError, match=r"training\.bpe_dropout = 0\.1 is for a bpe tokenizer; this one is unigram\."
    ):
        SubwordSampling(tokenizer("unigram"), 0.1, 0.0, 1)
    with pytest.raises(ConfigError, match=r"unigram_alpha = 0\.2 is for a unigram tokenizer"):
        SubwordSampling(tokenizer("bpe"), 0.1, 0.2, 1)
