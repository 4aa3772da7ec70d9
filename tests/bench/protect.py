"""How many of 1,000 lines of technical prose keep their placeholders, tags and addresses, and where these go.

    python tests/bench/protect.py [MODEL]

Items are planted into libreoffice/help_test: placeholders, entities, URLs and e-mail addresses between words, tags
around words. MODEL is by default that of `make bench-multi30k`, trained here if it is not there: it has seen captions
of pictures and nothing of this kind. Where items go is measured on the toy corpus, whose word alignments are known.
"""

import random
from collections.abc import Sequence

from figures import ROOT
from nmt.text.protect import find_items, same_items

LINES, TOY_LINES = 1000, 500
MULTI30K = ROOT / "runs" / "multi30k-en-de"
TOY = ROOT / "runs" / "toy"
WORDS = ["{0}", "{name}", "%s", "%1$d", "%(count)d", "$VAR", "${HOME}", "{{ user.name }}", "[[Main page]]"]
WORDS += ["https://example.org/a?b=1&c=2", "www.example.org/x_(y).html", "first.last+x@mail.example.org"]
MARKS = ["&nbsp;", "&#8211;", "<br/>", r"\n", "%%"]
TAGS = [("<b>", "</b>"), ('<a href="https://example.org/?q=%20">', "</a>"), ("<1>", "</1>"), ('<g id="2">', "</g>")]


def plant(line: str, rng: random.Random) -> str:
    """The line with one to four items at random places between its words, or around some of them."""
    words = line.split()
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.6:
            words.insert(rng.randint(0, len(words)), rng.choice(WORDS if kind < 0.45 else MARKS))
        else:
            opening, closing = rng.choice(TAGS)
            start, end = sorted(rng.sample(range(len(words) + 1), 2))
            inside = " ".join(words[start:end])
            if all(item.mate >= 0 for item in find_items(inside) if item.text[0] == "<" and item.text != "<br/>"):
                words[start:end] = [opening + inside + closing]
    return " ".join(words)


def kept(lines: Sequence[str], translations: Sequence[str]) -> int:
    """Lines whose translation has the same items, as often, with tags nested."""
    pairs = zip(lines, translations, strict=True)
    return sum(same_items(find_items(line), find_items(translation)) for line, translation in pairs)
