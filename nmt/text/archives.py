"""Compressed text, read as if it were plain: gzip, xz, zstandard, bzip2.

What a file is, its first bytes say, whatever its name. It is decompressed as it is read, in small steps, so that a few
bytes that stand for gigabytes take no more memory than others.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from nmt.errors import DataError

ENDINGS = (".gz", ".xz", ".zst", ".bz2")
_STEP_BYTES = 512  # decompressed at a time: 17 MB at most come out of them (zstandard: 128 KB of four bytes)
_MOST_BYTES = 1 << 22  # of text at a time, where a library can hold it back: 45 bytes of bzip2 may be 45 MB
_BUFFER_BYTES = 1 << 18
_MAX_WINDOW_BYTES = 1 << 27  # that a decompressor may look back; `zstd --ultra -22` and `xz -9` stay below


def _zstd() -> Any:
    import zstandard  # here, since few texts need it

    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()


_KINDS: tuple[tuple[tuple[bytes, ...], str, Callable[[], Any]], ...] = (
    ((b"\x1f\x8b\x08",), "gzip", partial(zlib.decompressobj, wbits=31)),
    ((b"\xfd7zXZ\x00",), "xz", partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=2 * _MAX_WINDOW_BYTES)),
    ((b"\x28\xb5\x2f\xfd", *(bytes([code]) + b"\x2a\x4d\x18" for code in range(0x50, 0x60))), "zstandard", _zstd),
    (tuple(b"BZh%d%b" % (n, m) for n in range(1, 10) for m in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")), "bzip2",
     bz2.BZ2Decompressor),
)  # fmt: skip


def plain_name(name: str) -> str:
    """A file's name without the ending of its compression."""
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def existing(path: Path) -> Path:
    """This file, or where it is not there its compressed form; if neither is, this one."""
    forms = [path.with_name(path.name + ending) for ending in ENDINGS]
    return next((form for form in (path, *forms) if form.is_file()), path)


def decompressed(stream: BinaryIO, path: Path) -> BinaryIO:
    """A stream over a file's text, decompressed if it is compressed. Raises: DataError, here or as it is read."""
    start = stream.read(10)
    stream.seek(0)
    for magics, kind, make in _KINDS:
        if start.startswith(magics):
            return io.BufferedReader(_Reader(stream, path, kind, make), _BUFFER_BYTES)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") and b"\0" in start:
        raise DataError(f"{path} is in UTF-16: iconv -f UTF-16 -t UTF-8 {path.name} makes it text that can be read.")
    if path.name.endswith(ENDINGS):
        raise DataError(
            f"{path} is not compressed as its name says{'' if start else ', it is empty'}: a download that failed? "
            f"Get it again, or take the ending off its name if it is plain text."
        )
    return stream


class _Reader(io.RawIOBase):
    """The decompressed bytes of a file, of all members that were joined in it."""

    def __init__(self, stream: BinaryIO, path: Path, kind: str, make: Callable[[], Any]) -> None:
        self._stream, self._path, self._kind, self._make = stream, path, kind, make
        self._member = make()
        self._ended = False  # the member, and no other came after it yet
        self._block = b""  # compressed
        self._text = memoryview(b"")
        self._lines = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a part of `buffer`; 0 is the end. Raises: DataError (a damaged file, or one that is cut short)."""
        while not self._text:
            if not self._block and (self._ended or getattr(self._member, "needs_input", True)):
                self._block = self._stream.read(_STEP_BYTES)
                if not self._block:
                    break
            self._text = memoryview(self._decompress())
        if not self._text and not self._ended:
            raise self._error("is cut short")
        size = min(len(buffer), len(self._text))
        buffer[:size] = self._text[:size]
        self._text = self._text[size:]
        return size

    def close(self) -> None:
        """Close the file, too."""
        self._stream.close()
        super().close()

    def _decompress(self) -> bytes:
        """Some of the text of the block, or all; perhaps none."""
        block, self._block = self._block, b""
        if self._ended:
            block = block.lstrip(b"\0")  # padding
            if not block:
                return b""
            self._member, self._ended = self._make(), False
        limit = (_MOST_BYTES,) if hasattr(self._member, "needs_input") else ()  # else it cannot hold text back
        try:
            text: bytes = self._member.decompress(block, *limit)
        except Exception as error:  # each library has kinds of its own, some plain OSError, one plain Exception
            raise self._error(f"is damaged ({error})") from error
        self._lines += text.count(b"\n")
        self._ended = self._member.eof
        if self._ended:
            self._block = self._member.unused_data
        return text

    def _error(self, what: str) -> DataError:
        return DataError(
            f"{self._path} {what}: its {self._kind} data can be read up to line {self._lines + 1:,}, byte "
            f"{self._stream.tell():,} of the file. Get it again."
        )
