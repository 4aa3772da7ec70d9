"""Pharaoh links as text, and how good links are: precision, recall and alignment error rate (Och and Ney 2003)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nmt.alignment.links import Link, Links
from nmt.errors import DataError

_LINK = re.compile(r"(\d{1,9})([-p])(\d{1,9})", re.ASCII)
_LONGEST_SHOWN = 40  # characters of what is no link


@dataclass(frozen=True)
class GoldLinks:
    """The links of a sentence pair by hand. `possible` has the sure ones too."""

    sure: Links
    possible: Links


def parse_gold(line: str) -> GoldLinks:
    """`i-j` is a sure link, `ipj` a possible one. Raises: ValueError, with a reason for the user."""
    sure: set[Link] = set()
    possible: set[Link] = set()
    for word in line.split():
        found = _LINK.fullmatch(word)
        if not found:
            shown = word if len(word) <= _LONGEST_SHOWN else f"{word[:_LONGEST_SHOWN]}…"
            raise ValueError(f"{shown!a} is no link; links are i-j (sure) or ipj (possible), counted from 0")
        link = int(found[1]), int(found[3])
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return GoldLinks(frozenset(sure), frozenset(possible))


def read_links(lines: Iterable[str], name: str) -> list[GoldLinks]:
    """The links of each line of a file. Raises: DataError, which names file and line."""
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(parse_gold(line))
        except ValueError as error:
            raise DataError(f"{name}, line {number}: {error}.") from None
    return found


def to_pharaoh(links: Iterable[Link]) -> str:
    """Links as `i-j`, in order of the target; nothing for none."""
    return " ".join(f"{i}-{j}" for i, j in sorted(links, key=lambda link: (link[1], link[0])))


def check_inside(gold: Sequence[GoldLinks], src: Sequence[str], tgt: Sequence[str], name: str) -> None:
    """Raises: DataError, which names file and line, if a link is of a token that its text has not."""
    for number, (links, src_line, tgt_line) in enumerate(zip(gold, src, tgt, strict=True), start=1):
        counts = len(src_line.split()), len(tgt_line.split())
        outside = sorted(link for link in links.possible if link[0] >= counts[0] or link[1] >= counts[1])
        if outside:
            i, j = outside[0]
            raise DataError(
                f"{name}, line {number}: there is a link {i}-{j}, but the texts have {counts[0]} source and "
                f"{counts[1]} target tokens, counted from 0. Are the sides swapped, or the texts tokenised otherwise?"
            )


@dataclass(frozen=True)
class Quality:
    """Counts over a corpus, and what follows from them.

    Attributes:
        links: found ones.
        sure, possible: gold links, the possible ones with the sure ones.
        right_sure, right_possible: found links that are sure, and that are possible.
    """

    links: int
    sure: int
    possible: int
    right_sure: int
    right_possible: int

    @property
    def precision(self) -> float:
        """Found links that are possible, from 0 to 1; of none all are."""
        return self.right_possible / self.links if self.links else 1.0

    @property
    def recall(self) -> float:
        """Sure links that are found, from 0 to 1; of none all are."""
        return self.right_sure / self.sure if self.sure else 1.0

    @property
    def aer(self) -> float:
        """Alignment error rate, 1 - (right sure + right possible) / (found + sure): 0 is best."""
        total = self.links + self.sure
        return 1 - (self.right_sure + self.right_possible) / total if total else 0.0


def quality(found: Sequence[Links], gold: Sequence[GoldLinks]) -> Quality:
    """How good the links of a corpus are; sentences add up their counts."""
    pairs = list(zip(found, gold, strict=True))
    return Quality(
        links=sum(len(links) for links, _ in pairs),
        sure=sum(len(by_hand.sure) for _, by_hand in pairs),
        possible=sum(len(by_hand.possible) for _, by_hand in pairs),
        right_sure=sum(len(links & by_hand.sure) for links, by_hand in pairs),
        right_possible=sum(len(links & by_hand.possible) for links, by_hand in pairs),
    )


def agreement(forward: Sequence[Links], reverse: Sequence[Links]) -> float:
    """How much the links of two directions are the same: the harmonic mean of the shares that they have in common."""
    common = sum(len(one & other) for one, other in zip(forward, reverse, strict=True))
    total = sum(map(len, forward)) + sum(map(len, reverse))
    return 2 * common / total if total else 0.0
