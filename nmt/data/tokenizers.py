"""The tokenizer of a recipe: one that is given, one that is found in the cache, or a new one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nmt.config import Config
from nmt.data.cache import is_whole, key_of
from nmt.data.clean import Scan
from nmt.data.sources import Say
from nmt.errors import DataError
from nmt.storage.atomic import atomic_folder, write_file
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

_MODEL = "tokenizer.model"  # in the folder of a cached tokenizer


def given_tokenizer(config: Config) -> Tokenizer | None:
    """The tokenizer that the recipe names. Raises: ConfigError, BundleError."""
    given = config.tokenizer
    if given.src_model is None:
        return None
    folder = Path(config.data.dir)
    return Tokenizer.from_files(folder / given.src_model, folder / given.tgt_model if given.tgt_model else None)


def trained_tokenizer(config: Config, train: Scan, cache: Path, say: Say) -> Tokenizer:
    """Train a tokenizer on the sample, or find it in the cache. Raises: DataError, StorageError."""
    options = config.tokenizer
    symbols = list(dict.fromkeys([*options.user_symbols, *_tags(config), *filter(None, [config.decoding.tag])]))
    options = options.model_copy(update={"user_symbols": symbols})
    shown = options.model_dump_json(exclude=None if symbols else {"user_symbols"})  # as earlier versions named it
    samples = [train.src_sample + train.tgt_sample] if options.joint else [train.src_sample, train.tgt_sample]
    models = []
    for sample in samples:
        folder = cache / f"tokenizer-{key_of(sample, [shown])[:16]}"
        if not is_whole(folder, say):
            of_all = f", sampled of {train.offered:,} pairs" if train.offered > len(train.src_sample) else ""
            say(f"training a {options.type} tokenizer on {len(sample):,} lines{of_all}")
            if not sample:
                raise DataError(
                    f"There is no text to train a tokenizer on: of {len(train.keep):,} training pairs, "
                    f"{train.dropped['empty']:,} have an empty side."
                )
            with atomic_folder(folder) as temporary, ThreadPoolExecutor(max_workers=1) as thread:
                # In a thread, since a signal is seen between two steps of Python's main thread, and this takes minutes.
                write_file(temporary / _MODEL, thread.submit(train_sentencepiece, sample, options).result())
        models.append((folder / _MODEL).read_bytes())
    tokenizer = Tokenizer(*models)
    for side, size in (("source", tokenizer.src_vocab_size), ("target", tokenizer.tgt_vocab_size)):
        if size < options.vocab_size:
            say(f"warning: the text holds only {size:,} {side} pieces, fewer than vocab_size = {options.vocab_size:,}")
    return tokenizer


def check_tags(config: Config, tokenizer: Tokenizer) -> None:
    """Raises: ConfigError, for a tag that is no user symbol of a tokenizer that was given."""
    for tag in [*_tags(config), config.decoding.tag]:
        if tag:
            tokenizer.check_tag(tag)


def _tags(config: Config) -> list[str]:
    sources = [*config.data.train, *([config.data.valid] if config.data.valid else [])]
    return [source.tag for source in sources if source.tag]
