"""What a SentencePiece model says of itself and its pieces, read from its bytes, for the library does not tell."""

import struct

from nmt.text.protobuf import fields

PIECES, TRAINER_SPEC, SELF_TEST_DATA = 1, 2, 4  # fields of ModelProto
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type
_MODEL_TYPE = 3  # field of TrainerSpec
_TYPE_TAG = 3 << 3  # before the type of a piece
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


def piece_table(model: bytes) -> list[tuple[str, float, int]]:
    """Text, score and type of every piece, by id. Raises: ValueError (not a model)."""
    return [parse_piece(content) for field, _, content in fields(model) if field == PIECES]


def user_symbols(model: bytes) -> list[str]:
    """The pieces that are user symbols, as SentencePiece writes them: their type comes last. Raises: ValueError."""
    end_of_short, ends_as = end_of_short_pieces(model), bytes([_TYPE_TAG, USER_DEFINED])
    candidates: list[int | bytes] = [content for field, _, content in fields(model[end_of_short:]) if field == PIECES]
    at = 0
    while at < end_of_short:  # to take all of them apart would take a tenth of a second
        start, at = at + 2, at + 2 + model[at + 1]
        if model.endswith(ends_as, start, at):
            candidates.append(model[start:at])
    return [text for text, _, kind in map(parse_piece, candidates) if kind == USER_DEFINED]


def end_of_short_pieces(model: bytes) -> int:
    """Where the pieces of less than 128 bytes that open a model end; to skip them so is 20 times as fast."""
    at = 0
    while at + 1 < len(model) and model[at] == 0x0A and model[at + 1] < 0x80:
        at += 2 + model[at + 1]
    return at


def model_type(model: bytes) -> str:
    """`unigram`, `bpe`, `word` or `char`. Raises: ValueError (not a model)."""
    number: int | bytes = 1  # the format's default
    for field, _, spec in fields(model):
        if field == TRAINER_SPEC and isinstance(spec, bytes):
            number = next((value for name, _, value in fields(spec) if name == _MODEL_TYPE), number)
    if number not in _MODEL_TYPES:
        raise ValueError(f"the unknown type {number!r}")
    return _MODEL_TYPES[number]


def parse_piece(content: int | bytes) -> tuple[str, float, int]:
    """Text, score and type of a SentencePiece message. Raises: ValueError."""
    found: dict[int, int | bytes] = {1: b"", 2: b"\0\0\0\0", 3: NORMAL}
    for number, _, value in fields(content) if isinstance(content, bytes) else ():
        if number not in found or type(value) is not type(found[number]):
            raise ValueError(f"a piece has the unknown field {number}")
        found[number] = value
    text, score, kind = found.values()
    assert isinstance(text, bytes) and isinstance(score, bytes) and isinstance(kind, int)
    return text.decode(), struct.unpack("<f", score)[0], kind
