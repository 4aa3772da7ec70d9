"""The way of the data: batches a second, building the token cache against SentencePiece itself, memory on 2 GB of text.

The first two are measured on ../shared/data/mixed, or on the toy corpus where that is absent. Another folder that holds
`mixed/` can be given as an argument.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from figures import REAL_DATA, figure_line
from nmt.config import TokenizerConfig
from nmt.data.batching import BatchStream
from nmt.data.cache import TokenCache, build_cache
from nmt.data.sources import CHUNK_PAIRS, Chunk
from nmt.data.toy import write_toy
from nmt.text.lines import read_file
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

PIECES = 10_000
TOKENS_PER_BATCH = (4096, 25_000)


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        src, tgt = _corpus(folder)
        print(f"{len(src):,} pairs")
        options = TokenizerConfig(vocab_size=PIECES)
        tokenizer = Tokenizer(train_sentencepiece(src[::4] + tgt[::4], options))
        starts = range(0, len(src), CHUNK_PAIRS)
        chunks = [(src[start : start + CHUNK_PAIRS], tgt[start : start + CHUNK_PAIRS]) for start in starts]
        _batches(folder, chunks, tokenizer)


def _corpus(folder: Path) -> tuple[list[str], list[str]]:
    prefix = Path(sys.argv[1] if len(sys.argv) > 1 else REAL_DATA) / "mixed" / "train"
    if not prefix.with_suffix(".en").is_file():
        write_toy(folder)
        prefix = folder / "train"
    return read_file(prefix.with_suffix(".en")), read_file(prefix.with_suffix(".de"))


def _batches(folder: Path, chunks: list[Chunk], tokenizer: Tokenizer) -> None:
    """Target tokens a second of three epochs of batches, drawn and collated by one thread."""
    everything = np.ones(sum(len(src) for src, _ in chunks), dtype=bool)
    build_cache(folder / "cache", chunks, everything, tokenizer, max_length=256, max_ratio=3.0)
    cache = TokenCache(folder / "cache")
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


main()
