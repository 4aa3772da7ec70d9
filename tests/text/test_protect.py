"""Finding, taking out and putting back what a translation must carry over."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.text.placing import Placer, keep_order, piece_ranges, put_back, units_of
from nmt.text.protect import drop_items, find_items, peel, put_in, same_items, take_out

KINDS = {
    "word": r"{0} {name} {} {0:.2f} {n,number} {{user.name}} {%~if~x~%} {user.name} %s %d %1$d %-5.2f "
    r"%lld %@ %(name)s %1 %L2 %APPDATA% $VAR ${VAR} $(VAR) $[officename] $1 [[link]] "
    r"{n,plural,one{#~file}other{#~files~in~{d}}} "
    r"https://a.example/b?c=1&d=%20 http://x.example/a_(b) ftp://h/f www.x.example mailto:a@b.example "
    r"a.b+c@mail.example.org C:\new\table",
    "mark": r"%% &nbsp; &#160; &#xA0; <br/> <br> <x~id=1/> <!--c--> \n \t \" \\ \u00e9 </b> <p>",
    "": "100~% 5% 50% {1;2} $5.00 a&b <5 a@b 12:30 [x] C: 100%ige < > { } <a@b> $ R&~D; f&uuml;r &#xe9; &",
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, each.replace("~", " ")) for kind, texts in KINDS.items() for each in texts.split()]
)
def test_what_is_an_item(kind: str, text: str) -> None:
    for line in (text, f"see {text} now", f"({text}), or"):
        found = [(item.text, item.kind) for item in find_items(line)]
        assert found == ([(text, kind)] if kind else []), line


@pytest.mark.parametrize(
    ("line", "items"),
    [
        ("Go to http://x.example/a. Then", ["http://x.example/a"]),
        ("见http://x.example/a。", ["http://x.example/a"]),
        ("$VAR文件{0}", ["$VAR", "{0}"]),
        ("%s%d {0}{1}", ["%s", "%d", "{0}", "{1}"]),
        ("100%% of %s%%", ["%%", "%s", "%%"]),
        ("<a title=\"x > y\" href='z'>t</a>", ["<a title=\"x > y\" href='z'>", "</a>"]),
        ("<https://x.example/a>", ["https://x.example/a"]),
        (r"one\ntwo", [r"\n"]),
    ],
)
def test_where_items_end(line: str, items: list[str]) -> None:
    assert [item.text for item in find_items(line)] == items


def test_tags_are_paired_by_name() -> None:
    found = find_items("<p><b>a <i>b</b> c</i> <br> <b>{0}</b></p>")
    kinds = [(item.text, item.kind, item.parent) for item in found]
    assert kinds == [
        ("<p>", "open", -1),
        ("<b>", "open", 0),
        ("<i>", "mark", 1),  # closed too late
        ("</b>", "close", 0),
        ("</i>", "mark", 0),
        ("<br>", "mark", 0),
        ("<b>", "open", 0),
        ("{0}", "word", 6),
        ("</b>", "close", 0),
        ("</p>", "close", -1),
    ]


@pytest.mark.parametrize(
    ("source", "translation", "same"),
    [
        ("a {0} b {1}", "{1} x {0}", True),
        ("a {0} b", "x {0} {0}", False),
        ("a {0} {0} b", "x {0}", False),
        ("a {0}", "x { 0 }", False),
        ("a", "x {0}", False),
        ("<b>a</b> <i>b</i>", "<i>x</i> <b>y</b>", True),
        ("<b>a</b> b", "</b>x<b> y", False),
        ("<b>a <i>b</i></b>", "<b>x</b> <i>y</i>", False),
        ("<b>a <i>b</i></b>", "<b>x <i>y</b></i>", False),
        ("see http://x.example/a", "siehe http://x.example/ab", False),
        ("see %s", "%s sehen", True),
    ],
)
def test_whether_a_translation_has_the_same(source: str, translation: str, same: bool) -> None:
    assert same_items(find_items(source), find_items(translation)) == same


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("<p>The dog.</p>", "The dog."),
        (r"<div> <p>The dog.</p> </div>\n", "The dog."),
        ("<b>The</b> dog", "<b>The</b> dog"),
        ("<b>The</b> <b>dog</b>", "<b>The</b> <b>dog</b>"),
        ("{0} dogs, see http://x.example", "{0} dogs, see http://x.example"),
        ("&nbsp;<br/> {0} dogs <br/>", "{0} dogs"),
        ("{0}<br/>", "{0}"),
        ("<br/>", ""),
    ],
)
def test_ends_are_cut_off(line: str, left: str) -> None:
    start, end = peel(line, find_items(line))
    assert line[start:end] == left


@pytest.mark.parametrize(
    ("line", "bare", "masked"),
    [
        ("See {0}.", "See.", "See 211."),
        ("the {0} file", "the  file", "the 211 file"),
        ("file%s.", "file.", "file 211."),
        ("{0}{1} files", "  files", "211 218 files"),
        ("un<b>believ</b>able", "unbelievable", "unbelievable"),
        ("one<br/>two", "one two", "one two"),
        ("<b>{0}</b>dogs", "dogs", "211 dogs"),
        ("(see {0})", "(see)", "(see 211)"),
    ],
)
def test_what_the_model_sees(line: str, bare: str, masked: str) -> None:
    items = find_items(line)
    assert take_out(line, items).text.split() == bare.split()
    assert take_out(line, items, ("211", "218")).text == masked


@pytest.mark.parametrize(
    ("line", "translated", "whole"),
    [
        ("file%s now", "jetzt Datei 211", "jetzt Datei%s"),
        ("{0}{1} files", "211 218 Dateien", "{0}{1} Dateien"),
        ("see {0} now", "jetzt (211)", "jetzt ({0})"),
        ("see {0} now", "现在看211吧", "现在看{0}吧"),
        ("see {0} now", "jetzt 2110", None),
        ("see {0} now", "211 und 211", None),
        ("see {0} now", "jetzt", None),
    ],
)
def test_stand_ins_are_replaced(line: str, translated: str, whole: str | None) -> None:
    assert put_in(translated, take_out(line, find_items(line), ("211", "218")).stand_ins) == whole


def place(line: str, translated: str, links: str) -> str:
    """The translation of the bare line with its items; `links`: the source unit of each target unit."""
    bare = take_out(line, find_items(line))
    units = units_of(translated)
    aligned = np.array([int(link) for link in links.split()])
    assert len(aligned) == len(units)
    boundaries = Placer(bare.taken, units_of(bare.text), aligned).place()
    return put_back(translated, units, bare.taken, boundaries)


@pytest.mark.parametrize(
    ("line", "translated", "links", "whole"),
    [
        ("The <b>old man</b> sleeps.", "Der alte Mann schläft.", "0 1 2 3 4", "Der <b>alte Mann</b> schläft."),
        ("I saw <b>him</b>.", "Ihn sah ich.", "2 1 0 3", "<b>Ihn</b> sah ich."),
        ("See {0}.", "Siehe.", "0 1", "Siehe {0}."),
        ("Open (see {0}) now", "Jetzt öffnen (siehe)", "4 0 1 2 3", "Jetzt öffnen (siehe {0})"),
        ("file%s here", "hier Datei", "1 0", "hier Datei%s"),
        ("one<br/>two", "eins zwei", "0 1", "eins<br/>zwei"),
        ("5&nbsp;kg", "5 kg", "0 1", "5&nbsp;kg"),
        ("a<b>b</b>c", "x y z", "0 0 0", "<b>x y z</b>"),
        ("<b>a <i>b</i></b> c", "z y x", "2 1 0", "z <b><i>y</i> x</b>"),
        ("<b>a</b> <i>b</i> c", "x y z", "1 0 2", "<i>x</i> <b>y</b> z"),
        ("<b>a</b> <i>b</i>", "x", "0", "<b>x</b> <i></i>"),
        ("a <b>b {0} c</b> d", "w x y z", "0 1 2 3", "w <b>x {0} y</b> z"),
        ("{0} a b", "x y", "0 1", "{0} x y"),
        ("a b {0} {1}", "y x", "1 0", "y x {0} {1}"),
        ("see <a>this</a>{0} now", "看这现在", "0 1 2 2", "看<a>这</a>{0}现在"),
    ],
)
def test_items_go_where_their_words_went(line: str, translated: str, links: str, whole: str) -> None:
    assert place(line, translated, links) == whole


def test_units_are_words_and_are_never_split() -> None:
    def words(text: str) -> list[str]:
        return [text[start:end] for start, end in units_of(text)]

    assert words("Don't “go”, 3.5!") == ["Don", "'", "t", "“", "go", "”", ",", "3", ".", "5", "!"]
    assert words("हिन्दी e\u0301 猫です") == ["हिन्दी", "e\u0301", "猫", "で", "す"]


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("the cats.", ["▁the", "▁c", "at", "s", "."], ["▁the", "▁cats", "."]),
        ("  ö  x ", ["▁", "<0xC3>", "<0xB6>", "▁x"], ["<0xC3>", "▁x"]),
        ("猫です", ["▁猫で", "す"], ["▁猫で", "▁猫で", "す"]),
        ("ﬁle x", ["▁fi", "le", "▁x"], ["▁file", "▁x"]),
        ("a¨b c", ["▁a", "▁¨b", "▁c"], None),  # normalisation made a word more
    ],
)
def test_pieces_of_units(text: str, pieces: list[str], expected: list[str] | None) -> None:
    ranges = piece_ranges(text, pieces, units_of(text))
    assert all(0 <= first < last <= len(pieces) for first, last in ranges)
    if expected is not None:
        assert ["".join(pieces[first:last]) for first, last in ranges] == expected


ITEMS = ["<b>", "</b>", "<i>", "</i>", "<br/>", "{0}", "%s", "%%", "&amp;", r"\n", "$A", "http://a.b/c"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([*ITEMS, *" ab.,(猫é1"]) | st.characters(codec="utf-8"), max_size=25).map("".join))
def test_taking_out_and_putting_back_loses_nothing(line: str) -> None:
    items = find_items(line)
    assert all(line[item.start : item.end] == item.text for item in items)
    bare = take_out(line, items)
    units = units_of(bare.text)
    if units and all(item.mate < 0 for item in items):  # a tag inside of a word comes to stand around the word
        whole = put_back(bare.text, units, bare.taken, keep_order(bare.taken, units, len(units)))
        assert "".join(whole.split()) == "".join(line.split())
    masked = take_out(line, items, [f"q{number}q7" for number in range(len(items))])
    whole = put_back(masked.text, units_of(masked.text), masked.taken, [0] * len(masked.taken))
    assert len(masked.taken) + len(masked.stand_ins) == len(items) and put_in(whole, masked.stand_ins) is not None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(["<b>", "</b>", "<i>", "</i>", "<br/>", "{0}", "{1}", *" ab.,(猫é"]), max_size=25),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
)
def test_wherever_words_go_all_items_come_out_nested(parts: list[str], links: list[int]) -> None:
    line = "".join(parts)
    items = find_items(line)
    bare = take_out(line, items)
    src_units = units_of(bare.text)
    if not src_units or any(item.mate < 0 and item.text in ("<b>", "</b>", "<i>", "</i>") for item in items):
        return  # tags without partners may find one elsewhere: then the line is placed in order, or flagged
    translated = "x" + " x" * (len(links) - 1)
    aligned = np.array(links) % len(src_units)
    placed = put_back(translated, units_of(translated), bare.taken, Placer(bare.taken, src_units, aligned).place())
    assert same_items(items, find_items(placed)), (line, placed)
    assert drop_items(placed).split() == translated.split() or any(item.mate >= 0 for item in items)


def test_dropped_items_leave_no_gap() -> None:
    assert drop_items("a {0} b  c") == "a b c" and drop_items("a  b") == "a  b" and drop_items("{0}") == ""


@pytest.mark.parametrize("part", ["<", "{", "%", '<a "', "[[", "{a,plural,{}", "a@", "http://(", "<b><i>"])
def test_a_hostile_line_comes_back(full: bool, part: str) -> None:
    """If a pattern took quadratic time, 64 KiB would take minutes; the bench prints how long they take."""
    size = 65_536 if full else 8_192
    for line in (part * (size // len(part)), part * (size // 2 // len(part)) + "a " * (size // 4)):
        items = find_items(line)
        bare = take_out(line, items)
        assert len(bare.text) + sum(len(item.text) for item in items) >= len("".join(line.split()))


def test_symbols_of_a_tokenizer_are_no_items() -> None:
    line = "<lo> Press <b>OK</b> in {0}."
    assert [item.text for item in find_items(line, symbols=["<lo>", "{0}"])] == ["<b>", "</b>"]
    assert [item.text for item in find_items(line)] == ["<lo>", "<b>", "</b>", "{0}"]
