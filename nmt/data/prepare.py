"""From the sources of a config to what training reads: tokenizer, token caches, validation text.

Everything made is kept under a cache folder, keyed by the content it was made from, and found again there.
"""

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.config import Config, DataConfig, Source
from nmt.data.cache import FORMAT_VERSION, TokenCache, build_cache, is_whole, key_of
from nmt.data.clean import Scan, length_rules, occur_in, scan
from nmt.data.domains import corpora_of, selection_of
from nmt.data.filters import filtered
from nmt.data.sources import Chunk, Say, describe, read_chunks, refuse_to_overwrite
from nmt.data.tokenizers import check_tags, given_tokenizer, trained_tokenizer
from nmt.errors import ConfigError, DataError
from nmt.storage.atomic import atomic_stream, remove_stale
from nmt.text.tokenizer import Tokenizer, tagged

_MANY = 0.05  # share of the training pairs
SIDES = {"src": "source", "tgt": "target"}
_MOST_UNKNOWN, _FEW_UNKNOWN = 0.05, 10  # of the pieces of a side: more are refused, but never so few


@dataclass
class Prepared:
    """All that training reads.

    Attributes:
        valid_src, valid_tgt: raw validation text, for BLEU of real translations.
        counts: pairs read, kept, and dropped by rule, by split.
        one_sentence_share: how many of the training source lines are one sentence each, from 0 to 1, by a sample.
    """

    tokenizer: Tokenizer
    train: TokenCache
    valid: TokenCache
    valid_src: list[str]
    valid_tgt: list[str]
    counts: dict[str, dict[str, int]]
    one_sentence_share: float | None = None

    def to_json(self) -> str:
        """As one process hands it to others that see the same cache folder."""
        models = [self.tokenizer.src_model] + ([] if self.tokenizer.joint else [self.tokenizer.tgt_model])
        encoded = [base64.b64encode(model).decode() for model in models]
        folders = [str(self.train.folder), str(self.valid.folder)]
        return json.dumps([encoded, folders, self.valid_src, self.valid_tgt, self.counts, self.one_sentence_share])

    @classmethod
    def from_json(cls, text: str) -> "Prepared":
        """The other end of `to_json`. Raises: DataError."""
        models, (train, valid), *rest = json.loads(text)
        tokenizer = Tokenizer(*map(base64.b64decode, models))
        return cls(tokenizer, TokenCache(Path(train)), TokenCache(Path(valid)), *rest)


def prepare(
    config: Config,
    cache: Path,
    say: Say,
    *,
    tokenizer: Tokenizer | None = None,
    threads: int = 0,
    text_out: Path | None = None,
) -> Prepared:
    """Scan, clean, train the tokenizer if none is given, build the token caches that are missing.

    The corpus is read once to scan it, and once more to encode it if its cache is missing.

    Args:
        cache: folder that keeps what is made.
        say: called with each line of progress.
        tokenizer: use this one (resuming, fine-tuning) instead of training or reading one.
        threads: for encoding; 0 means all cores.
        text_out: write the training pairs that are kept to text_out.<src_lang> and text_out.<tgt_lang>.
    Raises: DataError, ConfigError, StorageError.
    """
    data, threads = config.data, threads or os.cpu_count() or 1
    corpora = corpora_of(data)
    if text_out is not None:
        _text_paths(text_out, data)
    cache.mkdir(parents=True, exist_ok=True)
    remove_stale(cache)
    say(f"reading {', '.join(describe(source, data) for source in data.train)}")
    tokenizer = tokenizer or given_tokenizer(config)
    sample_lines = config.tokenizer.train_lines if tokenizer is None else 0
    train, ends = _scan(
        config,
        corpora,
        say,
        remove_duplicates=data.remove_duplicates,
        sample_lines=0 if data.filters else sample_lines,
        src_lang=data.src_lang,
    )
    _refuse_no_domain(data, train)
    _warn_of_odd_pairs(train, say)
    keep, train_dropped = train.keep.copy(), train.dropped
    if data.filters:
        say(f"filtering by {', '.join(data.filters)}")
        keep, by_filter = filtered(lambda: _untagged(config, corpora), data, keep, threads)
        train_dropped = train_dropped + by_filter
        if sample_lines:
            train.sample(_untagged(config, corpora), keep, sample_lines, config.training.seed)
    if data.valid is None:
        valid_sources, valid_ends = corpora, ends
        valid_keep = _hold_out(keep, data.valid_size, config.training.seed)
        valid_dropped = Counter[str]()
        keep &= ~valid_keep
        train_dropped = train_dropped + Counter({"held out": int(valid_keep.sum())})
    else:
        valid_sources = [data.valid]
        valid, valid_ends = _scan(config, valid_sources, say, remove_duplicates=False, sample_lines=0)
        valid_keep, valid_dropped = valid.keep, valid.dropped
        _warn_of_overlap(train, keep, valid, say)
    if tokenizer is None:
        tokenizer = trained_tokenizer(config, train, cache, say)
    train.drop_sample()
    check_tags(config, tokenizer)
    # Validation is read before training text is encoded, so that its mistakes show early.
    valid_src, valid_tgt = _texts(config, valid_sources, valid_keep)
    build = _CacheBuilder(config, tokenizer, cache, say, threads)
    valid_cache = build("valid", valid_sources, valid_keep, key_of(valid_src, valid_tgt), valid_ends)
    _refuse_unknown("valid", valid_cache, say)
    train_cache = build("train", corpora, keep, train.content_hash, ends)
    _refuse_unknown("train", train_cache, say)
    _tell_domains(data, train_cache, say)
    if text_out is not None:
        _write_text(text_out, config, keep, tokenizer)
    counts = {
        "train": _counts(len(train.keep), train_dropped, train_cache),
        "valid": _counts(len(valid_src) + valid_dropped.total(), valid_dropped, valid_cache),
    }
    for split, of_split in counts.items():
        say(f"{split}: " + ", ".join(f"{number:,} {rule}" for rule, number in of_split.items()))
        if data.valid is None and not of_split["read"]:
            raise DataError(
                f"There are too few training pairs to hold some out for validation: {counts['train']}. Give data.valid."
            )
        if not of_split["kept"]:
            raise DataError(
                f"No {split} pair is left of {of_split['read']:,} after cleaning ({of_split}). Check that the two "
                f"sides are translations of each other, and data.max_length and data.max_length_ratio."
            )
    return Prepared(tokenizer, train_cache, valid_cache, valid_src, valid_tgt, counts, train.one_sentence_share)


def _scan(
    config: Config,
    sources: list[Source],
    say: Say,
    *,
    remove_duplicates: bool,
    sample_lines: int,
    src_lang: str | None = None,
) -> tuple[Scan, list[int]]:
    """Returns: what was found, without tags; and how many pairs were read at the end of each source."""
    ends: list[int] = []

    def chunks() -> Iterator[Chunk]:
        read = 0
        for source in sources:
            for chunk in read_chunks(source, config.data, say):
                read += len(chunk[0])
                yield chunk
            ends.append(read)

    seed = config.training.seed
    found = scan(
        chunks(),
        remove_duplicates=remove_duplicates,
        sample_lines=sample_lines,
        seed=seed,
        src_lang=src_lang,
        hold_hashes=config.data.valid is not None,
    )
    return found, ends


def _refuse_no_domain(data: DataConfig, train: Scan) -> None:
    """Raises: DataError."""
    if data.train_domain is not None and not len(train.keep):
        raise DataError(f"No pair is left: data.domain_weights is 0 for every domain of {data.train_domain}.")


def _tell_domains(data: DataConfig, train: TokenCache, say: Say) -> None:
    for source, pairs in zip(corpora_of(data), train.source_sizes, strict=False):
        if selection := selection_of(source):
            say(f"train: {pairs:,} pairs of {selection}, weight {source.weight:g}")


def _warn_of_odd_pairs(train: Scan, say: Say) -> None:
    """Cheap signs of a corpus that wants a closer look."""
    pairs = len(train.keep)
    for number, what in ((train.identical, "the same text on both sides"), (train.dropped["empty"], "a blank side")):
        if number > _MANY * pairs:
            say(f"warning: {number:,} of {pairs:,} training pairs have {what}; nmt data check shows them")


def _warn_of_overlap(train: Scan, keep: NDArray[np.bool_], valid: Scan, say: Say) -> None:
    """Validation text that is trained on flatters its score."""
    assert train.hashes is not None and valid.hashes is not None
    shared = int((keep & occur_in(train.hashes, valid.hashes[valid.keep])).sum())
    train.hashes = valid.hashes = None
    if shared:
        say(
            f"warning: {shared:,} training pairs are in the validation text too, which flatters its scores; "
            f"nmt data check shows them"
        )


def _untagged(config: Config, sources: list[Source]) -> Iterator[Chunk]:
    """The pairs of these sources, as they were read."""
    for source in sources:
        yield from read_chunks(source, config.data)


def _chunks(config: Config, sources: list[Source]) -> Iterator[Chunk]:
    """The pairs of these sources, each source text behind the tag of its source."""
    for source in sources:
        for src_lines, tgt_lines in read_chunks(source, config.data):
            yield tagged(source.tag, src_lines), tgt_lines


def _hold_out(keep: NDArray[np.bool_], size: int, seed: int) -> NDArray[np.bool_]:
    """A random set of kept pairs for validation: `size`, but at most a tenth of them."""
    num_kept = int(keep.sum())
    chosen = np.zeros(num_kept, dtype=bool)
    chosen[np.random.default_rng(seed).choice(num_kept, size=min(size, num_kept // 10), replace=False)] = True
    held_out = np.zeros_like(keep)
    held_out[keep] = chosen
    return held_out


def _texts(config: Config, sources: list[Source], keep: NDArray[np.bool_]) -> tuple[list[str], list[str]]:
    src: list[str] = []
    tgt: list[str] = []
    position = 0
    for src_lines, tgt_lines in _chunks(config, sources):
        for place in np.flatnonzero(keep[position : position + len(src_lines)]):
            src.append(src_lines[place])
            tgt.append(tgt_lines[place])
        position += len(src_lines)
    return src, tgt


def _write_text(prefix: Path, config: Config, keep: NDArray[np.bool_], tokenizer: Tokenizer) -> None:
    """The pairs that the token cache holds, as they were read; each file appears when it is complete."""
    data, position = config.data, 0
    prefix.parent.mkdir(parents=True, exist_ok=True)
    src_path, tgt_path = _text_paths(prefix, data)
    with atomic_stream(src_path) as src_file, atomic_stream(tgt_path) as tgt_file:
        for source in corpora_of(data):
            for src_lines, tgt_lines in read_chunks(source, data):
                kept = np.flatnonzero(keep[position : position + len(src_lines)]).tolist()
                position += len(src_lines)
                src, tgt = [src_lines[i] for i in kept], [tgt_lines[i] for i in kept]
                encoded = tokenizer.encode_src(tagged(source.tag, src)), tokenizer.encode_tgt(tgt)
                lengths = [np.array(list(map(len, ids)), np.int64) for ids in encoded]
                broken = length_rules(lengths[0], lengths[1], data.max_length, data.max_length_ratio)
                fits = np.flatnonzero(~np.logical_or.reduce(list(broken.values()))).tolist()
                for file, lines in ((src_file, src), (tgt_file, tgt)):
                    file.write("".join(f"{lines[i]}\n" for i in fits).encode("utf-8", "replace"))


def _text_paths(prefix: Path, data: DataConfig) -> tuple[Path, Path]:
    """Where kept text goes. Raises: ConfigError, if that is where it comes from, or one file for both sides."""
    src, tgt = (prefix.with_name(f"{prefix.name}.{language}") for language in (data.src_lang, data.tgt_lang))
    if src == tgt:
        raise ConfigError(f"--text-out writes PREFIX.<language>, but both languages are called {data.src_lang}.")
    refuse_to_overwrite([src, tgt], data)
    return src, tgt


def _refuse_unknown(split: str, cache: TokenCache, say: Say) -> None:
    """Say how many pieces are <unk>. Raises: DataError, if they are so many that text and tokenizer do not match."""
    shares = {side: unknown / max(1, pieces) for side, (unknown, pieces) in cache.unknown.items()}
    if shares:  # caches of earlier versions say nothing
        say(f"{split}: unknown pieces: {shares['src']:.2%} of the source, {shares['tgt']:.2%} of the target")
    for side, (unknown, pieces) in cache.unknown.items():
        if unknown > max(_FEW_UNKNOWN, _MOST_UNKNOWN * pieces):
            raise DataError(
                f"{unknown / pieces:.0%} of the {SIDES[side]} pieces of the {split} text are <unk> ({unknown:,} of "
                f"{pieces:,}; {_MOST_UNKNOWN:.0%} are allowed): the tokenizer does not know their characters. Is the "
                f"file in the right language, and the tokenizer the right one? Else train one with "
                f"tokenizer.byte_fallback = true, or a higher tokenizer.character_coverage."
            )


@dataclass
class _CacheBuilder:
    """Finds the token cache of a split by its content, or builds it."""

    config: Config
    tokenizer: Tokenizer
    folder: Path
    say: Say
    threads: int

    def __call__(
        self, split: str, sources: list[Source], keep: NDArray[np.bool_], content: str, ends: list[int]
    ) -> TokenCache:
        """`ends`: how many pairs are read at the end of each source."""
        data = self.config.data
        key: dict[str, Any] = {
            "content": content,
            "keep": hashlib.sha256(np.packbits(keep).tobytes()).hexdigest(),
            "tokenizer": self.tokenizer.sha256,
            "rules": [data.max_length, data.max_length_ratio],
            "format": FORMAT_VERSION,
        }
        # What earlier versions did not have is named where it is used alone: their caches are found again.
        if any(source.weight != 1 or selection_of(source) for source in sources):
            key["ends"] = ends
        if any(source.tag for source in sources):
            key["tags"] = [[source.tag, end] for source, end in zip(sources, ends, strict=True)]
        folder = self.folder / f"{split}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}"
        if not is_whole(folder, self.say):
            self.say(f"encoding {int(keep.sum()):,} {split} pairs")
            build_cache(
                folder,
                _chunks(self.config, sources),
                keep,
                self.tokenizer,
                max_length=data.max_length,
                max_ratio=data.max_length_ratio,
                threads=self.threads,
                source_ends=ends,
            )
        return TokenCache(folder)


def _counts(read: int, dropped: Counter[str], cache: TokenCache) -> dict[str, int]:
    return {
        "read": read,
        "kept": len(cache),
        **{rule: n for rule, n in (dropped + Counter(cache.dropped)).items() if n},
    }
