"""What subword sampling costs: batches of Multi30k with other pieces at every epoch, by processor time of one core."""

import tempfile
import time
from pathlib import Path

import numpy as np

from figures import REAL_DATA, figure_line
from nmt.config import TokenizerConfig
from nmt.data.batching import BatchStream
from nmt.data.cache import TokenCache, build_cache
from nmt.text.subwords import SubwordSampling
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

BUDGET = 4096
TINY_TOKENS_S = 3_500  # target tokens that the smallest model of the recipes learns from, on these two cores
MOST_LOST = 0.05


def main() -> None:
    """Make two epochs of batches with and without sampling, and print the figures."""
    sides = [
        (REAL_DATA / "multi30k" / f"train.{language}").read_text().splitlines()[:6000] for language in ("en", "de")
    ]
    for kind, amounts in (("bpe", (0.1, 0.0)), ("unigram", (0.0, 0.2))):
        options = TokenizerConfig.model_validate({"type": kind, "vocab_size": 8000})
        tokenizer = Tokenizer(train_sentencepiece(sides[0] + sides[1], options))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "cache"
            build_cache(folder, [(sides[0], sides[1])], np.ones(6000, bool), tokenizer, max_length=256, max_ratio=4.0)
            cache = TokenCache(folder)
            plain = seconds_a_token(BatchStream(cache, tokenizer.special, BUDGET, 1))
            sampling = SubwordSampling(tokenizer, *amounts, seed=1)
            sampled = seconds_a_token(BatchStream(cache, tokenizer.special, BUDGET, 1, sampling=sampling))
        lost = (sampled - plain) * TINY_TOKENS_S
        value = f"{1 / sampled:,.0f} target tokens/s a core (plain {1 / plain:,.0f}), {lost:.1%} of a tiny model's time"
        print(figure_line(f"sampling_cost_{kind}", value, f"<= {MOST_LOST:.0%}", lost <= MOST_LOST))


def seconds_a_token(stream: BatchStream) -> float:
    """Of processor time, in the second epoch of two: in the first, words are met for the first time."""
    tokens, began = 0, 0.0
    while stream.position.epoch < 2:
        if stream.position.epoch == 1 and not began:
            tokens, began = 0, time.process_time()
        tokens += stream.batch(stream.draw()).num_tokens
    return (time.process_time() - began) / tokens


if __name__ == "__main__":
    main()
