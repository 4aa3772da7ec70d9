"""The token cache says what the tokenizer says, and refuses to be read when damaged."""

import json
import mmap
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.config import TokenizerConfig
from nmt.data.cache import TokenCache, _in_threads, build_cache
from nmt.errors import DataError
from nmt.text.tokenizer import SpecialIds, Tokenizer, train_sentencepiece

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


def passes(src_length: int, tgt_length: int) -> bool:
    longer, shorter = max(src_length, tgt_length), min(src_length, tgt_length)
    return longer <= 40 and longer <= 2 * shorter + 4


@pytest.mark.parametrize("chunk", [1, 7, 120])
def test_cache_equals_direct_tokenization(tmp_path: Path, tokenizer: Tokenizer, chunk: int) -> None:
    cache = build(tmp_path / "c", tokenizer, chunk)
    pairs = zip(tokenizer.encode_src(SRC), tokenizer.encode_tgt(TGT), KEEP, strict=True)
    kept = [(src, tgt) for src, tgt, keep in pairs if keep]
    expected = [(src, tgt) for src, tgt in kept if passes(len(src), len(tgt))]
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


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_building_is_deterministic_to_the_byte(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    first = contents(build(tmp_path / "first", tokenizer, max_length=24).folder)
    files = ["manifest.json", "meta.json", "src.offsets", "src.tokens", "tgt.offsets", "tgt.tokens"]
    assert sorted(first) == files and json.loads(first["meta.json"])["dropped"].keys() == {"too long", "length ratio"}
    same = []
    for number, (threads, chunk, portion) in enumerate(product([1, 2, 5], [7, 50, 120], [3, 2000])):
        monkeypatch.setattr("nmt.data.cache._PORTION_PAIRS", portion)
        cache = build(tmp_path / str(number), Shuffled(tokenizer), chunk, threads=threads, max_length=24)
        same.append(contents(cache.folder) == first)
    monkeypatch.setattr("nmt.data.cache._in_threads", in_order_of_completion)  # negative control
    assert contents(build(tmp_path / "wrong", Shuffled(tokenizer), 7, threads=5, max_length=24).folder) != first
    figure("cache_bytes", f"equal in {sum(same)} of {len(same)} ways of building", "all", all(same))


class Shuffled:
    """A tokenizer that takes longest for what comes first, so that threads end out of turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.src_vocab_size, self.tgt_vocab_size = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size
        self.encode_tgt, self._tokenizer, self._called = tokenizer.encode_tgt, tokenizer, count()
        self.special = tokenizer.special

    def encode_src(self, lines: list[str], num_threads: int) -> list[list[int]]:
        time.sleep(0.01 / (1 + next(self._called)))
        return self._tokenizer.encode_src(lines, num_threads)


def in_order_of_completion(work: Callable[[Any], Any], items: Iterable[Any], threads: int) -> Iterator[Any]:
    with ThreadPoolExecutor(threads) as pool:
        yield from (future.result() for future in as_completed([pool.submit(work, item) for item in items]))


def test_no_more_than_two_items_a_thread_are_under_way() -> None:
    taken: list[int] = []
    results = _in_threads(lambda item: item * item, (taken.append(n) or n for n in range(100)), threads=3)  # type: ignore[func-returns-value]
    for number, result in enumerate(results):
        assert result == number**2 and len(taken) <= min(100, number + 6)
    assert len(taken) == 100


def test_the_error_of_a_thread_is_raised_as_it_is(tmp_path: Path) -> None:
    class Broken(WideTokenizer):
        def encode_tgt(self, lines: list[str], num_threads: int) -> list[list[int]]:
            raise MemoryError("no room for a line")

    with pytest.raises(MemoryError, match="no room for a line"):
        build(tmp_path / "c", Broken(300, 300), chunk=10, threads=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_building_ends_the_process_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """A thread that is in the middle of its work is not waited for, and nothing is left under the final name."""
    code = """
import os, sys, time
from pathlib import Path
import numpy as np
from nmt.data.cache import build_cache
from nmt.training.interrupt import StopRequest

class Slow:
    src_vocab_size = tgt_vocab_size = 300
    def encode_src(self, lines, num_threads):
        os.write(1, b"under way\\n")  # at once: two threads say it
        time.sleep(600)
    encode_tgt = encode_src

with StopRequest(silent=True).handle_signals():
    build_cache(Path(sys.argv[1]), [(["a"], ["b"])] * 9, np.ones(9, bool), Slow(), max_length=9, max_ratio=2, threads=2)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "under way\n"
        process.send_signal(number)
        assert process.wait(timeout=60) == (-9 if number == signal.SIGKILL else 128 + number)
    assert not (tmp_path / "c").exists()


class WideTokenizer:
    """Stands for a tokenizer of any vocabulary: every line is its last two ids."""

    def __init__(self, src_size: int, tgt_size: int) -> None:
        self.src_vocab_size, self.tgt_vocab_size, self.special = src_size, tgt_size, SpecialIds()

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
