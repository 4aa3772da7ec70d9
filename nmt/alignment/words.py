"""From an attention map over SentencePiece pieces to one over words."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.errors import DataError

WORD_START = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPECIAL = re.compile(r"<[^<>\s▁]+>")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def word_spans(pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Return the half-open piece ranges of the white-space words, in order and without gaps.

    "▁" opens a word. A special piece ("</s>", "<2de>") is a word of its own, and what follows it opens a new
    one; byte pieces ("<0xE2>") and "<unk>" stand for text and belong to the word around them.
    """
    starts = [
        i
        for i, piece in enumerate(pieces)
        if i == 0 or piece.startswith(WORD_START) or _is_special(piece) or _is_special(pieces[i - 1])
    ]
    return list(zip(starts, [*starts[1:], len(pieces)], strict=True)) if starts else []


def merge_to_words(
    weights: NDArray[np.floating[Any]], src_pieces: Sequence[str], tgt_pieces: Sequence[str]
) -> tuple[NDArray[np.float64], list[str], list[str]]:
    """Merge maps (..., target pieces, source pieces) into (..., target words, source words).

    A word's target pieces are averaged and its source pieces summed, so that rows which sum to 1 still do.
    Returns the maps, the source words and the target words: byte pieces decoded (invalid ones and control
    characters are "�"), a word of nothing but white space shown as "▁".

    Raises DataError where the shape of `weights` does not end in (len(tgt_pieces), len(src_pieces)).
    """
    if weights.shape[-2:] != (len(tgt_pieces), len(src_pieces)):
        raise DataError(
            f"The attention map has shape {weights.shape}, but there are {len(tgt_pieces)} target and "
            f"{len(src_pieces)} source pieces. Pass the weights and the pieces of the same sentence pair."
        )
    src_spans, tgt_spans = word_spans(src_pieces), word_spans(tgt_pieces)
    summed = np.add.reduceat(weights, _starts(src_spans), axis=-1, dtype=np.float64)
    lengths = np.array([[end - start] for start, end in tgt_spans], dtype=np.float64).reshape(-1, 1)
    merged = np.add.reduceat(summed, _starts(tgt_spans), axis=-2) / lengths
    src_words = [_label(src_pieces[a:b]) for a, b in src_spans]
    tgt_words = [_label(tgt_pieces[a:b]) for a, b in tgt_spans]
    return merged, src_words, tgt_words


def _starts(spans: Sequence[tuple[int, int]]) -> NDArray[np.intp]:
    return np.array([start for start, _ in spans], dtype=np.intp)


def _is_special(piece: str) -> bool:
    return bool(_SPECIAL.fullmatch(piece)) and piece != "<unk>" and not _BYTE.fullmatch(piece)


def _label(pieces: Sequence[str]) -> str:
    """Join the pieces of a word through bytes, since a character may be spread over several byte pieces."""
    data = bytearray()
    for piece in pieces:
        byte = _BYTE.fullmatch(piece)
        if byte:
            data.append(int(byte[1], 16))
        else:
            data += piece.replace(WORD_START, " ").encode("utf-8", "replace")
    text = data.decode("utf-8", "replace").strip(" ")
    return _CONTROL.sub("�", text) or WORD_START
