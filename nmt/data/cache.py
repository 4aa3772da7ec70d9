"""The token cache: a corpus as flat arrays of piece ids on disk, memory-mapped, keyed by content.

A cache folder holds `{src,tgt}.tokens` (uint16 or uint32), `{src,tgt}.offsets` (uint64, one more than pairs),
`meta.json` and a manifest. It appears complete or not at all.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.clean import length_rule
from nmt.data.sources import Chunk
from nmt.errors import DataError
from nmt.storage.atomic import atomic_folder
from nmt.storage.manifest import damage
from nmt.text.tokenizer import Tokenizer

FORMAT_VERSION = 1


class TokenCache:
    """Random access to the token ids of a corpus; nothing but touched pages is in memory.

    Attributes:
        src_lengths, tgt_lengths: int32 (pairs,), pieces a side, EOS included.
        dropped: pairs dropped while building, by rule.
    """

    def __init__(self, folder: Path) -> None:
        problem = damage(folder, hashes=False)
        if problem:
            raise DataError(f"The token cache {folder} is damaged: {problem}. Delete it; it will be built again.")
        try:
            meta = json.loads((folder / "meta.json").read_text())
            version, dtype = meta["format_version"], np.dtype(meta["dtype"])
            self.dropped: dict[str, int] = meta["dropped"]
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
        self.src_lengths = np.diff(self._offsets["src"]).astype(np.int32)
        self.tgt_lengths = np.diff(self._offsets["tgt"]).astype(np.int32)

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


def build_cache(
    folder: Path,
    chunks: Iterable[Chunk],
    keep: NDArray[np.bool_],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    max_ratio: float,
    threads: int = 1,
) -> None:
    """Encode the pairs with `keep` set and write them to `folder`. Raises: StorageError."""
    largest_id = max(tokenizer.src_vocab_size, tokenizer.tgt_vocab_size) - 1
    dtype = np.dtype(np.uint16 if largest_id <= np.iinfo(np.uint16).max else np.uint32)
    dropped: Counter[str] = Counter()
    with atomic_folder(folder) as temporary:
        writers = {side: _Writer(temporary, side, dtype) for side in ("src", "tgt")}
        position = 0
        for src_lines, tgt_lines in chunks:
            kept = np.flatnonzero(keep[position : position + len(src_lines)])
            position += len(src_lines)
            src_ids = tokenizer.encode_src([src_lines[i] for i in kept], threads)
            tgt_ids = tokenizer.encode_tgt([tgt_lines[i] for i in kept], threads)
            for src, tgt in zip(src_ids, tgt_ids, strict=True):
                rule = length_rule(len(src), len(tgt), max_length, max_ratio)
                if rule:
                    dropped[rule] += 1
                else:
                    writers["src"].add(src)
                    writers["tgt"].add(tgt)
            for writer in writers.values():
                writer.flush()
        for writer in writers.values():
            writer.close()
        meta = {"format_version": FORMAT_VERSION, "dtype": dtype.name, "dropped": dict(dropped)}
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1))


class _Writer:
    """Appends sentences to one side's token and offset files."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype[Any]) -> None:
        self._tokens = (folder / f"{side}.tokens").open("wb")
        self._offsets = (folder / f"{side}.offsets").open("wb")
        self._dtype = dtype
        self._pending: list[list[int]] = []
        self._end = np.uint64(0)
        self._offsets.write(np.zeros(1, dtype=np.uint64).tobytes())

    def add(self, ids: list[int]) -> None:
        self._pending.append(ids)

    def flush(self) -> None:
        lengths = np.array([len(ids) for ids in self._pending], dtype=np.uint64)
        flat = [piece for ids in self._pending for piece in ids]
        self._tokens.write(np.array(flat, dtype=self._dtype).tobytes())
        self._offsets.write((self._end + np.cumsum(lengths, dtype=np.uint64)).tobytes())
        self._end += np.uint64(len(flat))
        self._pending.clear()

    def close(self) -> None:
        self._tokens.close()
        self._offsets.close()


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # a plain array indexes faster
