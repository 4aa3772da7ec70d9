"""A recipe for two files and nothing else: size of model, vocabulary, batch and run by corpus and machine."""

from pathlib import Path
from typing import Any

from nmt.data.sources import count_lines
from nmt.decoding.translator import pick_device
from nmt.errors import ConfigError, DataError
from nmt.text.archives import plain_name

# (pairs up to, layers, d_model, heads, d_ff, dropout, pieces, peak rate, updates of warm-up): small corpora want small,
# strongly regularised models (Wu et al. 2021 for Multi30k), large ones the base of Vaswani et al. 2017.
_SIZES = (
    (50_000, 4, 128, 4, 256, 0.3, 4_000, 5e-3, 1_000),
    (500_000, 4, 256, 4, 1024, 0.2, 8_000, 2e-3, 2_000),
    (5_000_000, 6, 512, 8, 2048, 0.1, 16_000, 7e-4, 4_000),
)
_PIECES_A_LINE = 25  # a guess, for the length of the warm-up alone
_LARGEST = (0, 6, 512, 8, 2048, 0.1, 32_000, 7e-4, 4_000)


def preset_for_files(src: Path, tgt: Path, device: str) -> dict[str, Any]:
    """The tables of a recipe for a pair of text files. Raises: DataError, ConfigError."""
    pairs = count_lines(src)
    if pairs < 10:
        raise DataError(f"{src} has {pairs} lines: too few to hold some out for validation and train on the rest.")
    on_gpu = pick_device(device).type != "cpu"
    _, layers, d_model, heads, d_ff, dropout, pieces, rate, warmup = next(
        (size for size in _SIZES if pairs <= size[0]), _LARGEST
    )
    epochs = max(3, min(100, 3_000_000 // pairs))
    tokens_per_batch = 8192 if on_gpu else 2048
    updates = epochs * max(1, pairs * _PIECES_A_LINE // tokens_per_batch)
    language = _language(tgt, "target")
    return {
        "data": {
            "src_lang": _language(src, "source"),
            "tgt_lang": language,
            "train": {"src": str(src), "tgt": str(tgt)},
            "valid_size": max(1, min(1000, pairs // 20)),
        },
        "tokenizer": {"vocab_size": pieces},
        "model": {
            "num_encoder_layers": layers,
            "num_decoder_layers": layers,
            "d_model": d_model,
            "num_heads": heads,
            "d_ff": d_ff,
            "dropout": dropout,
            "embedding_dropout": dropout,
        },
        "training": {
            "tokens_per_batch": tokens_per_batch,
            "learning_rate": rate,
            "warmup_updates": min(warmup, updates // 10),
            "max_epochs": epochs,
        },
        "validation": {
            "every": max(100, min(2000, pairs // 100)),
            "patience": 10,
            # sacreBLEU's default for these needs an extra package; characters need none
            **({"tokenize": "char"} if language in ("ja", "ko") else {}),
        },
    }


def _language(path: Path, side: str) -> str:
    """The language a file's ending names, as `train.de`."""
    code = Path(plain_name(path.name)).suffix.removeprefix(".")
    if 2 <= len(code) <= 3 and code.isalpha() and code != "txt":
        return code
    raise ConfigError(
        f"The {side} language cannot be read off the name {path.name}. Let it end in the language, as train.en, "
        f"or write a config."
    )
