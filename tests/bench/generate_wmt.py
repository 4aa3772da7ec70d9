"""Generate a made-up parallel corpus in the layout of the hub's `wmt/wmt14` repository.

    python tests/bench/generate_wmt.py OUT [--pairs 4500000] [--seed 1]

`datasets.load_dataset(OUT, "de-en", split="train")` then works offline. Words are made of syllables and
drawn from a Zipf distribution. The target sentence is the source mapped word by word, where one word type in
seven changes places with the word after it. The same OUT, PAIRS and SEED give the same rows again.
"""

import argparse
import random
import time
from collections.abc import Iterator
from math import log2
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

VOCABULARY = 200_000
CHUNK = 50_000  # sentences drawn at once, and rows of one parquet row group
SHORTEST, LONGEST = 10, 40  # words of a sentence
HELD_OUT = 3_000  # rows of validation and of test
TRAIN_SHARDS = 3

# Language -> what a syllable may begin with, its vowels, and what may close it.
SYLLABLES = {
    "de": "b d f g h k l m n p r s t w z sch st br gr kl tr pf|a e i o u e i ä ö ü ei au ie|n r t s l ch ng",
    "en": "b c d f g h j l m n p r s t v w y sh th ch pl cr str|a e i o u e a o ea oo ou ai|n d t s l r ck",
}

README = """---
configs:
- config_name: de-en
  data_files:
  - split: train
    path: de-en/train-*
  - split: validation
    path: de-en/validation-*
  - split: test
    path: de-en/test-*
---

Made-up sentence pairs: `tests/bench/generate_wmt.py` with --pairs {pairs} --seed {seed}.
"""

SCHEMA = pa.schema([("translation", pa.struct([("de", pa.string()), ("en", pa.string())]))])


def make_words(language: str, count: int, seed: int) -> np.ndarray:
    """Return `count` different words of 2 to 12 letters, the most frequent first and shortest."""
    onsets, vowels, codas = (letters.split() for letters in SYLLABLES[language].split("|"))
    rng = random.Random(f"{language} {seed}")
    seen: dict[str, None] = {}
    misses = 0  # since the last new word; every eight make the next one a letter longer
    while len(seen) < count:
        wanted = min(1.0 + 0.45 * log2(len(seen) + 1) + rng.gauss(0, 0.8) + misses // 8, 11)
        word = "" if rng.random() < 0.8 else rng.choice(vowels)
        while len(word) < max(wanted, 2):
            word += rng.choice(onsets) + rng.choice(vowels)
            if len(word) < wanted and rng.random() < 0.7:
                word += rng.choice(codas)
        misses = misses + 1 if len(word) > 12 or word in seen else 0
        if not misses:
            seen[word] = None
    return np.array(list(seen), dtype=object)


def join_sentences(words: np.ndarray, ids: np.ndarray, ends: list[int]) -> pa.Array:
    """Turn the word ids, cut at `ends`, into sentences with a capital and a full stop."""
    tokens = words[ids].tolist()
    spans = zip([0, *ends[:-1]], ends, strict=True)
    return pa.array([" ".join(tokens[a:b]).capitalize() + "." for a, b in spans], pa.string())


def reorder(ids: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Swap the word of every seventh type with its follower in the same sentence."""
    moves = ids % 7 == 3
    moves[ends - 1] = False
    moves[1:] &= ~moves[:-1].copy()  # neighbours never both move, so that swaps don't overlap
    at = np.flatnonzero(moves)
    out = ids.copy()
    out[at], out[at + 1] = ids[at + 1], ids[at]
    return out


def draw_rows(words: dict[str, np.ndarray], cdf: np.ndarray, rows: int, seed: list[int]) -> Iterator[pa.Table]:
    """Yield tables of at most CHUNK rows, `rows` in all."""
    rng = np.random.default_rng(seed)
    for done in range(0, rows, CHUNK):
        lengths = rng.integers(SHORTEST, LONGEST + 1, size=min(CHUNK, rows - done))
        ends = np.cumsum(lengths)
        ids = np.searchsorted(cdf, rng.random(int(ends[-1])), side="right")
        cuts = ends.tolist()
        moved = reorder(ids, ends)
        columns = [join_sentences(words["de"], ids, cuts), join_sentences(words["en"], moved, cuts)]
        struct = pa.StructArray.from_arrays(columns, fields=list(SCHEMA.field("translation").type))
        yield pa.table([struct], schema=SCHEMA)


def generate(out: Path, pairs: int, seed: int) -> None:
    """Write the README and the parquet files of the three splits under `out`."""
    words = {language: make_words(language, VOCABULARY, seed) for language in SYLLABLES}
    cdf = np.cumsum(1.0 / np.arange(1, VOCABULARY + 1))
    cdf /= cdf[-1]
    folder = out / "de-en"
    folder.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(README.format(pairs=pairs, seed=seed), encoding="utf-8")
    splits = [("train", pairs, TRAIN_SHARDS), ("validation", HELD_OUT, 1), ("test", HELD_OUT, 1)]
    for number, (split, rows, shards) in enumerate(splits):
        for shard in range(shards):
            size = rows * (shard + 1) // shards - rows * shard // shards
            path = folder / f"{split}-{shard:05d}-of-{shards:05d}.parquet"
            with pq.ParquetWriter(path, SCHEMA) as writer:
                for table in draw_rows(words, cdf, size, [seed, number, shard]):
                    writer.write_table(table, row_group_size=CHUNK)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Generate a made-up corpus in the layout of wmt/wmt14.")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--pairs", type=int, default=4_500_000, help="rows of the train split")
    parser.add_argument("--seed", type=int, default=1, help="of the words and the sentences")
    args = parser.parse_args()
    began = time.perf_counter()
    generate(args.out, args.pairs, args.seed)
    print(f"{args.pairs} pairs in {time.perf_counter() - began:.1f} s -> {args.out}")
