"""What a SentencePiece model says of its pieces, read from its bytes; the library tells neither type nor kind.

The model is a protocol buffer, whose wire format is simple enough to be taken apart without that library.
"""

import struct
from collections.abc import Iterator

PIECES, TRAINER_SPEC, SELF_TEST_DATA = 1, 2, 4  # fields of ModelProto
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type
_MODEL_TYPE = 3  # field of TrainerSpec
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_WIDTHS = {1: 8, 5: 4}  # bytes of the wire types of fixed width


def piece_table(model: bytes) -> list[tuple[str, float, int]]:
    """Text, score and type of every piece, by id. Raises: ValueError, IndexError (not a model)."""
    return [parse_piece(content) for field, _, content in fields(model) if field == PIECES]


def model_type(model: bytes) -> str:
    """`unigram`, `bpe`, `word` or `char`. Raises: ValueError, IndexError (not a model)."""
    number = 1  # the format's default
    for field, _, spec in fields(model):
        at = 0
        while field == TRAINER_SPEC and at < len(spec):
            tag, at = read_varint(spec, at)
            if tag & 7 == 0:
                value, at = read_varint(spec, at)
                number = value if tag >> 3 == _MODEL_TYPE else number
            elif tag & 7 == 2:
                length, at = read_varint(spec, at)
                at += length
            else:
                at += _WIDTHS[tag & 7]
    return _MODEL_TYPES[number]


def fields(proto: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The fields of ModelProto, messages all: number, raw bytes, content. Raises: ValueError."""
    at = 0
    while at < len(proto):
        start = at
        tag, at = read_varint(proto, at)
        if tag & 7 != 2:
            raise ValueError(f"the unknown tag {tag}")
        length, at = read_varint(proto, at)
        yield tag >> 3, proto[start : at + length], proto[at : at + length]
        at += length


def parse_piece(content: bytes) -> tuple[str, float, int]:
    """Text, score and type of a SentencePiece message. Raises: ValueError."""
    piece, score, kind, at = "", 0.0, NORMAL, 0
    while at < len(content):
        tag, at = read_varint(content, at)
        if tag == 0x0A:
            length, at = read_varint(content, at)
            piece, at = content[at : at + length].decode(), at + length
        elif tag == 0x15:
            (score,), at = struct.unpack_from("<f", content, at), at + 4
        elif tag == 0x18:
            kind, at = read_varint(content, at)
        else:
            raise ValueError(f"a piece has the unknown tag {tag}")
    return piece, score, kind


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and where the next field begins."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | data[at] << shift, at + 1
