"""The way of the data: batches a second, building the token cache against SentencePiece itself, memory on 2 GB of text.

The first two are measured on ../shared/data/mixed, or on the toy corpus where that is absent. Another folder that holds
`mixed/` can be given as an argument.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from figures import REAL_DATA, ROOT, figure_line, private_memory
from nmt.config import Config, TokenizerConfig, parse_config
from nmt.data.batching import BatchStream
from nmt.data.cache import TokenCache, build_cache
from nmt.data.clean import scan
from nmt.data.sources import read_chunks
from nmt.data.toy import write_toy
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

PIECES = 10_000
TOKENS_PER_BATCH = (4096, 25_000)
TURNS = 3
LARGE_MB, SMALLER_MB = 2000, 100  # text, both sides together; the smaller one is more than a tokenizer's sample


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = _corpus(folder)
        chunks = list(read_chunks(config.data.train[0], config.data))
        src, tgt = ([line for chunk in chunks for line in chunk[side]] for side in (0, 1))
        print(f"{len(src):,} pairs, {PIECES:,} pieces")
        tokenizer = Tokenizer(train_sentencepiece(src[::4] + tgt[::4], config.tokenizer))
        _building(folder, config, src, tgt, tokenizer)
        _batches(TokenCache(folder / "cache"), tokenizer)
        _memory(folder, src, tgt)


def _corpus(folder: Path) -> Config:
    """The config of a run on it."""
    prefix = Path(sys.argv[1] if len(sys.argv) > 1 else REAL_DATA) / "mixed" / "train"
    if not prefix.with_suffix(".en").is_file():
        write_toy(folder)
        prefix = folder / "train"
    data = {"train": str(prefix), "src_lang": "en", "tgt_lang": "de"}
    return parse_config({"data": data, "tokenizer": {"vocab_size": PIECES}, "training": {"max_updates": 1}}, "bench")


def _building(folder: Path, config: Config, src: list[str], tgt: list[str], tokenizer: Tokenizer) -> None:
    """Building a cache from the text files, against SentencePiece turning lines in memory into ids, in turns.

    The best of the turns counts on both sides: whatever else the machine does only adds.
    """
    threads, keep = os.cpu_count() or 1, np.ones(len(src), dtype=bool)

    def build() -> None:
        chunks = read_chunks(config.data.train[0], config.data)
        build_cache(folder / "cache", chunks, keep, tokenizer, max_length=256, max_ratio=3.0, threads=threads)

    def encode(lines_at_once: int, out_type: Any) -> None:
        for start in range(0, len(src), lines_at_once):
            for side in (src, tgt):
                tokenizer._src.encode(side[start : start + lines_at_once], num_threads=threads, out_type=out_type)

    def look_through() -> None:
        scan(read_chunks(config.data.train[0], config.data), remove_duplicates=True, sample_lines=1_000_000, seed=1)

    ways: dict[str, Callable[[], None]] = {
        "scan: reading, cleaning, duplicates, sample": look_through,
        "build_cache from the files": build,
        "SentencePiece, all lines at once, lists": lambda: encode(len(src), int),
        "SentencePiece, 10,000 lines at once, lists": lambda: encode(10_000, int),
        "SentencePiece, all lines at once, NumPy": lambda: encode(len(src), "numpy"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(TURNS):
        for name, way in list(ways.items())[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    speeds = {name: len(src) / min(of_way) for name, of_way in seconds.items()}
    for name, speed in speeds.items():
        print(f"{name}, {threads} threads: {speed:,.0f} pairs/s (of {', '.join(f'{s:.1f} s' for s in seconds[name])})")
    scanning, building, *own = speeds.values()
    print(f"both passes over the text: {1 / (1 / scanning + 1 / building):,.0f} pairs/s")
    share = building / max(own)
    print(figure_line("cache_building_share", f"{share:.2f}", ">= 0.80 of SentencePiece's own speed", share >= 0.8))


def _batches(cache: TokenCache, tokenizer: Tokenizer) -> None:
    """Target tokens a second of three epochs of batches, drawn and collated by one thread."""
    speeds = [_tokens_per_s(cache, tokenizer, budget) for budget in TOKENS_PER_BATCH]
    for budget, speed in zip(TOKENS_PER_BATCH, speeds, strict=True):
        print(f"{budget:,} tokens a batch: {speed:,.0f} target tokens/s")
    slower = min(speeds)
    print(figure_line("loader_tokens_per_s_per_core", f"{slower:,.0f}", ">= 2,000,000", slower >= 2e6))


def _tokens_per_s(cache: TokenCache, tokenizer: Tokenizer, budget: int) -> float:
    began, tokens = time.perf_counter(), 0
    stream = BatchStream(cache, tokenizer.special, budget, seed=1)
    while stream.position.epoch < 3:
        tokens += stream.batch(stream.draw()).num_tokens
    return tokens / (time.perf_counter() - began)


def _memory(folder: Path, src: list[str], tgt: list[str]) -> None:
    """The private memory of `nmt train` on 2 GB of text, above that on 1 MB.

    The model and its batches are tiny, so that their memory does not hide that of the data.
    """
    quick = TokenizerConfig(vocab_size=8000, type="unigram")  # encodes fastest
    model = folder / "ready.model"
    model.write_bytes(train_sentencepiece(src[::8] + tgt[::8], quick))
    ready = {"src_model": str(model)}
    trained = {"vocab_size": 8000}
    for name, target_mb, tokenizer in (("", LARGE_MB, ready), ("_with_tokenizer", SMALLER_MB, trained)):
        small, _ = _peak_mb(folder, src, tgt, 1, tokenizer)
        large, minutes = _peak_mb(folder, src, tgt, target_mb, tokenizer)
        print(f"nmt train at most {small:,.0f} MB on 1 MB, {large:,.0f} MB on {target_mb:,} MB, in {minutes:.1f} min")
        growth, asked = large - small, f"<= 600 at 2 GB; measured at {target_mb:,} MB"
        print(figure_line(f"private_memory_growth{name}_mb", f"{growth:,.0f}", asked, growth <= 600))


def _peak_mb(
    folder: Path, src: list[str], tgt: list[str], target_mb: int, tokenizer: dict[str, object]
) -> tuple[float, float]:
    """Train for a few updates on this much text. Returns: the most private memory of all processes, and minutes."""
    work = folder / "memory"
    work.mkdir()
    pairs = _write_corpus(work, src, tgt, target_mb * 10**6)
    tables = {
        "data": {"dir": str(work), "train": "train", "valid": "valid"},
        "tokenizer": tokenizer,
        "model": {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 64, "num_heads": 2, "d_ff": 128},
        "training": {
            "max_updates": 4,
            "tokens_per_batch": 4096,
            "accumulation": 1,
            "log_every": 1,
            "precision": "fp32",
        },
        "validation": {"every": 4, "max_sentences": 5},
    }
    config = parse_config(tables, "bench").to_toml()
    (work / "bench.toml").write_text(config)
    print(f"training on {pairs:,} pairs, {target_mb:,} MB", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt", "train", work / "bench.toml", "--out", work / "run"], cwd=ROOT
    )
    with private_memory(process.pid, every_s=0.05) as peak_mb:
        code = process.wait()
    if code:
        sys.exit(f"nmt train ended with {code}")
    shutil.rmtree(work)
    return peak_mb[0], (time.monotonic() - began) / 60


def _write_corpus(work: Path, src: list[str], tgt: list[str], target_bytes: int) -> int:
    """Write this much text to train on: the corpus again and again, its lines numbered so that no pair is repeated."""
    sides = {"en": src, "de": tgt}
    pair_bytes, pairs = len("".join([*src, *tgt]).encode()) / len(src) + 2 * len(" 12345678\n"), 0
    for language, lines in sides.items():
        (work / f"valid.{language}").write_text("".join(f"{line}\n" for line in lines[:100]))
    with (work / "train.en").open("wb") as src_file, (work / "train.de").open("wb") as tgt_file:
        while (left := target_bytes - src_file.tell() - tgt_file.tell()) > 0:
            number = f" {pairs}\n"
            count = min(len(src), int(left / pair_bytes) + 1)
            src_file.write("".join(line + number for line in src[:count]).encode())
            tgt_file.write("".join(line + number for line in tgt[:count]).encode())
            pairs += count
    return pairs


main()
