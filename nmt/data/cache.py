"""The token cache: a corpus as flat arrays of piece ids on disk, memory-mapped, keyed by content.

A cache folder holds `{src,tgt}.tokens` (uint16 or uint32), `{src,tgt}.offsets` (uint64, one more than pairs),
`meta.json` and a manifest. It appears complete or not at all.
"""

import hashlib
import json
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nmt.data.clean import LENGTH_RULES, length_rules
from nmt.data.sources import Chunk, Say
from nmt.errors import DataError
from nmt.storage.atomic import atomic_folder, remove_folder
from nmt.storage.manifest import damage
from nmt.text.tokenizer import Tokenizer

FORMAT_VERSION = 1
_PORTION_PAIRS = 2000  # encoded at once by one thread

Item = TypeVar("Item")
Result = TypeVar("Result")


class TokenCache:
    """Random access to the token ids of a corpus; nothing but touched pages is in memory.

    Attributes:
        src_lengths, tgt_lengths: int32 (pairs,), pieces a side, EOS included.
        dropped: pairs dropped while building, by rule.
        source_sizes: pairs that are left of each source, in their order.
        unknown: by side: pieces that are <unk>, and all, without EOS, of the pairs that were encoded; empty in caches
            of versions that did not count them.
    """

    def __init__(self, folder: Path) -> None:
        problem = damage(folder, hashes=False)
        if problem:
            raise DataError(f"The token cache {folder} is damaged: {problem}. Delete it; it will be built again.")
        try:
            meta = json.loads((folder / "meta.json").read_text())
            version, dtype = meta["format_version"], np.dtype(meta["dtype"])
            self.dropped: dict[str, int] = meta["dropped"]
            self.unknown: dict[str, list[int]] = meta.get("unknown", {})
            source_sizes: list[int] = meta.get("source_sizes", [])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"The token cache {folder} is damaged: meta.json was changed. Delete it; it will be built again."
            ) from error
        if version != FORMAT_VERSION:
            raise DataError(
                f"The token cache {folder} is of another version of nmt. Delete it; it will be built again."
            )
        self.folder = folder
        self._tokens = {side: _map(folder / f"{side}.tokens", dtype) for side in ("src", "tgt")}
        self._offsets = {side: _map(folder / f"{side}.offsets", np.dtype(np.uint64)) for side in ("src", "tgt")}
        self.src_lengths, self.tgt_lengths = map(_lengths, self._offsets.values())
        self.source_sizes = source_sizes or [len(self)]

    def __len__(self) -> int:
        return len(self.src_lengths)

    def src(self, index: int) -> NDArray[Any]:
        """Source ids of a pair, EOS last."""
        return self._slice("src", index)

    def tgt(self, index: int) -> NDArray[Any]:
        """Target ids of a pair, EOS last."""
        return self._slice("tgt", index)

    def gather(self, side: str, indices: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of some pairs on one side, end to end: uint16 or uint32 (tokens,), and int64 (pairs,), how many each.

        Args:
            side: `src` or `tgt`.
        """
        starts = self._offsets[side][indices].astype(np.int64)  # uint64 and int64 together would make floats
        lengths = (self.src_lengths if side == "src" else self.tgt_lengths)[indices].astype(np.int64)
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
        return self._tokens[side][places], lengths

    def _slice(self, side: str, index: int) -> NDArray[Any]:
        offsets = self._offsets[side]
        return self._tokens[side][int(offsets[index]) : int(offsets[index + 1])]


def is_whole(folder: Path, say: Say) -> bool:
    """Whether something cached is there, every checksum verified; what is damaged is removed, to be made again."""
    if not folder.is_dir():
        return False
    problem = damage(folder)
    if problem:
        say(f"warning: {folder} is damaged: {problem}; making it again")
        remove_folder(folder)
    return problem is None


def key_of(*parts: list[str]) -> str:
    """Hex sha256 of some lists of lines, by which what is made of them is named."""
    digest = hashlib.sha256()
    for part in parts:
        for line in part:
            digest.update(line.encode("utf-8", errors="surrogatepass") + b"\n")
    return digest.hexdigest()


def build_cache(
    folder: Path,
    chunks: Iterable[Chunk],
    keep: NDArray[np.bool_],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    max_ratio: float,
    threads: int = 1,
    source_ends: Sequence[int] = (),
) -> None:
    """Encode the pairs with `keep` set and write them to `folder`, the same bytes whatever the chunks and threads.

    Args:
        source_ends: how many pairs have been read at the end of each source, where there are several; no chunk has
            pairs of two.
    Memory: two portions of text a thread. Raises: StorageError.
    """
    largest_id = max(tokenizer.src_vocab_size, tokenizer.tgt_vocab_size) - 1
    dtype = np.dtype(np.uint16 if largest_id <= np.iinfo(np.uint16).max else np.uint32)
    dropped: Counter[str] = Counter()
    unknown = np.zeros((2, 2), dtype=np.int64)
    source_sizes = [0] * max(1, len(source_ends))
    encode = partial(_encode, tokenizer=tokenizer, dtype=dtype, max_length=max_length, max_ratio=max_ratio)
    with atomic_folder(folder) as temporary:
        writers = {side: _Writer(temporary, side) for side in ("src", "tgt")}
        for encoded in _in_threads(encode, _kept(chunks, keep, source_ends), threads):
            writers["src"].write(encoded.src_ids, encoded.src_lengths)
            writers["tgt"].write(encoded.tgt_ids, encoded.tgt_lengths)
            dropped.update(encoded.dropped)
            unknown += encoded.unknown
            source_sizes[encoded.source] += len(encoded.src_lengths)
        for writer in writers.values():
            writer.close()
        counts = {rule: dropped[rule] for rule in LENGTH_RULES if dropped[rule]}
        sides = dict(zip(("src", "tgt"), unknown.tolist(), strict=True))
        meta = {"format_version": FORMAT_VERSION, "dtype": dtype.name, "dropped": counts, "unknown": sides}
        meta["source_sizes"] = source_sizes
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1))


@dataclass(frozen=True)
class _Encoded:
    """Pairs of a source that passed the length rules: ids end to end (tokens,), and how many each has, int64 (pairs,).

    Attributes:
        unknown: int64 (2, 2), by side: pieces that are <unk>, and all, without EOS, before those rules.
    """

    source: int
    src_ids: NDArray[Any]
    src_lengths: NDArray[np.int64]
    tgt_ids: NDArray[Any]
    tgt_lengths: NDArray[np.int64]
    dropped: Counter[str]
    unknown: NDArray[np.int64]


def _kept(chunks: Iterable[Chunk], keep: NDArray[np.bool_], source_ends: Sequence[int]) -> Iterator[tuple[int, Chunk]]:
    """The chunks without the pairs that were dropped, in portions: ids in lists take more memory than text.

    Each with the number of the source that it is of.
    """
    position = 0
    for src_lines, tgt_lines in chunks:
        source = bisect_right(source_ends, position)
        kept = np.flatnonzero(keep[position : position + len(src_lines)]).tolist()
        position += len(src_lines)
        for start in range(0, len(kept), _PORTION_PAIRS):
            portion = kept[start : start + _PORTION_PAIRS]
            yield source, ([src_lines[i] for i in portion], [tgt_lines[i] for i in portion])


def _encode(
    portion: tuple[int, Chunk], tokenizer: Tokenizer, dtype: np.dtype[Any], max_length: int, max_ratio: float
) -> _Encoded:
    source, chunk = portion
    src_ids, src_lengths = _flat(tokenizer.encode_src(chunk[0], 1), dtype)
    tgt_ids, tgt_lengths = _flat(tokenizer.encode_tgt(chunk[1], 1), dtype)
    unk = tokenizer.special.unk
    unknown = [[int((ids == unk).sum()), len(ids) - len(chunk[0])] for ids in (src_ids, tgt_ids)]
    rules = length_rules(src_lengths, tgt_lengths, max_length, max_ratio)
    dropped = Counter({rule: int(broken.sum()) for rule, broken in rules.items()})
    if dropped.total():
        fits = ~np.logical_or.reduce(list(rules.values()))
        src_ids, src_lengths = src_ids[np.repeat(fits, src_lengths)], src_lengths[fits]
        tgt_ids, tgt_lengths = tgt_ids[np.repeat(fits, tgt_lengths)], tgt_lengths[fits]
    return _Encoded(source, src_ids, src_lengths, tgt_ids, tgt_lengths, dropped, np.array(unknown))


def _flat(rows: list[list[int]], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return np.fromiter(chain.from_iterable(rows), dtype=dtype, count=int(lengths.sum())), lengths


def _in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """`map` in threads, in order, at most two items a thread under way. SentencePiece works outside Python's lock."""
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(max_workers=threads) as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) >= 2 * threads:
                    yield _result(pending.popleft())
            while pending:
                yield _result(pending.popleft())
        finally:
            for future in pending:
                future.cancel()


def _result(future: Future[Result]) -> Result:
    """In slices of time: a signal that arrives just before a wait without end would be heeded only after it."""
    while True:
        try:
            return future.result(timeout=0.2)
        except TimeoutError:
            if future.done():
                return future.result()


class _Writer:
    """Appends sentences to one side's token and offset files."""

    def __init__(self, folder: Path, side: str) -> None:
        self._tokens = (folder / f"{side}.tokens").open("wb")
        self._offsets = (folder / f"{side}.offsets").open("wb")
        self._end = 0
        self._offsets.write(np.zeros(1, dtype=np.uint64).tobytes())

    def write(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        self._tokens.write(ids.tobytes())
        self._offsets.write((self._end + np.cumsum(lengths)).astype(np.uint64).tobytes())
        self._end += len(ids)

    def close(self) -> None:
        self._tokens.close()
        self._offsets.close()


def _lengths(offsets: NDArray[np.uint64]) -> NDArray[np.int32]:
    """The differences, without an array of eight bytes a pair in between."""
    lengths = np.empty(len(offsets) - 1, dtype=np.int32)
    return np.subtract(offsets[1:], offsets[:-1], out=lengths, casting="unsafe")


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # a plain array indexes faster
