"""How many of 1,000 lines of technical prose keep their placeholders, tags and addresses, and where these go.

    python tests/bench/protect.py [MODEL]

Items are planted into libreoffice/help_test: placeholders, entities, URLs and e-mail addresses between words, tags
around words. MODEL is by default that of `make bench-multi30k`, trained here if it is not there: it has seen captions
of pictures and nothing of this kind. Where items go is measured on the toy corpus, whose word alignments are known.
First comes how long lines of 64 KiB take that are made to be slow.
"""

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from figures import REAL_DATA, ROOT, figure_line, nmt
from nmt.decoding import protected
from nmt.decoding.protected import ProtectingTranslator, Way
from nmt.decoding.translator import Translator
from nmt.text.placing import keep_order, put_back, units_of
from nmt.text.protect import find_items, same_items, take_out

LINES, TOY_LINES, CONTROL_LINES = 1000, 500, 100
MULTI30K = ROOT / "runs" / "multi30k-en-de"
TOY = ROOT / "runs" / "toy"
WORDS = ["{0}", "{name}", "%s", "%1$d", "%(count)d", "$VAR", "${HOME}", "{{ user.name }}", "[[Main page]]"]
WORDS += ["https://example.org/a?b=1&c=2", "www.example.org/x_(y).html", "first.last+x@mail.example.org"]
MARKS = ["&nbsp;", "&#8211;", "<br/>", r"\n", "%%"]
TAGS = [("<b>", "</b>"), ('<a href="https://example.org/?q=%20">', "</a>"), ("<1>", "</1>"), ('<g id="2">', "</g>")]
HOSTILE = [
    "<",
    "{",
    "%",
    '<a "',
    "{{",
    "%%",
    "%(",
    "[[",
    "$(",
    "{a,plural,{}",
    "a@",
    "a.",
    "http://(",
    "mailto:",
    "<b><i>",
]
HOSTILE += ["</b>", "<b></b>", "\\", "C:\\", "&a", "&#", "a %s ", "%AB", "<!", "www.", "<b>a</b>", "$A", "你%s"]
HOSTILE_BYTES = 65_536


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


def help_lines(count: int) -> list[str]:
    """Lines of technical prose with planted items, the same ones each time."""
    rng = random.Random(1)
    text = (REAL_DATA / "libreoffice" / "help_test.en").read_text().split("\n")
    return [plant(line, rng) for line in text[:count]]


def seconds_of(line: str) -> float:
    """How long it takes to find the items of a line, to take them out and to put them back in order."""
    began = time.perf_counter()
    items = find_items(line)
    assert same_items(items, items)
    bare = take_out(line, items)
    units = units_of(bare.text)
    if units:
        put_back(bare.text, units, bare.taken, keep_order(bare.taken, units, len(units)))
    return time.perf_counter() - began


def well_placed(translator: Translator, pairs: Sequence[tuple[str, str, str]], rng: random.Random) -> Counter[str]:
    """Where items go in translations that are right: counts of "alone", "tags", and the right ones of either.

    Args:
        pairs: source, reference and gold alignment of white-space words (Pharaoh).

    A placeholder is planted behind a source word with one aligned word: it is to stand behind that, or before the one
    word aligned with the next. A tag is put around such a word, and is to be around that one alone.
    """
    counts: Counter[str] = Counter()
    planted = []
    for src, ref, links in pairs:
        gold = [tuple(map(int, link.split("-"))) for link in links.split()]
        sole = [(i, j) for i, j in gold if sum(i == a for a, _ in gold) == sum(j == b for _, b in gold) == 1]
        sole = [(i, j) for i, j in sole if src.split()[i].isalpha() and ref.split()[j].isalpha()]
        if sole:
            words, (i, j) = src.split(), rng.choice(sole)
            followed = " ".join([*words[: i + 1], "{0}", *words[i + 1 :]])
            tagged = " ".join([*words[:i], f"<b>{words[i]}</b>", *words[i + 1 :]])
            next_j = dict(sole).get(i + 1)
            beside = [f"{ref.split()[j]} {{0}}", *([] if next_j is None else [f"{{0}} {ref.split()[next_j]}"])]
            planted.append(("alone", followed, ref, beside))
            planted.append(("tags", tagged, ref, [f"<b>{ref.split()[j]}</b>"]))
    found = ProtectingTranslator(translator).translations([line for _, line, _, _ in planted])
    for (kind, _, ref, wanted), each in zip(planted, found, strict=True):
        plain = re.sub(" +", " ", re.sub(r"</?b>|\{0\} ?", "", each.text)).strip()
        if plain.rstrip(" .") == ref.rstrip(" ."):  # another translation has no gold alignment
            counts[kind] += 1
            counts[f"{kind} right"] += any(place in each.text for place in wanted)
    return counts


def main() -> None:
    """Print the figures."""
    if not REAL_DATA.is_dir():
        sys.exit("this bench needs ../shared/data")
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else MULTI30K
    if model == MULTI30K:
        nmt("train", "configs/multi30k-en-de.toml", "--data", REAL_DATA / "multi30k", "--out", MULTI30K)
    seconds = {part: seconds_of(part * (HOSTILE_BYTES // len(part))) for part in HOSTILE}
    slowest = max(HOSTILE, key=seconds.__getitem__)
    shown = f"{seconds[slowest]:.1f} s ({slowest}), the slowest of {len(HOSTILE)} lines of 64 KiB"
    print(figure_line("protect_hostile_line", shown, "<= 10 s", seconds[slowest] <= 10), flush=True)
    lines, translator = help_lines(LINES), Translator(model, device="cpu")
    began = time.perf_counter()
    plain = translator.translate(lines)
    plain_s, began = time.perf_counter() - began, time.perf_counter()
    found = ProtectingTranslator(translator).translations(lines)
    protected_s = time.perf_counter() - began
    whole = kept(lines, [each.text for each in found])
    flagged = sum(each.protected is Way.lost for each in found)
    percent = 100 * whole / len(lines)
    ok = percent >= 99 and whole + flagged == len(lines)  # and nothing is lost without being flagged
    shown = f"{percent:.1f} of {len(lines)} lines, {flagged} flagged"
    print(figure_line("protected_kept_percent", shown, ">= 99", ok), flush=True)
    ways = Counter(str(each.protected) for each in found)
    print(figure_line("protected_ways", ", ".join(f"{count} {way}" for way, count in ways.most_common()), "-", True))
    unprotected = 100 * kept(lines, plain) / len(lines)
    print(figure_line("unprotected_kept_percent", f"{unprotected:.1f}", "< 50, the control", unprotected < 50))
    print(figure_line("protected_time", f"{protected_s / plain_s:.1f} times that without", "-", True), flush=True)

    if not (TOY / "bundle").is_dir():
        nmt("data", "toy", "--out", ROOT / "data" / "toy")
        nmt("train", "configs/toy.toml", "--out", TOY)
    print_places(Translator(TOY, device="cpu"))


def print_places(translator: Translator) -> None:
    """The figures of the toy corpus; as a control those of items placed in proportion instead of by attention."""
    texts = [(ROOT / "data" / "toy" / f"test.{part}").read_text().splitlines() for part in ("en", "de", "align")]
    pairs = list(zip(*texts, strict=True))[:TOY_LINES]
    counts = well_placed(translator, pairs, random.Random(1))
    protected.forced_attention = lambda models, special, pairs, choice: [None] * len(pairs)
    blind = well_placed(translator, pairs[:CONTROL_LINES], random.Random(1))
    for kind in ("alone", "tags"):
        right, by_place = (100 * each[f"{kind} right"] / max(1, each[kind]) for each in (counts, blind))
        shown = f"{right:.1f} of {counts[kind]} (without attention {by_place:.1f})"
        print(figure_line(f"protected_place_{kind}_percent", shown, "> without", right > by_place), flush=True)


if __name__ == "__main__":
    main()
