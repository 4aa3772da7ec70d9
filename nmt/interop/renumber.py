"""Number the pieces of a SentencePiece model anew.

Marian models name a piece's id in a vocabulary file of their own; here a piece's id is its place in the SentencePiece
model. The model is a protocol buffer: of `ModelProto` only the list of pieces (field 1) is replaced, and what of
`TrainerSpec` (field 2) names the control pieces is added at the end, because the last value of a field counts.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.errors import BundleError, ConfigError
from nmt.text.model_proto import (
    BYTE,
    CONTROL,
    NORMAL,
    PIECES,
    SELF_TEST_DATA,
    TRAINER_SPEC,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    parse_piece,
)
from nmt.text.protobuf import bytes_field, fields, varint
from nmt.text.spm_model import open_model, read_model
from nmt.text.tokenizer import SpecialIds

_UNKNOWN_PENALTY = 10.0  # SentencePiece's: how far below the lowest score an unknown character stands
_IDS = {"unk": (40, 45), "bos": (41, 46), "eos": (42, 47), "pad": (43, 48)}  # TrainerSpec: fields of id and of piece

# What becomes of a piece that is not the model's own. Hidden: as <pad>, text neither becomes it nor is made of it; but
# a single character that the model does not know does become it, as in transformers. Shown: text is made of it alone.
FOREIGN_HIDDEN, FOREIGN_SHOWN = CONTROL, UNUSED


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece file: its bytes, and score and type of the pieces that it makes of text."""

    proto: bytes
    known: Mapping[str, tuple[float, int]]

    @classmethod
    def read(cls, path: Path) -> "Pieces":
        """Raises: BundleError (missing, no SentencePiece model)."""
        try:
            proto = read_model(path)
            open_model(proto)
            pieces = [parse_piece(content) for field, _, content in fields(proto) if field == PIECES]
        except (ConfigError, BundleError, ValueError) as error:
            raise BundleError(f"{path} cannot be read as a SentencePiece model: {error}.") from error
        return cls(proto, {p: (score, kind) for p, score, kind in pieces if kind in (NORMAL, USER_DEFINED, BYTE)})


def renumber(model: Pieces, pieces: Sequence[str], special: SpecialIds, *, foreign: int) -> bytes:
    """The SentencePiece model whose piece i is `pieces[i]`; its own pieces among them split text as before.

    Args:
        special: places in `pieces` of the control pieces; bos may be the same as pad.
        foreign: FOREIGN_HIDDEN or FOREIGN_SHOWN.
    """
    lowest = min((score for score, _ in model.known.values()), default=0.0) - 1.0
    output = []
    for number, piece in enumerate(pieces):
        score, kind = model.known.get(piece, (lowest, foreign))
        if piece not in model.known and foreign == FOREIGN_HIDDEN and len(piece) == 1:
            score, kind = lowest - _UNKNOWN_PENALTY, NORMAL
        if number == special.unk:
            kind = UNKNOWN
        elif number in (special.pad, special.bos, special.eos):
            kind = CONTROL
        body = bytes_field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind)
        output.append(bytes_field(PIECES, body))
    output += [raw for field, raw, _ in fields(model.proto) if field not in (PIECES, SELF_TEST_DATA)]
    names = b""
    for name, (id_field, piece_field) in _IDS.items():
        number = getattr(special, name)
        names += varint(id_field << 3) + varint(number) + bytes_field(piece_field, pieces[number].encode())
    return b"".join(output) + bytes_field(TRAINER_SPEC, names)


def without_foreign(proto: bytes, special: SpecialIds) -> bytes:
    """A model of `renumber` without the pieces that are not its own, so with other numbers; any other as it is."""
    output, number, dropped, ids = [], 0, 0, b""
    control = (special.pad, special.unk, special.bos, special.eos)
    for field, raw, content in fields(proto):
        if field == PIECES:
            foreign = number not in control and parse_piece(content)[2] in (FOREIGN_HIDDEN, FOREIGN_SHOWN)
            for name, (id_field, _) in _IDS.items():
                if number == getattr(special, name):
                    ids += varint(id_field << 3) + varint(number - dropped)
            number += 1
            if foreign:
                dropped += 1
                continue
        output.append(raw)
    return b"".join(output) + bytes_field(TRAINER_SPEC, ids) if dropped else proto
