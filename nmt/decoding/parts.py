"""A line in parts that a model was trained for, and what becomes of it out of their translations.

A line is cut at its sentences if that is asked for, and where it is longer than any source in training. Each part is
translated as if it stood alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

from nmt.decoding.search import Hypothesis
from nmt.text.lines import is_blank
from nmt.text.sentences import between, halves, split
from nmt.text.tokenizer import Span, Tokenizer, tagged


@dataclass(frozen=True)
class Part:
    """What the model is given at once of a line.

    Attributes:
        ids: pieces, EOS last.
        spacing: the white space of the line behind them.
        tag, text: what they are pieces of; the tag, if there is one, comes first.
        start: the character of the line that `text` begins with.
        skipped: pieces of `text` that were given before, where it is cut between pieces.
    """

    ids: list[int]
    spacing: str = ""
    tag: str = ""
    text: str = ""
    start: int = 0
    skipped: int = 0


@dataclass(frozen=True, order=True)
class Joined(Hypothesis):
    """The translations of a line's parts as one: their ids with an EOS between them, and the sums of their scores.

    Attributes:
        parts: of the line, in order.
        spacing: what stands between their texts, one less.
    """

    parts: tuple[Hypothesis, ...] = ()
    spacing: tuple[str, ...] = ()


class Cutter:
    """Cuts lines into parts, and joins what was found for these.

    Args:
        languages: codes of source and target.
        most_pieces: of a part, EOS included.
        tag: a symbol that is put before every part, or an empty string.
        tags: those of the corpora that the model was trained on; one that begins a line is put before its every part.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        languages: tuple[str, str],
        most_pieces: int,
        tag: str = "",
        tags: Sequence[str] = (),
    ) -> None:
        self._tokenizer, self._languages = tokenizer, languages
        self._tag, self._tags = tag, sorted(tags, key=len, reverse=True)
        self._most_pieces = max(2, most_pieces)
        self._symbols = tuple(tokenizer.src_symbols)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The pieces of whole lines as the model is given them: the tag first, EOS last."""
        return [part.ids for part in self.whole(lines)]

    def whole(self, lines: Sequence[str]) -> list[Part]:
        """Each clean line as one part, however long."""
        apart = [self._taken_apart(line) for line in lines]
        texts = zip(lines, apart, self._encode(apart), strict=True)
        return [Part(ids, "", tag, text, len(line) - len(text)) for line, (tag, text), ids in texts]

    def fits(self, part: Part) -> bool:
        """Whether the model was trained on parts of such a length."""
        return len(part.ids) <= self._most_pieces

    def spans(self, parts: Sequence[Part]) -> list[list[Span]]:
        """Which characters of the line each piece of its parts (but EOS) stands for; (-1, -1) for those of the tag."""
        of_tags = {tag: len(self._opening(tag)) for tag in {part.tag for part in parts}}
        texts = dict.fromkeys((part.tag, part.text) for part in parts)  # many parts may be of one text
        of_texts = {(tag, text): self._tokenizer.src_spans("".join(tagged(tag, [text]))) for tag, text in texts}
        return [_spans_of(part, of_texts[part.tag, part.text], of_tags[part.tag]) for part in parts]

    def cut(self, lines: Sequence[str], at_sentences: Sequence[bool]) -> list[list[Part]]:
        """Each clean line in parts; none of a blank one.

        Args:
            at_sentences: whether the line is cut at each sentence. One that begins with a symbol of the tokenizer's is
                not, unless it is one of `tags`: whether every sentence needs it is not known.
        """
        apart = [self._taken_apart(line) for line in lines]
        texts = [self._sentences(line, cuts) for (_, line), cuts in zip(apart, at_sentences, strict=True)]
        tagged_texts = [(tag, t) for (tag, _), parts in zip(apart, texts, strict=True) for t, _ in parts]
        encoded = iter(self._encode(tagged_texts))
        in_parts: list[list[Part]] = []
        for line, (tag, rest), parts in zip(lines, apart, texts, strict=True):
            start = len(line) - len(rest)
            in_parts.append([])
            for text, spacing in parts:
                in_parts[-1] += self._fitting(tag, text, next(encoded), spacing, start)
                start += len(text) + len(spacing)
        return in_parts

    def join(
        self, parts: Sequence[Part], found: Sequence[list[Hypothesis]], n_best: int, *, sampled: bool
    ) -> list[Hypothesis]:
        """The hypotheses of a line from those of each of its parts, best first; samples are paired as they come."""
        if len(parts) == 1:
            return found[0]
        spacing = tuple(between(part.spacing, *self._languages) for part in parts[:-1])
        chosen = zip(*found, strict=True) if sampled else best_together(found, n_best)
        return [_joined(each, spacing, self._tokenizer.special.eos) for each in chosen]

    def _taken_apart(self, line: str) -> tuple[str, str]:
        """The tag of a line, its own before that of all, and the rest of it."""
        tag = next((tag for tag in self._tags if line.startswith(tag)), "")
        return (tag, line.removeprefix(tag).lstrip()) if tag else (self._tag, line)

    def _sentences(self, line: str, cuts: bool) -> list[tuple[str, str]]:
        """Those of a line, with the white space behind each; the whole line where it is not to be cut."""
        if not line:
            return []
        return split(line, self._languages[0]) if cuts and not line.startswith(self._symbols) else [(line, "")]

    def _encode(self, texts: Sequence[tuple[str, str]]) -> list[list[int]]:
        """The pieces of texts, each behind its tag."""
        return self._tokenizer.encode_src([each for tag, text in texts for each in tagged(tag, [text])])

    def _fitting(self, tag: str, text: str, ids: list[int], spacing: str, start: int) -> list[Part]:
        """A text in parts of as many pieces as the model was trained for, at most; `spacing` stands behind it.

        Cut in two where `halves` finds a place, and so on; else between pieces, which a cut between words is too.
        """
        if is_blank(text):
            return []
        if len(ids) <= self._most_pieces:
            return [Part(ids, spacing, tag, text, start)]
        found = halves(text, self._languages[0])
        if found is None:
            return self._between_pieces(Part(ids, spacing, tag, text, start))
        before, between_them, after = found
        first, second = self._encode([(tag, before), (tag, after)])
        second_start = start + len(before) + len(between_them)
        return [
            *self._fitting(tag, before, first, between_them, start),
            *self._fitting(tag, after, second, spacing, second_start),
        ]

    def _opening(self, tag: str) -> list[int]:
        """The pieces of a tag."""
        return self._tokenizer.encode_src([tag])[0][:-1] if tag else []

    def _between_pieces(self, part: Part) -> list[Part]:
        """Parts of about equal length that fit, each behind the tag and with an EOS."""
        opening, eos = self._opening(part.tag), part.ids[-1]
        pieces, most = part.ids[len(opening) : -1], max(1, self._most_pieces - 1 - len(opening))
        size = -(-len(pieces) // -(-len(pieces) // most))
        return [
            replace(
                part,
                ids=[*opening, *pieces[first : first + size], eos],
                spacing=part.spacing if first + size >= len(pieces) else "",
                skipped=first,
            )
            for first in range(0, len(pieces), size)
        ]


def _spans_of(part: Part, spans: Sequence[Span], of_tag: int) -> list[Span]:
    """Those of a part out of the `spans` of all pieces of its text behind its tag, which has `of_tag` of them."""
    opening = len(part.tag) + 1 if part.tag else 0
    first = of_tag + part.skipped
    chosen = spans[first : first + len(part.ids) - 1 - of_tag]
    moved = [(start - opening, end - opening) for start, end in chosen]
    of_text = [(part.start + max(start, 0), part.start + end) if end >= 0 else (-1, -1) for start, end in moved]
    return [*[(-1, -1) for _ in spans[:of_tag]], *of_text]  # a blank text has no tag


@dataclass(frozen=True)
class _Choice:
    """One hypothesis of each of a line's first parts: the sum of their scores, the last one, and those before it."""

    score: float
    last: Hypothesis
    earlier: "_Choice | None"

    def all(self) -> list[Hypothesis]:
        """The hypotheses, in order."""
        found, choice = [], cast("_Choice | None", self)
        while choice is not None:
            found.append(choice.last)
            choice = choice.earlier
        return found[::-1]


def best_together(found: Sequence[list[Hypothesis]], n_best: int) -> list[list[Hypothesis]]:
    """The `n_best` choices of one hypothesis a part with the largest sums of scores, best first.

    So the first one has the best of each part. The i-th choice with the j-th hypothesis of the next part comes behind
    i * j - 1 others at least, which is why few pairs need be looked at.
    """
    best = [_Choice(hypothesis.score, hypothesis, None) for hypothesis in found[0]]
    for hypotheses in found[1:]:
        pairs = [
            _Choice(choice.score + hypothesis.score, hypothesis, choice)
            for rank, choice in enumerate(best, start=1)
            for hypothesis in hypotheses[: n_best // rank]
        ]
        best = sorted(pairs, key=lambda pair: pair.score, reverse=True)[:n_best]
    return [choice.all() for choice in best]


def _joined(parts: Sequence[Hypothesis], spacing: tuple[str, ...], eos: int) -> Joined:
    return Joined(
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        ids=tuple(chain(*((*part.ids, eos) for part in parts)))[:-1],
        token_log_probs=tuple(chain(*(part.token_log_probs for part in parts))),
        parts=tuple(parts),
        spacing=spacing,
    )
