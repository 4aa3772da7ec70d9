"""What each token of given translations looks at in the source: cross-attention of a forced pass, in batches."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nmt.config import DecodingConfig
from nmt.data.batching import pad
from nmt.errors import ConfigError
from nmt.model.maps import cross_attention, numbers_of_cross_attention
from nmt.model.memory import is_out_of_memory
from nmt.model.seq2seq import Seq2Seq
from nmt.text.tokenizer import SpecialIds

MOST_WEIGHTS = 2**19  # a head, of a pair
MOST_NUMBERS = 2**25  # of a batch, in all heads and layers of all models: 128 MiB in single precision
_WIDTH_STEP = 8  # sources in a batch are this much longer than one another at most, and then padded

Pair = tuple[Sequence[int], Sequence[int]]  # source and target ids, EOS last


class HeadChoice(NamedTuple):
    """Which weights are taken for word alignment.

    The default is the mean of the heads in the upper half of the layers, when the token was predicted: on the toy
    corpus that agrees with 96 % of the gold alignments, all layers with 91 %, the steps at which the token is read with
    10 %. Of other models another choice may be better (Chen et al. 2020): `nmt eval --align` finds it.

    Attributes:
        layer: of the decoder, from 1; 0: the upper half.
        head: from 1; 0: the mean of all.
        shift: the step at which the token is read is taken, instead of the one before, at which it was predicted.
    """

    layer: int = 0
    head: int = 0
    shift: bool = False

    @classmethod
    def of(cls, decoding: DecodingConfig) -> "HeadChoice":
        """That of a bundle, or of options."""
        return cls(decoding.align_layer, decoding.align_head, decoding.align_shift)


def all_choices(models: Sequence[Seq2Seq], special: SpecialIds) -> list[HeadChoice]:
    """Every layer (0 first) with every head (0 first; of layer 0 no other), at either step. Raises: see `each_head`."""
    ((_, weights),) = each_head(models, special, [([special.eos], [special.eos])])
    num_layers, num_heads = weights.shape[:2]
    heads = [(0, 0), *((layer, head) for layer in range(1, num_layers + 1) for head in range(num_heads + 1))]
    return [HeadChoice(layer, head, shift) for layer, head in heads for shift in (False, True)]


def forced_attention(
    models: Sequence[Seq2Seq],
    special: SpecialIds,
    pairs: Sequence[Pair],
    choice: HeadChoice = HeadChoice(),
) -> list[NDArray[np.float32] | None]:
    """Attention weights for word alignment, one array a pair; the mean of several models.

    Returns: (target tokens, source tokens), EOS left out; None for a pair too long to be looked at, see `_batches`.
    Raises: ConfigError (a layer or head that a model has not).
    """
    found: list[NDArray[np.float32] | None] = [None] * len(pairs)
    for place, weights in each_attention(models, special, pairs, choice):
        found[place] = weights
    return found


@torch.inference_mode()
def each_attention(
    models: Sequence[Seq2Seq], special: SpecialIds, pairs: Sequence[Pair], choice: HeadChoice
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """`forced_attention` as it comes, each with its place among the pairs; none of a pair too long."""
    for batch, cross in _looked_at(models, special, pairs):
        weights_BTS = torch.stack([_chosen(layers, choice) for layers in cross]).mean(0).cpu().numpy()
        for row, place in enumerate(batch):
            src, tgt = pairs[place]
            yield place, weights_BTS[row, : len(tgt) - 1, : len(src) - 1]


@torch.inference_mode()
def each_head(
    models: Sequence[Seq2Seq], special: SpecialIds, pairs: Sequence[Pair]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The weights of all layers and heads (layers, heads, target tokens, source tokens), EOS last, as they come.

    Raises: ConfigError (models of different shapes).
    """
    for batch, cross in _looked_at(models, special, pairs):
        if len({(len(layers), layers[0].shape[1]) for layers in cross}) > 1:
            raise ConfigError("Models with different numbers of layers or heads cannot be looked at head by head.")
        weights_LBHTS = torch.stack([torch.stack(layers).float() for layers in cross]).mean(0).cpu().numpy()
        for row, place in enumerate(batch):
            src, tgt = pairs[place]
            yield place, weights_LBHTS[:, row, :, : len(tgt), : len(src)]


def pick(weights_LHTS: NDArray[np.float32], choice: HeadChoice) -> NDArray[np.float32]:
    """One choice of what `each_head` gives, as `each_attention` has it."""
    layers = [torch.from_numpy(layer)[None] for layer in weights_LHTS]
    return _chosen(layers, choice)[0, : weights_LHTS.shape[2] - 1, : weights_LHTS.shape[3] - 1].numpy()


def _looked_at(
    models: Sequence[Seq2Seq], special: SpecialIds, pairs: Sequence[Pair]
) -> Iterator[tuple[list[int], list[list[Tensor]]]]:
    """Places of pairs with their cross-attention; a batch that does not fit into memory is tried again in halves."""
    for batch in _batches(models, pairs):
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            cross = _cross_or_none(models, special, [pairs[place] for place in part])
            if cross is None:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
            else:
                yield part, cross


def _cross_or_none(models: Sequence[Seq2Seq], special: SpecialIds, pairs: Sequence[Pair]) -> list[list[Tensor]] | None:
    """`_cross`; None if several pairs do not fit into memory."""
    try:
        return _cross(models, special, pairs)
    except RuntimeError as error:
        if len(pairs) == 1 or not is_out_of_memory(error):
            raise
        return None


def _cross(models: Sequence[Seq2Seq], special: SpecialIds, pairs: Sequence[Pair]) -> list[list[Tensor]]:
    """The cross-attention of each model, by layer, each (B, H, T, S)."""
    device = next(models[0].parameters()).device
    width = -(-max(len(src) for src, _ in pairs) // _WIDTH_STEP) * _WIDTH_STEP
    src_BS = torch.from_numpy(pad([src for src, _ in pairs], special.pad))
    src_BS = F.pad(src_BS, (0, width - src_BS.shape[1]), value=special.pad).to(device)
    tgt_in_BT = torch.from_numpy(pad([[special.bos, *tgt[:-1]] for _, tgt in pairs], special.pad)).to(device)
    lengths_B = torch.tensor([len(src) for src, _ in pairs], device=device)
    keep_BS = torch.arange(width, device=device) < lengths_B[:, None]
    return [cross_attention(model, src_BS, tgt_in_BT, keep_BS) for model in models]


def _chosen(layers: Sequence[Tensor], choice: HeadChoice) -> Tensor:
    """Those weights of a model's layers. Row t is of target token t; with a shift the last row is no token's.

    Shape: (B, T, S).
    """
    heads = layers[0].shape[1]
    for name, number, count in (("align_layer", choice.layer, len(layers)), ("align_head", choice.head, heads)):
        if number > count:
            raise ConfigError(f"{name} = {number}, but the model has {count}, counted from 1 (0: the default).")
    taken = [layers[choice.layer - 1]] if choice.layer else layers[len(layers) // 2 :]
    of_heads = [layer[:, choice.head - 1] if choice.head else layer.float().mean(1) for layer in taken]
    weights_BTS = torch.stack([layer.float() for layer in of_heads]).mean(0)
    return weights_BTS.roll(-1, 1) if choice.shift else weights_BTS


def _batches(models: Sequence[Seq2Seq], pairs: Sequence[Pair]) -> Iterator[list[int]]:
    """Places of pairs with one width of the source and one length of the target, as many as MOST_NUMBERS allow.

    One pair at least, but none with more than MOST_WEIGHTS, or with a side longer than a model's learned positions.
    So what a pair is given as does not depend on the others, and the last bits of its weights hardly.
    """

    limit = min(model.max_positions or sys.maxsize for model in models)

    def shape(place: int) -> tuple[int, int]:
        src, tgt = pairs[place]
        return -(-len(src) // _WIDTH_STEP) * _WIDTH_STEP, len(tgt)

    seen = [place for place, (src, tgt) in enumerate(pairs) if max(len(src), len(tgt)) <= limit]
    for (width, height), places in groupby(sorted(seen, key=shape), shape):
        if width * height > MOST_WEIGHTS:
            continue
        numbers = sum(numbers_of_cross_attention(model, width, height) for model in models)
        fitting = max(1, MOST_NUMBERS // numbers)
        alike = list(places)
        yield from (alike[start : start + fitting] for start in range(0, len(alike), fitting))
