"""What is looked at together for word alignment: a part of a line with its translation, and where their pieces lie."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from nmt.decoding.parts import Joined, Part
from nmt.decoding.search import Hypothesis
from nmt.decoding.translator import Translation, Translator
from nmt.text.lines import clean, places_kept
from nmt.text.tokenizer import Span

NOWHERE: Span = (-1, -1)  # of a piece that stands for no text, as a tag's


@dataclass(frozen=True)
class Stretch:
    """Source and target ids, EOS last, and which characters of the two texts their pieces (but EOS) stand for."""

    src_ids: list[int]
    tgt_ids: list[int]
    src_spans: list[Span]
    tgt_spans: list[Span]


def stretches_of(translator: Translator, line: str, translation: Translation) -> list[Stretch] | None:
    """Those of a line and its translation, one for each part; spans are of the line as given and the text as printed.

    The ids are those that the model was given and wrote; of a line whose items were carried over, those of its texts.
    Returns: None, if the model cannot look at the texts of such a line: they are longer than what it was trained on.
    """
    if translation.protected is not None:
        return stretches_of_texts(translator, line, translation.text)
    if not translation.hypotheses:
        return []
    eos = translator.bundle.tokenizer.special.eos
    best = translation.hypotheses[0]
    hypotheses = best.parts if isinstance(best, Joined) else (best,)
    sources = _given_spans(translator, translation.parts, line)
    return [
        Stretch(part.ids, [*hypothesis.ids, eos], src_spans, tgt_spans)
        for part, hypothesis, src_spans, tgt_spans in zip(
            translation.parts, hypotheses, sources, _printed_spans(translator, best), strict=True
        )
    ]


def stretches_of_texts(translator: Translator, src: str, tgt: str) -> list[Stretch] | None:
    """The one of two given texts, whole; none if one is blank. None, if the source is too long for the model."""
    cleaned = clean(tgt)
    (part,) = translator.cutter.whole([clean(src)])
    if not part.text or not cleaned:
        return []
    if not translator.cutter.fits(part):
        return None
    tokenizer, kept = translator.bundle.tokenizer, places_kept(tgt)
    (tgt_ids,) = tokenizer.encode_tgt([cleaned])
    (src_spans,) = _given_spans(translator, [part], src)
    tgt_spans = [_moved(span, kept) for span in tokenizer.tgt_spans(cleaned)]
    return [Stretch(part.ids, tgt_ids, src_spans, tgt_spans)]


def _given_spans(translator: Translator, parts: Sequence[Part], line: str) -> list[list[Span]]:
    """The spans of each part in the line as given, of which cleaning may have left less."""
    kept = places_kept(line)
    return [[_moved(span, kept) for span in spans] for spans in translator.cutter.spans(parts)]


def _moved(span: Span, kept: Sequence[int]) -> Span:
    """A span of a clean line in the line itself."""
    start, end = span
    if start < 0 or start >= len(kept):
        return NOWHERE
    return kept[start], kept[end - 1] + 1 if end > start else kept[start]


def _printed_spans(translator: Translator, hypothesis: Hypothesis) -> list[list[Span]]:
    """Where the pieces of a hypothesis, or of each of its parts, lie in its text; see `Translator.text`."""
    parts = hypothesis.parts if isinstance(hypothesis, Joined) else (hypothesis,)
    spacing = [*hypothesis.spacing, ""] if isinstance(hypothesis, Joined) else [""]
    found: list[list[Span]] = []
    start = 0
    for part, gap in zip(parts, spacing, strict=True):
        text, spans = translator.bundle.tokenizer.decode_spans(part.ids)
        kept = places_kept(text)
        places = [(start + bisect_left(kept, first), start + bisect_left(kept, end)) for first, end in spans]
        found.append(places if kept else [NOWHERE] * len(spans))
        start += len(kept) + len(gap)
    return found
