"""Word alignments of what a command translates, or is given: from a model's attention to links of words."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.alignment.links import Links, links_of, piece_shares, token_numbers
from nmt.decoding.attention import HeadChoice, each_attention, each_head, pick
from nmt.decoding.stretches import Stretch, stretches_of, stretches_of_texts
from nmt.decoding.translator import Translation, Translator

LinksBy = dict[HeadChoice, Links]
_CHARACTERS = 2**18  # of lines whose pieces are looked up together


def align_translations(
    translator: Translator, lines: Sequence[str], translations: Sequence[Translation]
) -> list[Links | None]:
    """The links of each line as given with its text as printed; None of one that is too long to be looked at."""
    pairs = [(line, translation.text) for line, translation in zip(lines, translations, strict=True)]
    choice = HeadChoice.of(translator.decoding)

    def look(place: int) -> list[Stretch] | None:
        return stretches_of(translator, lines[place], translations[place])

    return [None if found is None else found[choice] for found in _align(translator, pairs, look, [choice])]


def align_texts(
    translator: Translator, src: Sequence[str], tgt: Sequence[str], choices: Sequence[HeadChoice] = ()
) -> list[LinksBy | None]:
    """The links of given texts by each of some choices, or by that of the translator.

    Returns: None for a pair that is too long to be looked at.
    Raises: ConfigError (models of different shapes, and several choices; a layer or head that there is not).
    """
    pairs = list(zip(src, tgt, strict=True))

    def look(place: int) -> list[Stretch] | None:
        return stretches_of_texts(translator, *pairs[place])

    return list(_align(translator, pairs, look, choices or [HeadChoice.of(translator.decoding)]))


def _align(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    look: Callable[[int], list[Stretch] | None],
    choices: Sequence[HeadChoice],
) -> Iterator[LinksBy | None]:
    """The links of pairs of texts, of which `look` gives the stretches; some at a time, for memory."""
    places: list[int] = []
    characters = 0
    for place, (line, _) in enumerate(pairs):
        characters += len(line)
        if places and characters > _CHARACTERS:
            yield from _align_some(translator, [pairs[p] for p in places], [look(p) for p in places], choices)
            places, characters = [], len(line)
        places.append(place)
    yield from _align_some(translator, [pairs[p] for p in places], [look(p) for p in places], choices)


def _align_some(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    stretches: Sequence[list[Stretch] | None],
    choices: Sequence[HeadChoice],
) -> list[LinksBy | None]:
    flat = [(place, each) for place, of_pair in enumerate(stretches) for each in of_pair or []]
    empty: LinksBy = dict.fromkeys(choices, frozenset())
    links = [dict(empty) for _ in pairs]
    unseen = set(range(len(flat)))
    numbers = {place: tuple(map(token_numbers, pairs[place])) for place in {place for place, _ in flat}}
    for number, weights in _weights(translator, [each for _, each in flat], choices):
        place, stretch = flat[number]
        src = piece_shares(stretch.src_spans, numbers[place][0])
        tgt = piece_shares(stretch.tgt_spans, numbers[place][1])
        for choice, of_choice in weights.items():
            links[place][choice] |= links_of(of_choice, src, tgt, translator.decoding.align_threshold)
        unseen.discard(number)
    missing = {flat[number][0] for number in unseen}
    missing |= {place for place, of_pair in enumerate(stretches) if of_pair is None}
    return [None if place in missing else found for place, found in enumerate(links)]


def _weights(
    translator: Translator, stretches: Sequence[Stretch], choices: Sequence[HeadChoice]
) -> Iterator[tuple[int, dict[HeadChoice, NDArray[np.float32]]]]:
    """What is looked at in each stretch that is not too long, by each choice."""
    models, special = translator.models, translator.bundle.tokenizer.special
    ids = [(each.src_ids, each.tgt_ids) for each in stretches]
    if len(choices) == 1:
        for number, weights in each_attention(models, special, ids, choices[0]):
            yield number, {choices[0]: weights}
    else:
        for number, heads in each_head(models, special, ids):
            yield number, {choice: pick(heads, choice) for choice in choices}
