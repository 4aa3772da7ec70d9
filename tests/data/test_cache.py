"""The token cache says what the tokenizer says, and refuses to be read when damaged."""

import json
import mmap
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.config import TokenizerConfig
from nmt.data.cache import TokenCache, build_cache
from nmt.data.clean import length_rule
from nmt.errors import DataError
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

rng = random.Random(3)
WORDS = ["".join(rng.choices("abcdefghij", k=rng.randint(1, 6))) for _ in range(60)]
SRC = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(120)]
TGT = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(120)]
KEEP = np.array([rng.random() < 0.8 for _ in SRC])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_sentencepiece(SRC + TGT, TokenizerConfig(vocab_size=300)))


def build(folder: Path, tokenizer: Any, chunk: int = 50, keep: Any = KEEP, **rules: Any) -> TokenCache:
    chunks = [(SRC[i : i + chunk], TGT[i : i + chunk]) for i in range(0, len(SRC), chunk)]
    build_cache(folder, chunks, keep, tokenizer, **{"max_length": 40, "max_ratio": 2.0, **rules})
    return TokenCache(folder)


@pytest.mark.parametrize("chunk", [1, 7, 120])
def test_cache_equals_direct_tokenization(tmp_path: Path, tokenizer: Tokenizer, chunk: int) -> None:
    cache = build(tmp_path / "c", tokenizer, chunk)
    pairs = zip(tokenizer.encode_src(SRC), tokenizer.encode_tgt(TGT), KEEP, strict=True)
    kept = [(src, tgt) for src, tgt, keep in pairs if keep]
    expected = [(src, tgt) for src, tgt in kept if length_rule(len(src), len(tgt), 40, 2.0) is None]
    assert 0 < len(expected) < len(kept)  # the rules drop some
    assert len(cache) == len(expected)
    assert [(cache.src(i).tolist(), cache.tgt(i).tolist()) for i in range(len(cache))] == expected
    assert cache.src_lengths.tolist() == [len(src) for src, _ in expected]
    assert cache.tgt_lengths.tolist() == [len(tgt) for _, tgt in expected]
    assert sum(cache.dropped.values()) == len(kept) - len(expected)
    assert cache.dropped.keys() <= {"too long", "length ratio"}


def test_gathered_ids_are_those_of_the_pairs(tmp_path: Path, tokenizer: Tokenizer) -> None:
    cache = build(tmp_path / "c", tokenizer)
    indices = np.array([len(cache) - 1, 0, 5, 5])
    for side, one in (("src", cache.src), ("tgt", cache.tgt)):
        ids, lengths = cache.gather(side, indices)
        rows = [one(int(i)) for i in indices]
        assert ids.dtype == rows[0].dtype and lengths.dtype == np.int64
        assert ids.tolist() == np.concatenate(rows).tolist() and lengths.tolist() == list(map(len, rows))
    base: Any = cache.src(0)
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)  # the ids are on disk, not in memory


def test_building_is_deterministic_to_the_byte(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name, chunk in (("a", 50), ("b", 7)):
        build(tmp_path / name, tokenizer, chunk)
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab"]
    assert contents[0] == contents[1]
    files = ["manifest.json", "meta.json", "src.offsets", "src.tokens", "tgt.offsets", "tgt.tokens"]
    assert sorted(contents[0]) == files


class WideTokenizer:
    """Stands for a tokenizer of any vocabulary: every line is its last two ids."""

    def __init__(self, src_size: int, tgt_size: int) -> None:
        self.src_vocab_size, self.tgt_vocab_size = src_size, tgt_size

    def encode_src(self, lines: list[str], num_threads: int) -> list[list[int]]:
        return [[self.src_vocab_size - 1, self.src_vocab_size - 2]] * len(lines)

    def encode_tgt(self, lines: list[str], num_threads: int) -> list[list[int]]:
        return [[self.tgt_vocab_size - 1, self.tgt_vocab_size - 2]] * len(lines)


@pytest.mark.parametrize(
    ("src_size", "tgt_size", "dtype"),
    [(300, 300, "uint16"), (65_536, 65_536, "uint16"), (65_537, 300, "uint32"), (300, 65_537, "uint32")],
)
def test_ids_are_as_narrow_as_the_vocabulary_allows(tmp_path: Path, src_size: int, tgt_size: int, dtype: str) -> None:
    cache = build(tmp_path / "c", WideTokenizer(src_size, tgt_size))
    assert json.loads((tmp_path / "c" / "meta.json").read_text())["dtype"] == dtype
    assert cache.src(0).dtype == dtype
    assert cache.src(3).tolist() == [src_size - 1, src_size - 2]
    assert cache.tgt(len(cache) - 1).tolist() == [tgt_size - 1, tgt_size - 2]


def test_cache_of_nothing(tmp_path: Path, tokenizer: Tokenizer) -> None:
    cache = build(tmp_path / "c", tokenizer, keep=np.zeros(len(SRC), dtype=bool))
    assert len(cache) == 0 and len(cache.src_lengths) == 0


def test_an_error_while_building_leaves_nothing(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def chunks() -> Any:
        yield SRC[:10], TGT[:10]
        raise DataError("the corpus broke off")

    with pytest.raises(DataError, match="broke off"):
        build_cache(tmp_path / "c", chunks(), KEEP, tokenizer, max_length=40, max_ratio=2.0)
    assert list(tmp_path.iterdir()) == []


def damage_meta(change: Any) -> Any:
    def damage(folder: Path) -> None:
        path = folder / "meta.json"
        meta = path.read_text()
        path.write_text(change(meta))
        assert len(path.read_text()) == len(meta)  # so that sizes alone do not show it

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "src.tokens").unlink(),
        lambda folder: (folder / "meta.json").unlink(),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "tgt.tokens").write_bytes((folder / "tgt.tokens").read_bytes()[:-1]),
        lambda folder: (folder / "src.offsets").write_bytes(b""),
        lambda folder: (folder / "tgt.offsets").write_bytes((folder / "tgt.offsets").read_bytes() + b"x"),
        damage_meta(lambda meta: "x" + meta[1:]),
        damage_meta(lambda meta: meta.replace("uint16", "uint17")),
        damage_meta(lambda meta: meta.replace('"dtype"', '"dtypo"')),
        damage_meta(lambda meta: "[]" + " " * (len(meta) - 2)),
        shutil.rmtree,
    ],
    ids=["no tokens", "no meta", "no manifest", "bad manifest", "short", "empty", "long", *"abcd", "gone"],
)
def test_damage_is_a_data_error_that_says_what_to_do(tmp_path: Path, tokenizer: Tokenizer, damage: Any) -> None:
    build(tmp_path / "c", tokenizer)
    TokenCache(tmp_path / "c")  # the negative control: whole, it opens
    damage(tmp_path / "c")
    with pytest.raises(DataError, match=r"is damaged: .*Delete it; it will be built again") as caught:
        TokenCache(tmp_path / "c")
    assert str(tmp_path / "c") in str(caught.value)


def test_cache_of_another_version(tmp_path: Path, tokenizer: Tokenizer) -> None:
    build(tmp_path / "c", tokenizer)
    damage_meta(lambda meta: meta.replace('"format_version": 1', '"format_version": 7'))(tmp_path / "c")
    with pytest.raises(DataError, match="of another version of nmt"):
        TokenCache(tmp_path / "c")
