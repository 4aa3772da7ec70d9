"""What an exported model translates, by the library that it was exported for; held against what we translate."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece as spm

from nmt.config import DecodingConfig
from nmt.errors import BundleError, ConfigError

ALPHA = 1.0  # of the power length penalty
BEAMS = (1, 4)
LINES = 50
LEAST = 0.98  # of the lines must be translated alike

# Ours, but for the beam and the length limits of a bundle: what every program has.
DECODING = DecodingConfig(
    length_penalty=ALPHA, length_penalty_type="power", min_length=0, split_sentences="never"
).model_dump(exclude={"beam_size", "max_length", "max_length_ratio", "max_length_extra"})

Translate = Callable[[Sequence[str], Sequence[int], int], list[str]]  # lines, most pieces of each, beam size


def parity(ours: Translate, theirs: Translate, lines: Sequence[str], limits: Sequence[int]) -> dict[int, float]:
    """The share of lines that both translate alike, by beam size.

    Args:
        limits: the most target pieces of each line, without EOS.
    """
    shares = {}
    for beam in BEAMS:
        pairs = zip(ours(lines, limits, beam), theirs(lines, limits, beam), strict=True)
        shares[beam] = sum(a == b for a, b in pairs) / len(lines)
    return shares


def refuse_too_few(shares: dict[int, float], folder: Path) -> None:
    """Raises: BundleError (the exported model does not translate alike)."""
    low = [f"{share:.0%} with beam {beam}" for beam, share in shares.items() if share < LEAST]
    if low:
        raise BundleError(
            f"{folder} was not written: the exported model does not translate as the one it was made of: "
            f"{', '.join(low)} of the lines are equal, at least {LEAST:.0%} must be. Of a model that is hardly trained "
            f"the best translations score almost alike, and may differ; without --check it is written as it is."
        )


def ctranslate2_translations(folder: Path) -> Translate:
    """CTranslate2 in fp32 on the CPU. Raises: ConfigError (not installed)."""
    try:
        import ctranslate2
    except ImportError as error:
        raise ConfigError(f"--check needs the package ctranslate2 here ({error}): pip install ctranslate2.") from error
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
    source, target = (spm.SentencePieceProcessor(str(folder / f"{side}.spm")) for side in ("source", "target"))

    def translate(lines: Sequence[str], limits: Sequence[int], beam: int) -> list[str]:
        texts = []
        for line, limit in zip(lines, limits, strict=True):
            [result] = translator.translate_batch(
                [source.encode(line, out_type=str)],
                beam_size=beam,
                length_penalty=ALPHA,
                min_decoding_length=0,
                max_decoding_length=limit,
            )
            texts.append(str(target.decode(result.hypotheses[0])))
        return texts

    return translate


def transformers_translations(folder: Path) -> Translate:
    """Hugging Face transformers in fp32 on the CPU. Raises: ConfigError (not installed)."""
    try:
        import torch
        from transformers import MarianMTModel, MarianTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise ConfigError(
            f"--check needs the package transformers here ({error}): pip install transformers."
        ) from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings(action="ignore"):
        model: Any = MarianMTModel.from_pretrained(folder).eval()
        tokenizer: Any = MarianTokenizer.from_pretrained(folder)

    def translate(lines: Sequence[str], limits: Sequence[int], beam: int) -> list[str]:
        texts = []
        for line, limit in zip(lines, limits, strict=True):
            with torch.inference_mode():
                [ids] = model.generate(
                    **tokenizer(line, return_tensors="pt"),
                    num_beams=beam,
                    length_penalty=ALPHA,
                    early_stopping=beam > 1,
                    min_length=0,
                    max_length=limit + 2,
                    no_repeat_ngram_size=0,
                )
            texts.append(str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)))
        return texts

    return translate
