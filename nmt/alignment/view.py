"""What is shown of the attention of a sentence pair: kinds, layers and heads, words or pieces, entropy, gold links.

Every output (picture, page, terminal, JSON) shows these maps.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.alignment.gold import parse_gold
from nmt.alignment.words import merge_to_words
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.alignment.maps import PairMaps

CAUTION = "Attention shows where the model looked, not why it chose a word: weights are no causal explanation."
NAMES = {"cross": "cross-attention", "encoder": "encoder self-attention", "decoder": "decoder self-attention"}
_AXES = {"cross": ("target", "source"), "encoder": ("source", "source"), "decoder": ("target", "target so far")}
_START = "<s>"
_BREAKING = ("Cc", "Cs", "Zl", "Zp")  # categories that would break a line, an SVG or a terminal
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Link(NamedTuple):
    """A cell that people have marked: `sure`, or only possible."""

    row: int
    column: int
    sure: bool


@dataclass(frozen=True)
class Maps:
    """One kind of attention in every layer and head.

    Attributes:
        rows, columns: labels; the row's token looked at the column's.
        axes: what rows are and what columns are.
        weights: (layers, heads, rows, columns); each row sums to 1, and what is not `seen` has 0.
        seen: (rows, columns), False for what comes later than the row and so is hidden from it.
    """

    rows: list[str]
    columns: list[str]
    axes: tuple[str, str]
    weights: NDArray[np.float64]
    seen: NDArray[np.bool_]
    links: tuple[Link, ...] = ()


@dataclass(frozen=True)
class PairView:
    """A sentence pair as one model saw it. `maps`: by kind of attention, those that the model has."""

    model: str
    source: str
    target: str
    maps: dict[str, Maps]


class Choice(NamedTuple):
    """One layer and one head, from 1; None: the mean of all."""

    layer: int | None = None
    head: int | None = None

    def of(self, maps: Maps) -> NDArray[np.float64]:
        """The chosen layers and heads: (layers, heads, rows, columns). Raises: ConfigError, for one that is not."""
        layers, heads = maps.weights.shape[:2]
        return maps.weights[_pick("--layer", self.layer, layers), _pick("--head", self.head, heads)]

    def names(self, maps: Maps) -> str:
        """As "layer 2, all 4 heads (mean)"."""
        counts = zip(("layer", "head"), self, maps.weights.shape[:2], strict=True)
        return ", ".join(
            f"{name} {number}" if number else f"all {count} {name}s (mean)" if count > 1 else f"the one {name}"
            for name, number, count in counts
        )


def shown_maps(
    found: "PairMaps", src_pieces: Sequence[str], tgt_pieces: Sequence[str], *, pieces: bool
) -> dict[str, Maps]:
    """The maps by kind, over words or over pieces (EOS last). Row t of `decoder` is of what was predicted at t."""
    sides = {
        "cross": (found.cross, tgt_pieces, src_pieces),
        "encoder": (found.encoder, src_pieces, src_pieces),
        "decoder": (found.decoder, tgt_pieces, [_START, *tgt_pieces[:-1]]),
    }
    shown = {}
    for kind, (weights, rows, columns) in sides.items():
        if weights is None:
            continue
        weights = weights / weights.sum(-1, keepdims=True)  # in bf16 they sum to 1 only by 1 %
        seen = np.ones(weights.shape[-2:])
        seen = np.tril(seen) if kind == "decoder" else seen
        row_labels, column_labels = list(rows), list(columns)
        if not pieces:
            weights, column_labels, row_labels = merge_to_words(weights, columns, rows)
            seen = merge_to_words(seen, columns, rows)[0]
        labels = [printable(label) for label in row_labels], [printable(label) for label in column_labels]
        shown[kind] = Maps(*labels, _AXES[kind], weights, seen > 0)
    return shown


def entropy_bits(weights: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Mean entropy of the rows, in bits: 0 where each looks at one thing, log2(n) where it looks at n alike."""
    logs = np.log2(weights, where=weights > 0, out=np.zeros(weights.shape))
    return np.asarray(-(weights * logs).sum(-1).mean(-1) + 0.0)


def entropy_text(weights: NDArray[np.floating[Any]]) -> str:
    """Of (layers, heads, rows, columns), as "mean entropy of 16 heads 1.48 bits": not that of their mean."""
    heads = weights.shape[0] * weights.shape[1]
    name = "entropy" if heads == 1 else f"mean entropy of {heads} heads"
    return f"{name} {entropy_bits(weights).mean():.2f} bits"


def darkest(weights: NDArray[np.floating[Any]]) -> float:
    """The weight to be drawn darkest. Maps with a clear peak share one scale; a faint one goes by its own peak."""
    peak = float(weights.max())
    return 1.0 if 0.5 <= peak <= 1.001 or peak <= 0 else peak


def with_gold(view: PairView, gold: str, *, tagged: bool) -> PairView:
    """The view with gold links of its words in cross-attention.

    Args:
        gold: as "0-0 1p2": source word i, target word j, from 0, `-` for sure and `p` for possible links.
        tagged: whether the model may have been given a tag before the source, which is no word of it.
    Raises: ConfigError.
    """
    maps = view.maps["cross"]
    ahead = int(tagged and len(maps.columns) == len(view.source.split()) + 2)
    for side, text, labels in (("source", view.source, maps.columns[ahead:]), ("target", view.target, maps.rows)):
        words = len(text.split())
        if words != len(labels) - 1:
            raise ConfigError(
                f"--gold: the {side} has {words} white-space words, but the model was given {len(labels) - 1}: its "
                f"tokenizer joins or parts some. Write the {side} as the model's training text is written."
            )
    try:
        by_hand = parse_gold(gold)
    except ValueError as error:
        raise ConfigError(f"--gold: {error}.") from None
    columns, rows = len(maps.columns) - 1 - ahead, len(maps.rows) - 1
    outside = [f"{i}-{j}" for i, j in sorted(by_hand.possible) if i >= columns or j >= rows]
    if outside:
        raise ConfigError(
            f"--gold: {outside[0]} is out of range: the source has {columns} words and the target {rows}, numbered "
            f"from 0."
        )
    links = tuple(Link(j, i + ahead, (i, j) in by_hand.sure) for i, j in sorted(by_hand.possible))
    return replace(view, maps={**view.maps, "cross": replace(maps, links=links)})


def as_record(view: PairView) -> dict[str, Any]:
    """All numbers as JSON can write them."""
    attention = {
        kind: {
            "rows": maps.rows,
            "columns": maps.columns,
            "axes": list(maps.axes),
            "layers": maps.weights.shape[0],
            "heads": maps.weights.shape[1],
            "entropy_bits": entropy_bits(maps.weights).round(6).tolist(),
            "weights": maps.weights.round(9).tolist(),
            "gold": [link._asdict() for link in maps.links],
        }
        for kind, maps in view.maps.items()
    }
    return {"model": view.model, "source": view.source, "target": view.target, "attention": attention}


def printable(label: str) -> str:
    """A label without what would break a line, an SVG or a terminal, or turn the text after it around."""
    return "".join(
        "�" if unicodedata.category(c) in _BREAKING or c in _BIDI_CONTROLS or c in "\ufffe\uffff" else c for c in label
    )


def _pick(option: str, number: int | None, count: int) -> slice:
    if number is None:
        return slice(None)
    if number > count:
        raise ConfigError(f"{option} {number}: the model has {count}, numbered from 1.")
    return slice(number - 1, number)
