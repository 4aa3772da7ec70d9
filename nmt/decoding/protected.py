"""Translation that carries over placeholders, tags, entities, URLs and e-mail addresses to the byte, by any model.

Each line is tried in turn as it is, with stand-ins that models copy, and bare, and then its items are put back where
the model's attention says. The first way that keeps every item is taken; a line that none keeps is flagged.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from nmt.decoding.attention import HeadChoice, forced_attention
from nmt.decoding.translator import Translation, Translator
from nmt.errors import ConfigError
from nmt.text.lines import clean
from nmt.text.placing import Placer, align_units, anchor, keep_order, piece_ranges, put_back, units_of
from nmt.text.protect import Bare, Item, drop_items, find_items, peel, put_in, same_items, take_out, without_items


class Way(StrEnum):
    """What became of a line's items.

    Attributes:
        copied: the model wrote them, or they stood at the line's ends.
        masked: the model wrote something in their place.
        placed: some of them went where the model's attention says.
        lost: not all of them came out, once each and with tags nested as in the source.
    """

    copied = "copied"
    masked = "masked"
    placed = "placed"
    lost = "lost"


# What stands in for items: models copy numbers, and do not group three digits.
_CODES = tuple(str(number) for number in range(211, 1000, 7))
_LETTER = re.compile(r"[^\W\d_]")


class _Line:
    """A line with items, on its way.

    Attributes:
        text: what the model is asked, without the marks and tags at the line's ends; empty if there is nothing to ask.
        items: those in `text`.
        best: the translation so far.
    """

    def __init__(self, line: str, items: Sequence[Item], symbols: Collection[str]) -> None:
        self._all_items, self._symbols = items, symbols
        start, end = peel(line, items)
        self._head, self.text, self._tail = line[:start], line[start:end], line[end:]
        self.items = find_items(self.text, symbols)
        self.best = Translation(line, protected=Way.lost)
        if not _LETTER.search(without_items(line)):
            self.text = ""
            self.best = Translation(line, protected=Way.copied)

    @property
    def open(self) -> bool:
        """Whether a way is still to be found."""
        return self.best.protected is Way.lost

    def take(self, text: str, found: Translation, way: Way) -> None:
        """Take the first translation, with items put back in its text, and then one that has all items."""
        whole = self._head + text + self._tail
        if same_items(self._all_items, find_items(whole, self._symbols)):
            self.best = replace(found, text=whole, protected=way)
        elif not self.best.hypotheses:
            self.best = replace(found, text=whole, protected=Way.lost)


class ProtectingTranslator:
    """Translates lines with a Translator and carries their items over.

    Raises: ConfigError, if several translations a line are wanted.
    """

    def __init__(self, translator: Translator) -> None:
        if translator.decoding.n_best > 1:
            raise ConfigError(
                f"--protect gives one translation a line, but n_best is {translator.decoding.n_best}: leave out "
                f"--protect, or give --n-best 1."
            )
        self._translator = translator

    def translations(self, lines: Iterable[str]) -> list[Translation]:
        """See `Translator.translations`; `Translation.protected` is a Way."""
        cleaned = [clean(line) for line in lines]
        symbols = self._translator.bundle.tokenizer.src_symbols
        found_items = [find_items(line, symbols) for line in cleaned]
        lines_of = {place: _Line(cleaned[place], items, symbols) for place, items in enumerate(found_items) if items}
        asked = [lines_of[place].text if place in lines_of else line for place, line in enumerate(cleaned)]
        plain = self._translator.translations(asked)
        for place, line in lines_of.items():
            if line.open:
                line.take(plain[place].text, plain[place], Way.copied)
        for codes in (_CODES, ()):
            self._try([line for line in lines_of.values() if line.open], codes)
        return [lines_of[place].best if place in lines_of else found for place, found in enumerate(plain)]

    def _try(self, lines: Sequence[_Line], codes: Sequence[str]) -> None:
        """Translate lines with codes in place of words, or bare, and put the items back."""
        tried = [(line, bare) for line in lines if (bare := _bare(line, codes))]
        found = self._translator.translations([bare.text for _, bare in tried])
        texts = [drop_items(each.text) for each in found]  # such as the source does not have
        to_place = [place for place, (_, bare) in enumerate(tried) if bare.taken and texts[place]]
        aligned = dict(zip(to_place, self._align([(tried[p][1].text, texts[p]) for p in to_place]), strict=True))
        for place, ((line, bare), each) in enumerate(zip(tried, found, strict=True)):
            way = Way.placed if bare.taken else Way.masked if codes else Way.copied
            ways = _placed(bare, texts[place], aligned[place]) if place in aligned else [texts[place]]
            for text in ways:
                whole = put_in(text, bare.stand_ins)
                if line.open and whole:
                    line.take(whole, each, way)

    def _align(self, pairs: Sequence[tuple[str, str]]) -> list[NDArray[np.int64] | None]:
        """The source unit of each target unit, see `units_of`; None where that cannot be known."""
        tokenizer = self._translator.bundle.tokenizer
        src_ids = tokenizer.encode_src([src for src, _ in pairs])
        given = self._translator.encode([src for src, _ in pairs])  # behind a tag, which stands for no text
        tgt_ids = tokenizer.encode_tgt([tgt for _, tgt in pairs])
        choice = HeadChoice.of(self._translator.decoding)
        pairs_of_ids = list(zip(given, tgt_ids, strict=True))
        attention = forced_attention(self._translator.models, tokenizer.special, pairs_of_ids, choice)
        aligned: list[NDArray[np.int64] | None] = []
        for (src, tgt), src_of, tgt_of, weights in zip(pairs, src_ids, tgt_ids, attention, strict=True):
            src_units, tgt_units = units_of(src), units_of(tgt)
            if weights is None or not src_units or not tgt_units:
                aligned.append(None)
                continue
            src_ranges = piece_ranges(src, tokenizer.src_pieces(src_of[:-1]), src_units)
            tgt_ranges = piece_ranges(tgt, tokenizer.tgt_pieces(tgt_of[:-1]), tgt_units)
            units = align_units(weights[:, -len(src_of) :], tgt_ranges, src_ranges)
            words = [[text[start:end] for start, end in of] for text, of in ((tgt, tgt_units), (src, src_units))]
            aligned.append(anchor(units, *words))
        return aligned


def _bare(line: _Line, codes: Sequence[str]) -> Bare | None:
    """The line with codes in place of words; None if it has none of these, or more than there are codes."""
    if not codes:
        return take_out(line.text, line.items)
    unlike = [code for code in codes if code not in line.text]
    words = sum(item.kind == "word" for item in line.items)
    return take_out(line.text, line.items, unlike) if 0 < words <= len(unlike) else None


def _placed(bare: Bare, text: str, aligned: NDArray[np.int64] | None) -> Iterator[str]:
    """The text with the items put back by the alignment; in the source's order; and in that order and well apart."""
    src_units, tgt_units = units_of(bare.text), units_of(text)
    if not src_units or not tgt_units:
        return
    if aligned is not None:
        yield put_back(text, tgt_units, bare.taken, Placer(bare.taken, src_units, aligned).place())
    in_order = keep_order(bare.taken, src_units, len(tgt_units))
    yield put_back(text, tgt_units, bare.taken, in_order)
    yield put_back(text, tgt_units, bare.taken, in_order, spaced=True)
