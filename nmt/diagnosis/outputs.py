"""Checks of what a trained model writes, and of how the tokenizer takes the text."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from nmt.bundle import Bundle, BundleConfig
from nmt.config import DataConfig, Source
from nmt.data.sources import read_chunks
from nmt.decoding.translator import Translator
from nmt.diagnosis.findings import Finding, broken, ok, skipped, suspicious
from nmt.errors import DataError, NmtError
from nmt.evaluation.faults import NGRAM, length_ratio, repeated_share
from nmt.text.lines import clean, open_text, read_lines
from nmt.text.tokenizer import Tokenizer

LINES = 100  # looked at, the first ones
_MOST_REPEATING, _MOST_COPIED, _MOST_SAME, _MOST_LOST = 0.05, 0.1, 0.1, 0.05  # shares that are not suspicious
_MOSTLY = 0.5  # a share that is broken
_RATIO_OF_REFERENCE, _RATIO_OF_SOURCE = (0.8, 1.25), (0.4, 2.5)
_FEW_UNKNOWN, _MOST_UNKNOWN = 0.005, 0.05  # of the pieces


@dataclass(frozen=True)
class Text:
    """Lines, what the model makes of them, and what should come out.

    Attributes:
        references: none if they are not known.
        src_ids, hypothesis_ids, reference_ids: the pieces of each, EOS left out.
    """

    sources: Sequence[str]
    references: Sequence[str]
    hypotheses: Sequence[str]
    src_ids: Sequence[Sequence[int]]
    hypothesis_ids: Sequence[Sequence[int]]
    reference_ids: Sequence[Sequence[int]]


def read_text(src: Path, tgt: Path | None) -> tuple[list[str], list[str]]:
    """The first lines of a file and of its translation, if there is one; blank ones are left out.

    Raises: DataError (no such file, no text, another number of lines), StorageError.
    """
    if tgt is None:
        with open_text(src) as stream:
            lines = list(islice(filter(None, map(clean, read_lines(stream))), LINES))
        pairs = [(line, "") for line in lines]
    else:
        source = Source(src=str(src.absolute()), tgt=str(tgt.absolute()))
        pairs = _first_pairs(source, DataConfig(train=[source]))
    if not pairs:
        raise DataError(f"There is no text in {src}.")
    return [src_line for src_line, _ in pairs], [tgt_line for _, tgt_line in pairs if tgt is not None]


def validation_text(config: BundleConfig) -> tuple[list[str], list[str]]:
    """The same of the text that a model was validated on; nothing if no file of it is there."""
    try:
        data = DataConfig.model_validate(config.recipe["data"])
        pairs = [] if data.valid is None or data.valid.hf is not None else _first_pairs(data.valid, data)
    except (KeyError, ValidationError, NmtError):
        return [], []
    return [src_line for src_line, _ in pairs], [tgt_line for _, tgt_line in pairs]


def _first_pairs(source: Source, data: DataConfig) -> list[tuple[str, str]]:
    pairs = (
        pair for src_lines, tgt_lines in read_chunks(source, data) for pair in zip(src_lines, tgt_lines, strict=True)
    )
    return list(islice((pair for pair in pairs if all(pair)), LINES))


def translate(bundle: Bundle, sources: Sequence[str], references: Sequence[str]) -> Text:
    """The model's own translations, by its own defaults, in fp32."""
    searched = {"n_best": 1, "sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    translator = Translator(bundle, decoding=searched, num_workers=1)
    found = translator.translations(sources)
    return Text(
        sources,
        references,
        [translation.text for translation in found],
        [ids[:-1] for ids in translator.encode(sources)],
        [translation.hypotheses[0].ids if translation.hypotheses else () for translation in found],
        [ids[:-1] for ids in bundle.tokenizer.encode_tgt(references)],
    )


def repetition(text: Text) -> Finding:
    """Few translations have four pieces in a row twice, or hardly more than the references, or sources."""
    share, usual = repeated_share(text.hypothesis_ids), repeated_share(text.reference_ids or text.src_ids)
    found = f"{share:.0%} of the translations have {NGRAM} pieces in a row twice, {usual:.0%} of the "
    found += "references" if text.references else "sources"
    if share > _MOST_REPEATING + usual:
        return suspicious(
            found,
            "the model goes round in circles: too little training, sources unlike those of the training text, or "
            "cross-attention that is not read. decoding.no_repeat_ngram hides it.",
            share=share,
        )
    return ok(found, share=share)


def length(text: Text) -> Finding:
    """Translations are about as long as references, or not wildly off the source."""
    if text.references:
        ratio = length_ratio(text.hypotheses, text.references)
        (least, most), found = _RATIO_OF_REFERENCE, f"translations have {ratio:.2f} characters a character of reference"
    else:
        ratio = sum(map(len, text.hypothesis_ids)) / max(1, sum(map(len, text.src_ids)))
        (least, most), found = _RATIO_OF_SOURCE, f"translations have {ratio:.2f} pieces a piece of source"
    if not least <= ratio <= most:
        too, why = (
            (
                "short",
                "something is left out: too little training, decoding.length_penalty is too low, or lines are longer "
                "than in training",
            )
            if ratio < least
            else ("long", "the end is not found: too little training, or targets without EOS")
        )
        return suspicious(f"{found}: too {too}", f"{why}.", ratio=ratio)
    return ok(found, ratio=ratio)


def sameness(text: Text) -> Finding:
    """Different sources have different translations."""
    of_source = dict(zip(text.sources, text.hypotheses, strict=True))
    if len(of_source) < 2:
        return skipped("there is one line only")
    share = 1 - (len(set(of_source.values())) - 1) / (len(of_source) - 1)
    found = f"{share:.0%} of {len(of_source)} different sources have a translation that another one has"
    if share > _MOST_SAME:
        level = broken if share > _MOSTLY else suspicious
        return level(
            found,
            "the model writes without reading: sources and targets do not belong together (see nmt data check), or it "
            "has only learnt the target language so far.",
            share=share,
        )
    return ok(found, share=share)


def copies(text: Text) -> Finding:
    """Sources do not come back as they are, but where the reference does so."""
    beside = text.references or [""] * len(text.sources)
    copied = [
        hypothesis == source != reference
        for source, hypothesis, reference in zip(text.sources, text.hypotheses, beside, strict=True)
    ]
    share = sum(copied) / max(1, len(copied))
    found = f"{share:.0%} of the translations are copies of their source"
    if share > _MOST_COPIED:
        return suspicious(
            found,
            "the text is in the target language already, or training pairs have the same text on both sides, which "
            'data.filters = ["identical"] drops.',
            share=share,
        )
    return ok(found, share=share)


TEXT_CHECKS = (repetition, length, sameness, copies)


def tokenizer(tokens: Tokenizer, sources: Sequence[str], references: Sequence[str]) -> Finding:
    """Text comes back from its pieces, and few pieces are unknown."""
    unk, unknown, pieces, lost = tokens.special.unk, 0, 0, 0
    for side, lines, encode in (("src", sources, tokens.encode_src), ("tgt", references, tokens.encode_tgt)):
        for line, ids in zip(lines, encode(lines), strict=True):
            unknown, pieces = unknown + ids.count(unk), pieces + len(ids)
            back = tokens.decode_pieces([*map(str, ids)], side=side, ids=True)
            lost += unk not in ids and _letters(back) != _letters(line)
    share, of_lines = unknown / max(1, pieces), lost / max(1, len(sources) + len(references))
    found = f"{share:.2%} of the pieces are unknown, {of_lines:.0%} of the lines do not come back from their pieces"
    numbers = {"unknown": share, "lost": of_lines}
    if share > _FEW_UNKNOWN:
        level = broken if share > _MOST_UNKNOWN else suspicious
        return level(
            found,
            "the tokenizer does not know these characters: is the text in the right language, and the tokenizer that "
            "of this model? Else train one with tokenizer.byte_fallback = true.",
            **numbers,
        )
    if of_lines > _MOST_LOST:
        return suspicious(found, "look at tokenizer.normalization, which may change more than it should.", **numbers)
    return ok(found, **numbers)


def _letters(text: str) -> str:
    """What every normalisation leaves: no spaces, no case, one form of each character."""
    return "".join(unicodedata.normalize("NFKC", text.replace("▁", " ")).casefold().split())
