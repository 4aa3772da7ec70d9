"""SentencePiece models that nobody vouches for: what is checked before one is used.

SentencePiece is a C++ library: what it does not refuse may end the process or fill the memory. Since 0.2.3 it refuses
pieces of 8 KB and replacement tables that point outside themselves. Refused here are the models that it takes and that
would do harm later: pieces that are no text, a character that becomes a megabyte, special pieces that were moved.
"""

from collections.abc import Mapping
from pathlib import Path

import sentencepiece as spm

from nmt.errors import BundleError, ConfigError
from nmt.text.model_proto import TRAINER_SPEC, end_of_short_pieces
from nmt.text.protobuf import fields

MAX_MODEL_BYTES = 16 << 20
_MAX_SURFACE_BYTES = 1024  # what one character, or one <unk>, may become

# More fields of ModelProto, of its NormalizerSpec and of its TrainerSpec.
_NORMALIZER_SPECS, _CHARSMAP, _UNK_SURFACE = (3, 5), 2, 44
_ID_FIELDS = {"unk": 40, "bos": 41, "eos": 42, "pad": 43}


def read_model(path: Path) -> bytes:
    """The bytes of a SentencePiece file. Raises: ConfigError (no such file), BundleError (too large to be one)."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device never end
            raise BundleError(f"{path} is no regular file, so no tokenizer.")
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise BundleError(f"The tokenizer {path} is larger than {MAX_MODEL_BYTES:,} bytes, so none of nmt's.")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read the tokenizer {path}: {error.strerror}.") from error


def open_model(model: bytes) -> spm.SentencePieceProcessor:
    """Load a SentencePiece model and check all that comes from outside. Raises: BundleError."""
    if len(model) > MAX_MODEL_BYTES:
        raise BundleError(f"The tokenizer is larger than {MAX_MODEL_BYTES:,} bytes.")
    try:
        processor = spm.SentencePieceProcessor(model_proto=model)
        pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
        longest = _longest_surface(model)
    except (RuntimeError, OSError, ValueError, IndexError) as error:  # a piece that is no UTF-8 is a ValueError
        raise BundleError("The tokenizer is not a SentencePiece model.") from error
    if not pieces:  # SentencePiece itself takes an empty file for a model
        raise BundleError("The tokenizer is not a SentencePiece model: it holds no pieces.")
    if "\0" in "".join(pieces):
        raise BundleError("The tokenizer has a piece with a NUL character, which no text holds.")
    if longest > _MAX_SURFACE_BYTES:
        raise BundleError(f"The tokenizer makes {longest:,} bytes of one character or of <unk>: no honest one does.")
    return processor


def moved_pieces(model: bytes, found: Mapping[str, int]) -> str | None:
    """Where pad, unk, bos or eos are (as `found`) and a sound model says otherwise, or None. A -1 says nothing."""
    said = {name: _specs(model)[TRAINER_SPEC].get(field) for name, field in _ID_FIELDS.items()}
    for name, number in said.items():
        if isinstance(number, int) and number < 1 << 31 and number != found[name]:  # larger ones are negative
            return f"its {name} piece is number {found[name]}, and it says {number}"
    return None


def _specs(model: bytes) -> dict[int, dict[int, int | bytes]]:
    """The settings by field of ModelProto; a message given twice is merged. Raises: ValueError."""
    specs: dict[int, dict[int, int | bytes]] = {number: {} for number in (TRAINER_SPEC, *_NORMALIZER_SPECS)}
    for number, _, spec in fields(model[end_of_short_pieces(model) :]):
        if number in specs and isinstance(spec, bytes):
            specs[number] |= {field: value for field, _, value in fields(spec)}
    return specs


def _longest_surface(model: bytes) -> int:
    """Bytes that normalisation makes of one character, or decoding of <unk>, at most. Raises: ValueError."""
    specs = _specs(model)
    texts = [specs[TRAINER_SPEC].get(_UNK_SURFACE)]
    for number in _NORMALIZER_SPECS:
        table = specs[number].get(_CHARSMAP)
        if isinstance(table, bytes):  # the size of a trie, the trie, texts
            texts += table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return max(len(text) if isinstance(text, bytes) else 0 for text in texts)
