"""The line contract: how bytes become lines, the same everywhere and under every locale.

`\\n` alone separates lines. One trailing `\\r` is dropped, so is a byte-order mark on line 1; invalid UTF-8 becomes
U+FFFD; tabs and odd separators become spaces and other control characters vanish. A line that holds nothing visible is
blank. A line longer than `max_line_bytes` is cut there, at a character, and the rest is thrown away in blocks.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from nmt.errors import DataError, StorageError
from nmt.text.archives import decompressed

MAX_LINE_BYTES = 64 * 1024
_SHOWN = 5  # line numbers in a warning

_TO_SPACE = [0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x1F, 0x85, 0x2028, 0x2029]
_BIDI_CONTROLS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_CONTROLS: dict[int, str | None] = {
    **{code: None for code in [*range(0x20), *range(0x7F, 0xA0), *_BIDI_CONTROLS]},
    **{code: " " for code in _TO_SPACE},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # lone surrogates, which JSON can write, are no text
}
_INVISIBLE = frozenset("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff")


@dataclass
class Numbers:
    """Line numbers, from 1: how many, and the first ones. A stream may be endless."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, number: int) -> None:
        """Count a line."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(number)

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.first)) + (", …" if self.count > len(self.first) else "")
        return f"{self.count} line(s) ({shown})"


@dataclass
class LineNotes:
    """What `read_lines` had to mend, for one counted warning at the end."""

    invalid_utf8: Numbers = field(default_factory=Numbers)
    too_long: Numbers = field(default_factory=Numbers)

    def warnings(self, name: str) -> list[str]:
        """The warnings, one a kind, naming the first lines."""
        kinds = [
            (self.invalid_utf8, "held invalid UTF-8, replaced by U+FFFD"),
            (self.too_long, "were cut: longer than the line limit"),
        ]
        return [f"{name}: {lines} {what}." for lines, what in kinds if lines.count]


def read_raw_lines(stream: BinaryIO, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[bytes, bool]]:
    """Yield each line's bytes without its `\\n`, and whether it was cut at `max_line_bytes`."""
    while block := stream.readline(max_line_bytes + 1):
        if block.endswith(b"\n"):
            yield block[:-1], False
        elif len(block) <= max_line_bytes:  # the last line, without a newline
            yield block, False
        else:
            while rest := stream.readline(1 << 20):
                if rest.endswith(b"\n"):
                    break
            yield block[:max_line_bytes], True


def read_lines(stream: BinaryIO, notes: LineNotes | None = None, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Yield each line of a byte stream as text, by the contract but for its controls (see `clean`)."""
    for number, (raw, cut) in enumerate(read_raw_lines(stream, max_line_bytes), start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if cut:
            raw = _cut_at_character(raw)
            if notes is not None:
                notes.too_long.add(number)
        try:
            yield raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            if notes is not None:
                notes.invalid_utf8.add(number)
            yield raw.removesuffix(b"\r").decode("utf-8", errors="replace")


def open_stdin() -> BinaryIO:
    """Stdin by a reader of its own: Python aborts at its end while a thread still waits in that of sys.stdin."""
    try:
        os.set_blocking(sys.stdin.fileno(), True)  # else a pause would be taken for the end
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError:  # something in memory, as tests have it
        return sys.stdin.buffer


def open_text(path: Path) -> BinaryIO:
    """Open a text file, which may be compressed; a pipe is not looked into.

    Raises: DataError (no such file, or as it is read: damaged), StorageError (not allowed, broken disk).
    """
    try:
        stream = path.open("rb")
        return decompressed(stream, path) if path.is_file() else stream
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from error
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror}.") from error


def read_file(path: Path, notes: LineNotes | None = None) -> list[str]:
    """All lines of a text file. Raises: DataError, StorageError."""
    with open_text(path) as stream:
        return list(read_lines(stream, notes))


def clean(line: str) -> str:
    """Drop control characters, turn tabs and odd separators into spaces; a blank line becomes empty."""
    if line.isprintable():  # most lines: no control, no white space but U+0020, nothing invisible
        return line if line.strip(" ") else ""
    line = line.translate(_CONTROLS)
    return "" if is_blank(line) else line


def places_kept(line: str) -> Sequence[int]:
    """Where in `line` each character of `clean(line)` stands: what a control was replaced by stands in its place."""
    if line.isprintable():
        return range(len(line) if line.strip(" ") else 0)
    return [] if not clean(line) else [place for place, char in enumerate(line) if char.translate(_CONTROLS)]


def is_blank(line: str) -> bool:
    """Whether a line shows nothing: Unicode white space and zero-width characters alone."""
    return all(char.isspace() or char in _INVISIBLE for char in line)


def _cut_at_character(raw: bytes) -> bytes:
    """Take off an incomplete UTF-8 character at the end of a cut line."""
    for back in range(1, min(4, len(raw)) + 1):
        lead = raw[-back]
        if lead & 0xC0 != 0x80:  # not a continuation byte
            needed = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
            return raw if needed <= back else raw[:-back]
    return raw
