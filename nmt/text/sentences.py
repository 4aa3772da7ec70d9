"""The sentences of a line, where else a line may be cut, and what stands between translations.

Boundaries are those of `sentencex` (rules and abbreviations of some 300 languages), but for the cases mended here. All
is done on strings; whatever is taken apart is the line again when it is put together.
"""

import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import pairwise

import sentencex

_WINDOW = 4000  # characters looked at together: the time that sentencex takes grows with the square of their number
_ODD_SPACE = re.compile(r"[^\S ]|[\ud800-\udfff]")  # sentencex panics at "A\u00a0.", and takes no lone surrogates
_WORD = re.compile(r"[^\W_]")
_LIST_NUMBER = re.compile(r"\s*[(\[]?(\d{1,3}|[A-Za-z])[.)]\s*")
_ORDINAL = re.compile(r"(?<![\w.,:])\d{1,3}\.\s+\Z")
# Languages that write ordinals with a full stop: "am 3. Oktober".
_WITH_ORDINALS = frozenset(
    ["cs", "da", "de", "et", "fi", "fo", "hr", "hu", "is", "lb", "lv", "nb", "nn", "no", "pl", "sk", "sl", "sr", "tr"]
)
# Ends that sentencex does not see: it takes these words, and the letter behind an apostrophe, for abbreviations.
_WORD_ENDS = r"(?<!\w)(?:{}|\w+['’][smtd])\.\s+(?=[\"“„]?[^\W\d_a-z])"
_MISSED = {
    "en": re.compile(_WORD_ENDS.format("me|no|ill|art|OK")),
    "de": re.compile(_WORD_ENDS.format("mich|mag|OK")),
}
_MISSED_ELSEWHERE = re.compile(r"。\s*(?=\d)")
_QUOTES, _OPENING, _CLOSING = re.compile('["“”„«»「」『』]'), re.compile("[([（【]"), re.compile("[)\\]）】]")
# These end a sentence without white space behind them, too.
_SURE_ENDS = frozenset("。｡！？।॥။።؟۔")

# Of words; Thai, Lao, Khmer, Burmese and Tibetan do have spaces between sentences.
_WITHOUT_SPACES = frozenset(["ja", "jpn", "zh", "zho", "cmn", "yue", "wuu", "lzh"])
_WITHOUT_WORD_SPACES = _WITHOUT_SPACES | frozenset(
    ["th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod", "dz", "dzo"]
)

_GAP = re.compile(r"\s+|(?<=[，、；：。！？）】」』])(?!\s)")
_CLAUSE_ENDS, _CLAUSE_OPENINGS = frozenset(",;:.!?…)]”»،؛؟–—，、；：。！？）】」』"), frozenset("–—([“«")


def split(line: str, language: str) -> list[tuple[str, str]]:
    """The sentences of a line, each with the white space that follows it: end to end they are the line.

    A line of one sentence is given back whole, with all its white space. No sentence is without a letter or a digit,
    unless the line is.

    Args:
        language: its code; of one that is not known the rules of English are taken.
    """
    starts = [0, *_boundaries(line, _code(language)), len(line)]
    if len(starts) == 2:
        return [(line, "")]
    return [_parted(line[start:end]) for start, end in pairwise(starts)]


def share_of_single(lines: Sequence[str], language: str) -> float:
    """How many of the lines are one sentence each, from 0 to 1; of no lines all are."""
    return sum(len(split(line, language)) == 1 for line in lines) / len(lines) if lines else 1.0


def halves(text: str, language: str) -> tuple[str, str, str] | None:
    """Cut a text in two near its middle: what comes before, the white space between, what comes after.

    At the end of a sentence, else of a clause, if there is one in the middle half; else at white space. None where
    there is no such place.
    """
    middle = len(text) / 2
    gaps = _gaps(text)
    clauses = [(a, b) for a, b in gaps if text[a - 1] in _CLAUSE_ENDS or text[b] in _CLAUSE_OPENINGS]
    sentences = [(place, place) for place in _boundaries(text, _code(language))]
    for places, reach in ((sentences, middle / 2), (clauses, middle / 2), (gaps, middle)):
        near = [span for span in places if abs(span[0] - middle) <= reach]
        if near:
            start, end = min(near, key=lambda span: abs(span[0] - middle))
            before, spacing = _parted(text[:start])
            return before, spacing + text[start:end], text[end:]
    return None


def between(spacing: str, src_language: str, tgt_language: str) -> str:
    """What stands between two translations whose sources had `spacing` between them."""
    source, target = _code(src_language), _code(tgt_language)
    if target in _WITHOUT_SPACES:
        return ""
    return spacing.replace("\u3000", " ") or (" " if source in _WITHOUT_WORD_SPACES else "")


def _code(language: str) -> str:
    """`de` of `de`, `DE`, `de-AT` and `de_AT`."""
    return re.split("[-_]", language)[0].lower()


def _parted(text: str) -> tuple[str, str]:
    """Without the white space at its end, and that."""
    stripped = text.rstrip()
    return stripped, text[len(stripped) :]


def _gaps(text: str) -> list[tuple[int, int]]:
    """White space, and places behind punctuation that has none, with something visible on both sides."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    return [found.span() for found in _GAP.finditer(text) if first < found.start() and found.end() < last]


def _boundaries(line: str, code: str) -> list[int]:
    """Where the second sentence begins, and each one after it."""
    found: list[int] = []
    last = looked_at = 0
    has_word = False  # since `last`
    for place in _proposed(line, code):
        has_word = has_word or bool(_WORD.search(line, looked_at, place))
        looked_at = place
        if has_word and _is_boundary(line, last, place, code):
            found.append(place)
            last, has_word = place, False
    if found and not _WORD.search(line, found[-1]):
        found.pop()
    return found


def _is_boundary(line: str, last: int, place: int, code: str) -> bool:
    """Whether one sentence ends and another begins at `place`, as sentencex thinks."""
    before = line[place - 1]
    if not before.isspace() and before not in _SURE_ENDS:  # in "b.c", before "</b>", behind the quotes of 「はい。」と
        return False
    if _LIST_NUMBER.fullmatch(line, last, place):
        return False
    return not (code in _WITH_ORDINALS and _ORDINAL.search(line, max(last, place - 8), place))


def _proposed(line: str, code: str) -> Iterator[int]:
    """The boundaries of sentencex, in windows that begin at a boundary where there is one."""
    plain = _ODD_SPACE.sub(" ", line)
    start = 0
    while start < len(plain):
        end = start + _WINDOW
        places = [start + place for place in _of_sentencex(plain[start:end], code)]
        yield from places
        if end >= len(plain):
            return
        start = places[-1] if places and places[-1] > start + _WINDOW // 2 else end


def _of_sentencex(text: str, code: str) -> list[int]:
    """Where sentences begin in a text, after the first."""
    try:
        starts = [int(sentence["start_index"]) for sentence in sentencex.get_sentence_boundaries(code, text)]
    except BaseException as error:  # a panic of the library is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return []
    missed = [found.end() for found in _MISSED.get(code, _MISSED_ELSEWHERE).finditer(text)]
    added = [place for place in missed if not _is_open(text[starts[bisect(starts, place) - 1] : place])]
    return (sorted({*starts, *added}) if added else starts)[1:]


def _is_open(text: str) -> bool:
    """Whether it ends inside quotes or brackets."""
    return len(_QUOTES.findall(text)) % 2 == 1 or len(_OPENING.findall(text)) > len(_CLOSING.findall(text))
