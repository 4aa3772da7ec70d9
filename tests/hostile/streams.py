"""What the tests of hostile input share: a tiny model that can emit every byte, and lines that are hard to keep."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import test_cli
import tiny
from nmt.config import TokenizerConfig
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

run = test_cli.run  # `run(*arguments, stdin=b"")`: the command line in this process

CONTROLS = [chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)] if chr(code) != "\n"]
PIECES = [
    *CONTROLS, "\u2028", "\u2029", "\ufeff", "\u200b", "\u200d", "\u2060", "\u00ad", "\u202e", "\u2066", "\u2069",
    "\ufffe", "\uffff", "\U0001fffe", "\U0010ffff", "\ue000", "\U000f0000", "\u0301" * 40, "\ufdfa" * 5, "\u0e33" * 9,
    "👨\u200d👩\u200d👧\u200d👦", "🇩🇪", "שלום", "مرحبا", "漢字", "ﬁ", "\x1b[31m", "\x1b]0;title\x07", "\x1bPq\x1b\\",
    "</s>", "<s>", "<pad>", "<unk>", "▁", "<0x0A>", "<2de>", "NaN", " ", "\u3000", "\xa0", "\t", "\r",
]  # fmt: skip
HEAVY = [("\u0301" * 10_000).encode(), ("\ufdfa" * 500).encode(), ("👨\u200d👩\u200d👧" * 500).encode()]  # many pieces
RAW = [b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"\xef\xbb\xbf", b"\x00"]


def hostile_lines(count: int, seed: int = 1) -> list[bytes]:
    """Lines without LF: arbitrary bytes, mutated text, and every kind of odd character, alone and in words."""
    rng = random.Random(seed)
    words = [word.encode() for line in tiny.sentences(40)[0] for word in line.split()]
    odd = [*(piece.encode() for piece in PIECES), *RAW]

    def line(number: int) -> bytes:
        kind = number % 4
        if kind == 0:
            return odd[number // 4 % len(odd)] * rng.choice((1, 1, 3))
        if kind == 1:
            return rng.randbytes(rng.randrange(24)).replace(b"\n", b"")
        parts = rng.choices(words, k=rng.randint(1, 6)) + rng.choices(odd, k=rng.randint(1, 3))
        rng.shuffle(parts)
        whole = bytearray(b" ".join(parts))
        for _ in range(rng.randint(0, 3) if kind == 3 else 0):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        return bytes(whole).replace(b"\n", b"\r")

    return [line(number) for number in range(count)]


@pytest.fixture(scope="session")
def bytes_tokenizer() -> Tokenizer:
    """With a piece for every byte."""
    src, tgt = tiny.sentences(200)
    return Tokenizer(train_sentencepiece(src + tgt, TokenizerConfig(vocab_size=400, byte_fallback=True)))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, bytes_tokenizer: Tokenizer) -> Path:
    """A random model whose translations hold bytes of every kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "tokenizer", lambda joint: bytes_tokenizer)
        bundle = tiny.random_bundle(decoding={"beam_size": 1, "max_length": 8})
    return tiny.save(bundle, tmp_path_factory.mktemp("hostile") / "bundle")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with tiny.one_thread():
        yield
