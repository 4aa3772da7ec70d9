"""A made-up corpus, a tiny recipe and a random model: what tests of training and of the command line share."""

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt.bundle import Bundle, BundleConfig
from nmt.config import Config, DecodingConfig, ModelConfig, TokenizerConfig, parse_config
from nmt.model.build import build_model
from nmt.storage.atomic import atomic_folder
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

_SOURCE = "the a dog cat bird man child sees hears likes small big red old here today and not house tree"
_TARGET = "der ein hund katze vogel mann kind sieht hoert mag klein gross rot alt hier heute und nicht haus baum"
SHAPE = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32}


@dataclass(frozen=True)
class Tiny:
    """A corpus and a recipe on disk.

    Attributes:
        folder: holds train.en, train.de and tiny.toml.
        cache: where runs share tokenizer and token cache.
    """

    folder: Path
    config: Config
    src: Path
    tgt: Path
    toml: Path
    cache: Path


def sentences(pairs: int, seed: int = 1) -> tuple[list[str], list[str]]:
    """Random sentence pairs: word for word, and the other way round."""
    rng = random.Random(seed)
    source_words, target_words = _SOURCE.split(), _TARGET.split()
    rows = [rng.choices(range(len(source_words)), k=rng.randint(2, 9)) for _ in range(pairs)]
    sources = [" ".join(source_words[w] for w in row) for row in rows]
    return sources, [" ".join(target_words[w] for w in row[::-1]) for row in rows]


def write(folder: Path, pairs: int = 200, **sections: dict[str, Any]) -> Tiny:
    """Write a corpus and a recipe into `folder`; `sections` change the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    for language, lines in zip(("en", "de"), sentences(pairs), strict=True):
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
    tables: dict[str, dict[str, Any]] = {
        "data": {"dir": str(folder), "train": "train", "valid_size": 20},
        "tokenizer": {"vocab_size": 150, "byte_fallback": False},
        "model": dict(SHAPE),
        "training": {
            "max_updates": 8,
            "tokens_per_batch": 300,
            "learning_rate": 1e-2,
            "warmup_updates": 4,
            "log_every": 1,
            "keep_last": 3,
            "average_count": 2,
            "precision": "fp32",
        },
        "validation": {"every": 4, "max_sentences": 5},
        "decoding": {"beam_size": 2, "max_length_extra": 5},
    }
    for section, changes in sections.items():
        tables[section].update(changes)
    config = parse_config(tables, where="tiny")
    toml = folder / "tiny.toml"
    toml.write_text(config.to_toml())
    return Tiny(folder, config, folder / "train.en", folder / "train.de", toml, folder / "cache")


@functools.cache
def tokenizer(joint: bool = True) -> Tokenizer:
    """A tokenizer of the made-up corpus; with `joint=False` two of different sizes."""
    src, tgt = sentences(200)
    options = TokenizerConfig(vocab_size=150, byte_fallback=False)
    if joint:
        return Tokenizer(train_sentencepiece(src + tgt, options))
    smaller = TokenizerConfig(vocab_size=60, byte_fallback=False)
    return Tokenizer(train_sentencepiece(src, options), train_sentencepiece(tgt, smaller))


def random_bundle(seed: int = 0, joint: bool = True, decoding: dict[str, Any] | None = None, **model: Any) -> Bundle:
    """A randomly initialised model that translates, into nonsense. Its logits are far apart, as a trained model's."""
    tokens = tokenizer(joint)
    tied = "all" if joint else "decoder"
    shape = ModelConfig(**{**SHAPE, "tied_embeddings": tied, **model})
    config = BundleConfig(
        src_lang="en",
        tgt_lang="de",
        src_vocab_size=tokens.src_vocab_size,
        tgt_vocab_size=tokens.tgt_vocab_size,
        max_length=256,
        model=shape,
        decoding=DecodingConfig(**{"beam_size": 2, "max_length_extra": 5, **(decoding or {})}),
    )
    torch.manual_seed(seed)
    network = build_model(shape, tokens.src_vocab_size, tokens.tgt_vocab_size).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5).add_(0.05 * torch.randn_like(parameter))
    return Bundle(config, network, tokens)


def save(bundle: Bundle, folder: Path) -> Path:
    """Write a bundle as `nmt train` does."""
    with atomic_folder(folder) as temporary:
        bundle.write_into(temporary)
    return folder


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors this small are slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
