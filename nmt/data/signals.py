"""What can be told of a pair by looking at its characters: each function judges a whole chunk of pairs at once."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nmt.data.evidence import Ints, Words

Flags = NDArray[np.bool_]

# Classes of characters; the letters of a script have the class of that script.
_SPACE, _DIGIT, _SYMBOL, _MARK, _OTHER_LETTER = range(5)
_NAMES = (
    "LATIN CYRILLIC GREEK ARABIC HEBREW CJK HIRAGANA KATAKANA HANGUL THAI LAO KHMER MYANMAR TIBETAN DEVANAGARI BENGALI "
    "GURMUKHI GUJARATI TAMIL TELUGU KANNADA MALAYALAM SINHALA ORIYA ARMENIAN GEORGIAN ETHIOPIC"
)
_SCRIPTS = _NAMES.split()
_CLASS = {script: number for number, script in enumerate(_SCRIPTS, 5)}
_CLASSES = 5 + len(_SCRIPTS)

_SCRIPTS_OF = {
    "CYRILLIC": "ru uk be bg mk kk ky mn tg tt ba cv",
    "GREEK": "el",
    "ARABIC": "ar fa ur ps ug sd ckb",
    "HEBREW": "he yi",
    "CJK": "zh yue",
    "CJK HIRAGANA KATAKANA": "ja",
    "HANGUL CJK": "ko",
    "THAI": "th",
    "LAO": "lo",
    "KHMER": "km",
    "MYANMAR": "my",
    "TIBETAN": "bo dz",
    "DEVANAGARI": "hi mr ne sa",
    "BENGALI": "bn as",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "ORIYA": "or",
    "ARMENIAN": "hy",
    "GEORGIAN": "ka",
    "ETHIOPIC": "am ti",
    "LATIN": "af ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it la lb lt lv ms mt nb nl nn no pl pt ro sk sl "
    "sq sv sw tl tr vi",
}  # fmt: skip

_MOJIBAKE = re.compile(
    "Ã[\u00a0-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]"
    "|Â[\u00a0-\u00bf]|â€|â‚¬|(?:[ÐÑ][\u0080-\u00bf\u2018-\u203a]){2}"
)
_NUMBER = re.compile(r"\d+")
_THOUSANDS = re.compile(r"(?<=\d)[.,'’ \u00a0\u2009\u202f](?=\d{3}(?!\d))")
# Narrower than what nmt.text.protect carries over, and tags by name alone: here a false alarm costs more than a miss.
_VARIABLE = re.compile(
    r"https?://[^\s<>\"'()]+|[\w.+-]+@[\w-]+\.[\w.]+"  # addresses
    r"|%\d*\$?[-+#0]*\d*(?:\.\d+)?[sdifuxXc@](?!\w)|%\([a-z_]\w*\)[sdf]|\$\{\w+\}|\$\(\w+\)|\{\{?\w*\}?\}|%[A-Z_]{3,}%?"
)
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*(?=[\s>/])|&(?:amp|lt|gt|quot|nbsp|apos|#\d{2,5}|#x[0-9a-fA-F]{2,5});")
_LEAST_LETTERS = 3  # before a line's script is judged
_LEAST_VISIBLE = 8  # before its share of letters is
_LEAST_REPEATED_WORDS = 8


@cache
def _class_table() -> NDArray[np.uint8]:
    """The class of each character up to U+FFFF; those above count as symbols."""
    table = np.full(0x10000, _SYMBOL, np.uint8)
    for code in range(0xFFFF):
        char = chr(code)
        category = unicodedata.category(char)
        if category[0] in "LM":
            script = unicodedata.name(char, "").split(" ", 1)[0]
            table[code] = _CLASS.get(script, _MARK if category[0] == "M" else _OTHER_LETTER)
        elif category[0] == "Z" or char == "\n":
            table[code] = _SPACE
        elif category == "Nd":
            table[code] = _DIGIT
    return table


@cache
def _membership(chars: str) -> Flags:
    """Whether each character up to U+FFFF is one of these."""
    table = np.zeros(0x10000, dtype=bool)
    table[[ord(char) for char in chars]] = True
    return table


class Characters:
    """One side's lines as characters.

    Attributes:
        lines: the text; counts: characters by class, (lines, classes).
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        text = "".join(f"{line}\n" for line in lines)
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)
        self._codes = codes.clip(0, 0xFFFF).astype(np.uint16)
        self._line_of = np.repeat(np.arange(len(lines)), [len(line) + 1 for line in lines])
        keys = self._line_of * _CLASSES + _class_table()[self._codes]
        self.counts = np.bincount(keys, minlength=len(lines) * _CLASSES).reshape(len(lines), _CLASSES)

    @property
    def letters(self) -> Ints:
        """Letters of each line."""
        letters: Ints = self.counts[:, _OTHER_LETTER:].sum(axis=1)
        return letters

    @property
    def digits(self) -> Ints:
        """Digits of each line."""
        return self.counts[:, _DIGIT]

    @property
    def symbols(self) -> Ints:
        """Punctuation and other symbols of each line."""
        return self.counts[:, _SYMBOL]

    def holding(self, chars: str) -> Flags:
        """Which lines hold one of these characters."""
        found = np.zeros(len(self.lines), dtype=bool)
        found[self._line_of[_membership(chars)[self._codes]]] = True
        return found

    def with_run(self, length: int = 8) -> Flags:
        """Which lines hold the same visible character `length` times in a row; `length` is a power of two."""
        found = np.zeros(len(self.lines), dtype=bool)
        same, covered = self._codes[1:] == self._codes[:-1], 2
        same &= _class_table()[self._codes[1:]] != _SPACE
        while covered < length:
            step = min(covered - 1, length - covered)
            same, covered = same[step:] & same[:-step], covered + step
        found[self._line_of[: len(same)][same]] = True
        return found


def dominant_script(characters: Characters) -> tuple[str, ...]:
    """The script that most letters belong to."""
    return (_SCRIPTS[int(characters.counts[:, 5:].sum(axis=0).argmax())],)


def scripts_of(language: str) -> tuple[str, ...]:
    """The scripts of a language by its code, or nothing if that is not known."""
    code = re.split("[-_]", language.lower())[0]
    return next((tuple(scripts.split()) for scripts, codes in _SCRIPTS_OF.items() if code in codes.split()), ())


def in_other_script(characters: Characters, scripts: Sequence[str]) -> Flags:
    """Lines with letters of which less than half are of these scripts."""
    expected = characters.counts[:, [_CLASS[script] for script in scripts]].sum(axis=1)
    other: Flags = (characters.letters >= _LEAST_LETTERS) & (2 * expected < characters.letters)
    return other


def broken_encoding(characters: Characters) -> Flags:
    """Lines with U+FFFD, which stands for bytes that were no UTF-8."""
    return characters.holding("\ufffd")


def mojibake(characters: Characters) -> Flags:
    """Lines whose UTF-8 was once read as Latin-1 or Windows-1252."""
    return _where(characters.holding("ÃÂâÐÑ"), lambda i: _MOJIBAKE.search(characters.lines[i]) is not None)


def garbage(characters: Characters, words: Words) -> Flags:
    """Lines of symbols or digits instead of letters, of one character again and again, or of the same words."""
    letters = characters.letters
    visible = letters + characters.digits + characters.symbols
    soup = (visible >= _LEAST_VISIBLE) & (letters < 0.3 * visible)
    return soup | characters.with_run() | repeats_itself(words)


def repeats_itself(words: Words) -> Flags:
    """Lines of at least 8 words of which hardly a third are different."""
    total = np.bincount(words.lines, minlength=words.count)
    long_enough = total >= _LEAST_REPEATED_WORDS
    chosen = long_enough[words.lines]
    distinct = Words(words.buckets[chosen], words.lines[chosen], words.count).distinct()
    return long_enough & (3 * np.bincount(distinct.lines, minlength=words.count) <= total + 2)


def identical(src: Characters, tgt: Characters) -> Flags:
    """Pairs of the same text on both sides, but for case, with letters in it."""
    alike = (src.letters > 0) & (src.letters == tgt.letters) & (src.symbols == tgt.symbols)
    return _where(alike, lambda i: src.lines[i].lower() == tgt.lines[i].lower())


def different_numbers(src: Characters, tgt: Characters) -> Flags:
    """Pairs with digits on both sides where a number of two digits and more is on one side only; 1,000 is 1.000.

    Where one side has no digits the number is most often written in words.
    """
    both = (src.digits > 0) & (tgt.digits > 0) & (src.digits + tgt.digits >= 3)
    return _where(both, lambda i: _long_numbers(src.lines[i]) != _long_numbers(tgt.lines[i]))


def _long_numbers(line: str) -> list[int]:
    return sorted(int(digits[:100]) for digits in _NUMBER.findall(_THOUSANDS.sub("", line)) if len(digits) >= 2)


def different_variables(src: Characters, tgt: Characters) -> Flags:
    """Pairs whose URLs, addresses or variables are not the same."""
    return _differ(_VARIABLE, src, tgt, "%{$@/")


def different_markup(src: Characters, tgt: Characters) -> Flags:
    """Pairs whose HTML tags or entities are not the same."""
    return _differ(_TAG, src, tgt, "<&")


def _differ(pattern: re.Pattern[str], src: Characters, tgt: Characters, needed: str) -> Flags:
    def found(line: str) -> list[str]:
        return sorted(match.rstrip(".,;:!?") for match in pattern.findall(line))

    return _where(src.holding(needed) | tgt.holding(needed), lambda i: found(src.lines[i]) != found(tgt.lines[i]))


def _where(candidates: Flags, judge: Callable[[int], bool]) -> Flags:
    """The candidates that `judge` confirms: it is slow, and asked of those alone."""
    found = np.zeros(len(candidates), dtype=bool)
    for place in np.flatnonzero(candidates).tolist():
        found[place] = judge(place)
    return found
