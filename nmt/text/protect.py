"""What a translation must carry over to the byte: placeholders, tags, entities, URLs, e-mail addresses.

`find_items` says what there is in a line, `same_items` whether a translation has the same. `peel` cuts off what stands
at a line's ends, `take_out` gives the rest of the line as a model may see it: some items as stand-ins, the others gone,
with where they stood.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

Kind = Literal["word", "mark", "open", "close"]

# Written without spaces: Thai to Myanmar, Khmer, kana, Han.
UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_NOT_IN_URL = rf"\s<>\"(){{}}\[\]\\^`|\u3000-\u303f\uff00-\uffef{UNSPACED}"

# Tried in this order at each character. Each takes time linear in the line: what repeats excludes the character that
# begins it, or is bounded, and possessive where nothing is to be given back.
_PATTERNS = {
    "url": rf"(?i:(?:https?|ftps?|sftp|ssh|git|file)://|mailto:|(?<![\w.])www\.)(?:[^{_NOT_IN_URL}]"
    r"|\([^\s<>()]*+\)|\{[^\s<>{}]*+\}|\[[^\s<>\[\]]*+\])+(?<![.,;:!?'’])",
    "email": r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}+@[A-Za-z0-9-]++(?:\.[A-Za-z0-9-]++)++",
    "path": r'(?<![A-Za-z0-9])[A-Za-z]:\\[^\s<>"|*?]*(?<![.,;:!)])',  # C:\new is no line break
    "tag": r"</?(?:[A-Za-z][A-Za-z0-9:._-]*+(?=\s|/?>)(?:[^<>\"']++|\"[^\"<]*+\"|'[^'<]*+')*+|\d{1,9}+\s?/?)>",
    "comment": r"<[!?][^<>]*+>",
    "entity": r"&(?:[A-Za-z][A-Za-z0-9]{1,31}+|#\d{1,7}+|#[xX][0-9A-Fa-f]{1,6}+);",
    # A whole ICU message, {n, plural, one {…} other {…}}: its texts stay, for half a message is worth nothing.
    "message": r"\{\s?\w{1,64}+\s?,\s?(?:plural|select|selectordinal)\s?,"
    r"(?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+\}",
    "braces": r"\{\{\{?[^{}]{1,200}+\}\}\}?|\{%[^{}%]{1,200}+%\}|\{[\w$#@.-]{0,100}+(?:[\[:!,][^{}]{0,200}+)?+\}",
    "dollar": r"\$\{[^{}]{1,200}+\}|\$\([A-Za-z_][^()\s]{0,100}+\)|\$\[[^\[\]]{1,100}+\]|\$[A-Za-z_][A-Za-z0-9_]*+"
    r"|\$\d(?![.,]?\d)",
    "percent": r"%%",
    "variable": r"(?<!\d)%[A-Za-z_][A-Za-z0-9_]++%(?![A-Za-z0-9_(@$])",
    "printf": r"(?<!\d)%(?:\([\w.]{1,64}+\))?+(?:\d{1,2}\$)?+[-+#0]{0,5}+(?:\d{1,3}|\*)?+(?:\.(?:\d{1,3}|\*))?+"
    r"(?:hh?|ll?|[Lqjzt])?+[diouxXeEfFgGaAcCsSpn@]|%L?\d{1,2}(?!\d)",
    "escape": r"\\(?:[nrt\"'\\]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8})",
    "link": r"\[\[[^\[\]]{1,500}+\]\]",
}
_ITEM = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()))
_MARKS = {"comment", "entity", "percent", "escape"}  # the others, tags apart, stand for a word or a phrase
_TAG_NAME = re.compile(r"</?([^\s/>]+)")
_CLOSERS, _OPENERS = ".,;:!?)]}»”’%…、。", "([{«“„¿¡"


@dataclass(frozen=True)
class Item:
    """Something that a translation must carry over.

    Attributes:
        kind: word, if it stands for one; open or close, of a pair of tags; mark, anything else.
        mate: of a tag, the index of the other one in the list of all items.
        parent: the index of the innermost opening tag around it, or -1.
    """

    text: str
    start: int
    end: int
    kind: Kind
    mate: int = -1
    parent: int = -1


def find_items(line: str, symbols: Collection[str] = ()) -> list[Item]:
    """All items of a line in order. Tags are paired by name; those that find no partner are marks.

    Args:
        symbols: what a tokenizer knows as pieces of their own is the model's business, and no item.
    """
    items: list[Item] = []
    around: list[tuple[int, str]] = []  # tags that are open: index and name
    open_names: Counter[str] = Counter()
    for found in _ITEM.finditer(line):
        text, group = found[0], found.lastgroup
        if text in symbols:
            continue
        if _is_letter(found):
            continue
        mark_or_word: Kind = "mark" if group in _MARKS or group == "tag" else "word"
        item = Item(text, found.start(), found.end(), mark_or_word)
        items.append(item)
        if group != "tag" or text.endswith("/>"):
            continue
        match = _TAG_NAME.match(text)
        assert match is not None
        name = match[1]
        if not text.startswith("</"):
            around.append((len(items) - 1, name))
            open_names[name] += 1
        elif open_names[name]:
            while True:
                opening, opened = around.pop()
                open_names[opened] -= 1
                if opened == name:
                    break
            items[opening] = replace(items[opening], kind="open", mate=len(items) - 1)
            items[-1] = replace(item, kind="close", mate=opening)
    return _with_parents(items)


def _is_letter(found: re.Match[str]) -> bool:
    """Whether it is an entity such as &uuml;, which is spelling: a translation has other letters."""
    return found.lastgroup == "entity" and html.unescape(found[0]).isalpha()


def _with_parents(items: list[Item]) -> list[Item]:
    around = [-1]
    nested: list[Item] = []
    for index, item in enumerate(items):
        if item.kind == "close":
            around.pop()
        nested.append(replace(item, parent=around[-1]))
        if item.kind == "open":
            around.append(index)
    return nested


def same_items(source: Sequence[Item], translation: Sequence[Item]) -> bool:
    """Whether both have the same items, equally often, with the same tags paired inside the same tags."""

    def counted(items: Sequence[Item]) -> Counter[tuple[str, ...]]:
        return Counter(
            (i.text, i.kind, items[i.parent].text if i.parent >= 0 else "") if i.mate >= 0 else (i.text,) for i in items
        )

    return counted(source) == counted(translation)


def without_items(text: str) -> str:
    """The text between the items."""
    return _ITEM.sub(lambda found: found[0] if _is_letter(found) else " ", text)


def drop_items(text: str) -> str:
    """The text with its items and what they leave over of spaces taken away."""
    dropped = without_items(text)
    return text if dropped == text else re.sub(" {2,}", " ", dropped).strip()


@lru_cache(4096)
def char_class(char: str) -> Literal["s", "p", "w"]:
    """Space (or no character at all), punctuation and symbols, or of a word."""
    if not char or char.isspace():
        return "s"
    return "p" if unicodedata.category(char)[0] in "PS" else "w"


def closes(char: str) -> bool:
    """Whether no space stands before this character."""
    return char != "" and char in _CLOSERS


def opens(char: str) -> bool:
    """Whether no space stands behind this character."""
    return char != "" and char in _OPENERS


def peel(line: str, items: Sequence[Item]) -> tuple[int, int]:
    """The range of the line that is left when marks at its ends, and tags around all of it, are cut off."""
    first, last, start, end = 0, len(items) - 1, 0, len(line)
    while first <= last:
        begins = not line[start : items[first].start].strip()
        ends = not line[items[last].end : end].strip()
        if begins and items[first].kind == "mark":
            start, first = items[first].end, first + 1
        elif ends and items[last].kind == "mark":
            end, last = items[last].start, last - 1
        elif begins and ends and items[first].kind == "open" and items[first].mate == last:
            start, end, first, last = items[first].end, items[last].start, first + 1, last - 1
        else:
            break
    left = line[start:end]
    return start + len(left) - len(left.lstrip()), end - len(left) + len(left.rstrip())


@dataclass(frozen=True)
class Taken:
    """An item that was taken out of a line.

    Attributes:
        index: in the list of all items of the line.
        offset: in the text that is left, where it stood.
        before, after: the characters that it touched; empty at the line's ends.
    """

    item: Item
    index: int
    offset: int
    before: str
    after: str


@dataclass
class StandIn:
    """What stands for an item in the line that a model sees.

    Attributes:
        pads_left, pads_right: whether a space was put there, which the line did not have.
    """

    text: str
    item: Item
    pads_left: bool = False
    pads_right: bool = False


@dataclass(frozen=True)
class Bare:
    """A line as a model may see it."""

    text: str
    taken: tuple[Taken, ...]
    stand_ins: tuple[StandIn, ...]


def take_out(line: str, items: Sequence[Item], codes: Sequence[str] = ()) -> Bare:
    """Take the items out of a line.

    Args:
        codes: stand in for the words among the items, one each in order; without any these are taken out too.
    """
    starts, ends = [0, *(item.end for item in items)], [*(item.start for item in items), len(line)]
    texts = [line[start:end] for start, end in zip(starts, ends, strict=True)]  # around the items
    stays = [item.kind == "word" and bool(codes) for item in items]
    for index, item in enumerate(items):  # no space is left over before punctuation
        if item.mate < 0 and not stays[index] and closes(texts[index + 1][:1]):
            texts[index] = texts[index].rstrip(" ")
    built = _Built()
    built.add(texts[0])
    taken: list[Taken] = []
    for index, item in enumerate(items):
        if stays[index]:
            built.add_stand_in(StandIn(codes[len(built.stand_ins)], item))
        else:
            before, after = line[item.start - 1 : item.start], line[item.end : item.end + 1]
            taken.append(Taken(item, index, built.offset, before, after))
            built.parted = built.parted or item.mate < 0
        built.add(texts[index + 1])
    return Bare("".join(built.chunks), tuple(taken), tuple(built.stand_ins))


class _Built:
    """The text that is left, chunk by chunk. Words that an item parted are kept apart by a space.

    Attributes:
        offset: of the end, without the spaces there.
        parted: whether something other than a tag of a pair stood here.
    """

    def __init__(self) -> None:
        self.chunks: list[str] = []
        self.stand_ins: list[StandIn] = []
        self.offset = self._length = 0
        self.parted = False
        self._follows_stand_in = False

    def add(self, text: str) -> None:
        """Add text of the line."""
        if not text:
            return
        if self._joins(text):
            self._append(" ")
            if self._follows_stand_in:
                self.stand_ins[-1].pads_right = True
        self._append(text)
        self.parted = self._follows_stand_in = False

    def add_stand_in(self, stand_in: StandIn) -> None:
        """Add what stands for an item."""
        self.parted = True
        stand_in.pads_left = self._joins(stand_in.text)
        self.add(stand_in.text)
        self.stand_ins.append(stand_in)
        self.parted = self._follows_stand_in = True

    def _joins(self, text: str) -> bool:
        return self.parted and bool(self.chunks) and char_class(self.chunks[-1][-1]) == char_class(text[0]) == "w"

    def _append(self, text: str) -> None:
        if text.strip():
            self.offset = self._length + len(text.rstrip())
        self.chunks.append(text)
        self._length += len(text)


def put_in(translation: str, stand_ins: Sequence[StandIn]) -> str | None:
    """The translation with the items for their stand-ins; None if one of these is not there exactly once."""
    if not stand_ins:
        return translation
    by_text = {stand_in.text: stand_in for stand_in in stand_ins}
    any_code = re.compile(rf"((?<=\w) )?(?a:\b)({'|'.join(map(re.escape, by_text))})(?a:\b)( (?=\w))?")
    if sorted(match[2] for match in any_code.finditer(translation)) != sorted(by_text):
        return None

    def item(match: re.Match[str]) -> str:
        stand_in = by_text[match[2]]
        left = "" if stand_in.pads_left else match[1] or ""
        right = "" if stand_in.pads_right else match[3] or ""
        return left + stand_in.item.text + right

    return any_code.sub(item, translation)
