"""SentencePiece models numbered anew: the same pieces, other numbers."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from nmt.config import TokenizerConfig
from nmt.errors import BundleError
from nmt.interop.renumber import FOREIGN_HIDDEN, FOREIGN_SHOWN, Pieces, renumber, without_foreign
from nmt.text.tokenizer import SpecialIds, Tokenizer, train_sentencepiece

SRC, TGT = tiny.sentences(200)
LINES = [*SRC[:100], "Zoë sees 東京", "  two  spaces ", "<pad> </s> dogcat"]


@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_text_becomes_the_same_pieces(
    kind: str, byte_fallback: bool, tmp_path: Path, figure: Callable[..., None]
) -> None:
    size = 80 + 256 * byte_fallback
    options = TokenizerConfig(type=kind, vocab_size=size, byte_fallback=byte_fallback)  # type: ignore[arg-type]
    proto = train_sentencepiece(SRC, options)
    (tmp_path / "m").write_bytes(proto)
    before, model = Tokenizer(proto), Pieces.read(tmp_path / "m")
    own = before.src_pieces(range(before.src_vocab_size))
    foreign = ["▁hund", "▁katze", "▁thedog", "zz"]
    pieces = random.Random(1).sample([*own, *foreign], len(own) + len(foreign))
    special = SpecialIds(*(pieces.index(own[n]) for n in (before.special.pad, before.special.unk)), 0, 0)
    special = SpecialIds(special.pad, special.unk, special.pad, pieces.index(own[before.special.eos]))
    after = Tokenizer(renumber(model, pieces, special, foreign=FOREIGN_HIDDEN))
    assert after.special == special and after.src_pieces(range(len(pieces))) == pieces
    split = [[before.src_pieces(ids) for ids in before.encode_src(LINES)]]
    split.append([after.src_pieces(ids) for ids in after.encode_src(LINES)])
    same = sum(a == b for a, b in zip(*split, strict=True))
    figure(f"renumber_{kind}_{byte_fallback}", f"{same} of {len(LINES)} lines split alike", "all", same == len(LINES))
    numbers = [before.encode_src(LINES), after.encode_src(LINES)]
    assert numbers[0] != numbers[1]  # the control: other numbers
    assert [before.decode(ids) for ids in numbers[0]] == [after.decode(ids) for ids in numbers[1]]
    hund = [pieces.index("▁hund"), pieces.index("▁katze")]
    assert after.decode(hund) == ""
    assert Tokenizer(renumber(model, pieces, special, foreign=FOREIGN_SHOWN)).decode(hund) == "hund katze"
    bare = Tokenizer(without_foreign(after.src_model, special))
    assert bare.src_vocab_size == len(own) - 1  # without the <s> of before, which is foreign now
    assert [bare.src_pieces(ids) for ids in bare.encode_src(LINES)] == split[0]
    assert without_foreign(proto, before.special) == proto


@pytest.mark.parametrize("content", [b"", b"text", b"\x0a\x05ab", b"\x0a\x03\x0a\x01a\xff\xff"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(BundleError, match="cannot be read as a SentencePiece model"):
        Pieces.read(tmp_path / "m")
