"""The line contract: one line in, one line out, whatever the bytes."""

import io
import tracemalloc
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.text.lines import MAX_LINE_BYTES, LineNotes, Numbers, clean, is_blank, read_file, read_lines, read_raw_lines

# What str.splitlines and other tools take for the end of a line, and TAB; only \n is one here.
ODD_BREAKS = ["\t", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\u2028", "\u2029"]
BIDI = [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]


def lines_of(data: bytes, notes: LineNotes | None = None, limit: int = MAX_LINE_BYTES) -> list[str]:
    return list(read_lines(io.BytesIO(data), notes, limit))


def count_newline_lines(data: bytes) -> int:
    """Lines as `wc -l` counts them, a last one without its newline included."""
    return data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


@pytest.mark.parametrize("odd", ODD_BREAKS, ids=ascii)
def test_odd_breaks_stay_in_the_line_and_become_spaces(odd: str) -> None:
    assert lines_of(f"a{odd}b\nc\n".encode()) == [f"a{odd}b", "c"]
    assert clean(f"a{odd}b") == "a b"
    assert clean(odd) == ""


def test_splitlines_would_have_cut_there() -> None:
    """The negative control: all but TAB and U+001F are ends of a line to Python."""
    assert [odd for odd in ODD_BREAKS if len(f"a{odd}b".splitlines()) == 1] == ["\t", "\x1f"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\n", ["", ""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb\r", ["a", "b"]),
        (b"a\r\r\n", ["a\r"]),
        (b"\r\n\r\n", ["", ""]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbf", [""]),
        (b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa\n", ["\ufeffa"]),
        ("Grün\n".encode(), ["Grün"]),
        (b"a\x00b\n", ["a\x00b"]),
    ],
    ids=repr,
)
def test_lines_of_bytes(data: bytes, lines: list[str]) -> None:
    assert lines_of(data) == lines


def test_invalid_utf8_is_replaced_and_counted() -> None:
    notes = LineNotes()
    data = b"good\nbad \xff\xfe end\nGr\xfcn\r\ngood\ncut \xe2\x82\n"
    lines = lines_of(data, notes)
    assert lines == ["good", "bad \ufffd\ufffd end", "Gr\ufffdn", "good", "cut \ufffd"]
    assert notes.invalid_utf8.first == [2, 3, 5]
    assert notes.warnings("in.txt") == ["in.txt: 3 line(s) (2, 3, 5) held invalid UTF-8, replaced by U+FFFD."]
    assert lines_of(data) == lines  # notes are optional


def test_warnings_name_five_lines_at_most_and_nothing_when_all_is_well() -> None:
    assert LineNotes().warnings("x") == []
    both = LineNotes(Numbers(7, [1, 2, 3, 4, 5]), Numbers(1, [9]))
    assert both.warnings("x") == [
        "x: 7 line(s) (1, 2, 3, 4, 5, …) held invalid UTF-8, replaced by U+FFFD.",
        "x: 1 line(s) (9) were cut: longer than the line limit.",
    ]


@pytest.mark.parametrize("end", [b"\n", b"", b"\nnext\n"])
@pytest.mark.parametrize(("length", "cut"), [(9, False), (10, False), (11, True), (12, True), (1000, True)])
def test_lines_are_cut_past_the_limit_only(length: int, cut: bool, end: bytes) -> None:
    notes = LineNotes()
    lines = lines_of(b"x" * length + end, notes, limit=10)
    assert lines[0] == "x" * min(length, 10)
    assert lines[1:] == (["next"] if b"next" in end else [])
    assert notes.too_long.first == ([1] if cut else [])


@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("limit", range(8, 13))
def test_lines_are_cut_between_characters(character: str, limit: int) -> None:
    notes = LineNotes()
    width = len(character.encode())
    assert lines_of(character.encode() * 100 + b"\nb\n", notes, limit) == [character * (limit // width), "b"]
    assert (notes.too_long.first, notes.invalid_utf8.first) == ([1], [])


def test_cut_lines_of_rubbish_do_not_fail() -> None:
    assert lines_of(b"\x80" * 30, limit=10) == ["\ufffd" * 10]
    assert lines_of(b"abcdefghi\xff\xff", limit=10) == ["abcdefghi"]


class Endless(io.RawIOBase):
    """A line of 64 MB that exists only as it is read."""

    def __init__(self) -> None:
        self.left = 64 * 2**20

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = min(len(buffer), self.left)
        buffer[:size] = b"x" * size
        self.left -= size
        return size


def test_an_endless_line_takes_constant_memory() -> None:
    tracemalloc.start()
    lines = list(read_raw_lines(io.BufferedReader(Endless())))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(len(raw), cut) for raw, cut in lines] == [(MAX_LINE_BYTES, True)]
    assert peak < 8 * 2**20


@pytest.mark.parametrize(
    "blank",
    ["", " ", "  ", "\t", "\xa0", "\u3000", "\u2003", "\u200b", "\u200c", "\u200d", "\u200e", "\u200f", "\u00ad",
     "\u2060", "\ufeff", "\r", "\x00", "\x1b", "\x85", "\u2028", "\u202e", "\u2066\u2069", " \u200b\xa0\t\u3000\ufeff"],
    ids=ascii,
)  # fmt: skip
def test_lines_that_show_nothing_are_blank(blank: str) -> None:
    assert clean(blank) == ""


@pytest.mark.parametrize("visible", [".", "\u200bx", "0", "\ufffd", "\u0301", "🙂", " a "])
def test_lines_that_show_something_are_kept_as_they_are(visible: str) -> None:
    assert not is_blank(visible)
    assert clean(visible) == visible


def test_clean_drops_controls_and_keeps_what_joins_letters() -> None:
    assert clean("a\tb\x00c\x1b[31md\x7fe\x9ff") == "a bc[31mdef"
    assert clean("".join(f"a{control}" for control in BIDI)) == "a" * len(BIDI)
    family, persian = "👨\u200d👩\u200d👧", "می\u200cخواهم"
    assert clean(family) == family and clean(persian) == persian
    assert clean("two\nlines") == "two lines"  # a text of a data set may hold one


def test_read_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfeins\r\nzwei\x85drei")
    assert read_file(tmp_path / "a.txt") == ["eins", "zwei\ufffddrei"]
    for missing in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(DataError, match="Cannot read") as caught:
            read_file(missing)
        assert str(missing) in str(caught.value)


BREAKS = [b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8", b"\x0c", b"\x00"]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.binary(max_size=12) | st.sampled_from(BREAKS)).map(b"".join), st.sampled_from([1, 4, 7, MAX_LINE_BYTES])
)
@example(b"\xef\xbb\xbf\n\xff\n\xe2\x80\xa8", 4)
def test_any_bytes_give_as_many_lines_as_newlines(data: bytes, limit: int) -> None:
    notes = LineNotes()
    lines = lines_of(data, notes, limit)
    assert len(lines) == count_newline_lines(data)
    assert all("\n" not in line for line in lines)
    for line in map(clean, lines):
        assert not any(unicodedata.category(char) == "Cc" for char in line)
        assert len(line.splitlines()) <= 1
        assert line == clean(line)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"))))
def test_text_without_breaks_comes_back(lines: list[str]) -> None:
    first = [lines[0].removeprefix("\ufeff")] if lines else []
    assert lines_of("".join(f"{line}\n" for line in lines).encode()) == first + lines[1:]
    assert lines_of("".join(f"{line}\r\n" for line in lines).encode()) == first + lines[1:]
