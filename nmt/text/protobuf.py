"""The wire format of protocol buffers, in which SentencePiece models are written, taken apart without that library."""

from collections.abc import Iterator


def fields(message: bytes) -> Iterator[tuple[int, bytes, int | bytes]]:
    """The fields of a message in their order: number, raw bytes, value (an integer, or bytes). Raises: ValueError."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _read_varint(message, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = _read_varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(tag & 7, 0)
            if tag & 7 == 2:
                size, at = _read_varint(message, at)
            elif not size:
                raise ValueError(f"the unknown tag {tag}")
            value, at = message[at : at + size], at + size
            if at > len(message):
                raise ValueError("it ends inside a field")
        yield tag >> 3, message[start:at], value


def varint(value: int) -> bytes:
    """A number of seven bits a byte, lowest first."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def bytes_field(number: int, content: bytes) -> bytes:
    """A field that holds bytes, a string or another message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next field begins."""
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at
    raise ValueError("it ends inside a number, or the number is too long")
