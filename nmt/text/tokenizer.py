"""SentencePiece tokenizers: training, encoding, decoding.

A `Tokenizer` serves both sides of a language pair, with one model for both or one each. Encoded sentences end with EOS
and have no BOS and no padding.

What comes back from pieces is the normalised text. The default, `nmt_nfkc`, makes one space of several, of a no-break
space and of other white space, drops spaces at the ends, and writes "…" as "...", "ﬁ" as "fi" and full-width letters as
plain ones; with `identity` every character comes back but a "▁", which is a space. User symbols are pieces wherever
they stand in a text, in the user's too: `<2de> Hello` means what the tag `<2de>` before `Hello` means.
"""

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import sentencepiece as spm

from nmt.config import TokenizerConfig
from nmt.errors import BundleError, ConfigError, DataError
from nmt.text.model_proto import user_symbols
from nmt.text.spm_model import moved_pieces, open_model, read_model

# Half-open, in characters, the spans of a line's pieces in order. Of the pieces that one character became only the last
# has it, and the others are empty; so is the "▁" that SentencePiece puts before a line.
Span = tuple[int, int]

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # of the tokenizers trained here; other code asks the Tokenizer


MAX_TRAINING_BYTES = 4192  # SentencePiece leaves longer lines out

# A fixed number, not that of the cores: SentencePiece writes it into the model, whose hash names caches.
_TRAINING_THREADS = 8


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the control pieces, the same on both sides."""

    pad: int = PAD
    unk: int = UNK
    bos: int = BOS
    eos: int = EOS


def training_text(line: str) -> str:
    """As much of a line as a tokenizer is trained on: its beginning, up to 4,192 bytes."""
    if 4 * len(line) <= MAX_TRAINING_BYTES:
        return line
    return line.encode()[:MAX_TRAINING_BYTES].decode(errors="ignore")


def tagged(tag: str, lines: Sequence[str]) -> list[str]:
    """Source lines behind a tag; blank ones stay blank, and without a tag all stay as they are."""
    return [f"{tag} {line}" if line else line for line in lines] if tag else list(lines)


def train_sentencepiece(lines: Iterable[str], config: TokenizerConfig) -> bytes:
    """Train a SentencePiece model on raw lines and return it as bytes.

    The vocabulary may come out smaller than asked if the text does not hold that many pieces.
    Raises: DataError (no text, or a vocabulary too small for the alphabet).
    """
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=config.type,
            vocab_size=config.vocab_size,
            hard_vocab_limit=False,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name=config.normalization,
            user_defined_symbols=config.user_symbols,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        if "sentences_.empty()" in str(error) or "all_chars_count" in str(error):
            raise DataError("SentencePiece found no text to train on.") from error
        raise DataError(
            f"SentencePiece could not train a {config.type} model of {config.vocab_size:,} pieces: "
            f"{_reason(error)} A larger tokenizer.vocab_size, or character_coverage below 1, may help."
        ) from error
    if not model.getvalue():
        raise DataError("SentencePiece found no text to train on.")
    return model.getvalue()


class Tokenizer:
    """The pair of SentencePiece models of a translation model.

    Attributes: src_model, tgt_model: serialised models, one and the same object for a joint tokenizer.
    """

    def __init__(self, src_model: bytes, tgt_model: bytes | None = None) -> None:
        self.src_model = src_model
        self.tgt_model = src_model if tgt_model is None else tgt_model
        self._src = _load_processor(self.src_model)
        self._tgt = self._src if self.joint else _load_processor(self.tgt_model)
        self.special = _special_ids(self._tgt)
        if self.special != _special_ids(self._src):
            raise BundleError("The source and the target tokenizer number <pad>, <unk>, <s> and </s> differently.")

    @classmethod
    def from_files(cls, src_model: Path, tgt_model: Path | None = None) -> "Tokenizer":
        """Load from SentencePiece files. Raises: ConfigError (no such file), BundleError (not a model)."""
        return cls(*map(read_model, [src_model] + ([tgt_model] if tgt_model else [])))

    @property
    def joint(self) -> bool:
        """Whether one model serves both sides."""
        return self.src_model is self.tgt_model

    @property
    def src_vocab_size(self) -> int:
        """Pieces on the source side, control pieces included."""
        return int(self._src.get_piece_size())

    @property
    def tgt_vocab_size(self) -> int:
        """Pieces on the target side, control pieces included."""
        return int(self._tgt.get_piece_size())

    @property
    def sha256(self) -> str:
        """A digest of both models."""
        return hashlib.sha256(self.src_model + (b"" if self.joint else self.tgt_model)).hexdigest()

    @cached_property
    def src_symbols(self) -> list[str]:
        """User symbols of the source side."""
        return user_symbols(self.src_model)

    def check_tag(self, tag: str) -> None:
        """Raises: ConfigError, if the source side does not know this tag as a user symbol."""
        symbols = self.src_symbols
        if tag not in symbols:
            known = f"it knows {', '.join(symbols[:20])}" if symbols else "it has none"
            raise ConfigError(
                f"The tag {tag} is no user symbol of the tokenizer: {known}. A tokenizer has it if it is trained with "
                f"the tag in tokenizer.user_symbols, or as the tag of a source."
            )

    def encode_src(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Piece ids of source lines, each ended by EOS."""
        return self._encode(self._src, lines, num_threads)

    def encode_tgt(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Piece ids of target lines, each ended by EOS."""
        return self._encode(self._tgt, lines, num_threads)

    def src_spans(self, line: str) -> list[Span]:
        """Which characters of a source line each of its pieces (but EOS) stands for; see `Span`."""
        return self._spans(self._src, line)

    def tgt_spans(self, line: str) -> list[Span]:
        """Which characters of a target line each of its pieces (but EOS) stands for; see `Span`."""
        return self._spans(self._tgt, line)

    def decode_spans(self, ids: Sequence[int]) -> tuple[str, list[Span]]:
        """`decode`, and which characters of the text each piece became."""
        found = self._tgt.decode(list(ids), return_type="offset_mapping")
        return str(found["text"]), list(found["offsets"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target piece ids; control pieces vanish."""
        return str(self._tgt.decode(list(ids)))

    def decode_pieces(self, pieces: Sequence[str], *, side: str, ids: bool) -> str:
        """Text of pieces given as strings, or of their numbers. Raises: ValueError, IndexError."""
        processor = self._src if side == "src" else self._tgt
        return str(processor.decode([int(piece) for piece in pieces] if ids else list(pieces)))

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        """Surface of source pieces, `▁` opening a word."""
        return [str(piece) for piece in self._src.id_to_piece(list(ids))]

    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        """Surface of target pieces, `▁` opening a word."""
        return [str(piece) for piece in self._tgt.id_to_piece(list(ids))]

    @staticmethod
    def _spans(processor: spm.SentencePieceProcessor, line: str) -> list[Span]:
        return list(processor.encode(line, return_type="offset_mapping")["offsets"])

    @staticmethod
    def _encode(processor: spm.SentencePieceProcessor, lines: Sequence[str], num_threads: int) -> list[list[int]]:
        encoded: list[list[int]] = processor.encode(list(lines), out_type=int, add_eos=True, num_threads=num_threads)
        return encoded


def _special_ids(processor: spm.SentencePieceProcessor) -> SpecialIds:
    return SpecialIds(processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())


def _load_processor(model: bytes) -> spm.SentencePieceProcessor:
    processor = open_model(model)
    missing = [name for name in ("pad", "unk", "bos", "eos") if getattr(processor, f"{name}_id")() < 0]
    if missing:
        raise BundleError(
            f"The tokenizer has no {', '.join(missing)} piece. Train SentencePiece with pad_id={PAD}, unk_id={UNK}, "
            f"bos_id={BOS}, eos_id={EOS}, or let nmt train it."
        )
    if moved := moved_pieces(model, asdict(_special_ids(processor))):
        raise BundleError(f"The tokenizer contradicts itself: {moved}.")
    return processor


def _reason(error: Exception) -> str:
    """SentencePiece's own words without its source location."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text.rsplit("] ", 1)[-1].strip().rstrip(".") + "."
