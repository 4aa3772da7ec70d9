"""The model that is checked, and the made-up sentences that it is looked at with.

Shapes: B batch, S source, T target.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nmt.config import Config, ModelConfig
from nmt.model.attention import record_attention
from nmt.model.build import build_model
from nmt.model.seq2seq import Seq2Seq
from nmt.text.tokenizer import SpecialIds

_LENGTHS = (6, 9, 12, 15, 17, 18, 19, 20)  # of made-up sources; each target has the length of another one's source


@dataclass(frozen=True)
class Sentences:
    """Made-up pairs, as a batch for training holds them.

    Attributes:
        src_BS: EOS last, then padding.
        keep_BS: True on real tokens.
        tgt_in_BT: BOS first.
        tgt_out_BT: EOS last, then padding.
    """

    src_BS: Tensor
    keep_BS: Tensor
    tgt_in_BT: Tensor
    tgt_out_BT: Tensor


@dataclass(frozen=True)
class Subject:
    """A model under test. No check changes it: they work on copies.

    Attributes:
        fresh: random weights, as before the first update.
        seed: of all that is made up.
    """

    model: Seq2Seq
    config: ModelConfig
    special: SpecialIds
    fresh: bool
    seed: int = 1

    @classmethod
    def from_config(cls, config: Config) -> "Subject":
        """A fresh model of a recipe's shape and seed; its vocabulary is as large as is asked for."""
        pieces = config.tokenizer.vocab_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.training.seed)
            model = build_model(config.model, pieces, pieces)
        return cls(model, config.model, SpecialIds(), fresh=True, seed=config.training.seed)

    @staticmethod
    def parameters_of(config: Config) -> int:
        """How many a model of this recipe has; none is built."""
        pieces = config.tokenizer.vocab_size
        with torch.device("meta"):
            return build_model(config.model, pieces, pieces).num_parameters()

    @cached_property
    def exact(self) -> Seq2Seq:
        """A copy in float64 without dropout, in which what differs by more than rounding differs."""
        return copy.deepcopy(self.model).double().eval()

    def single_copy(self) -> Seq2Seq:
        """A copy in fp32 without dropout, to be trained."""
        return copy.deepcopy(self.model).float().eval()

    @cached_property
    def sentences(self) -> Sentences:
        """Eight pairs of different lengths."""
        lengths = [min(length, self.model.max_positions or length) for length in _LENGTHS]
        src_BS, tgt_BT = self._random(lengths, self.src_pieces, 0), self._random(lengths[::-1], self.tgt_pieces, 1)
        bos_B1 = torch.full((len(tgt_BT), 1), self.special.bos)
        tgt_in_BT = torch.cat([bos_B1, tgt_BT[:, :-1]], dim=1)
        tgt_in_BT = tgt_in_BT.masked_fill(tgt_in_BT == self.special.eos, self.special.pad)  # of the shorter ones
        return Sentences(src_BS, src_BS != self.special.pad, tgt_in_BT, tgt_BT)

    @cached_property
    def equal_sentences(self) -> Sentences:
        """Pairs that all have the length of the longest: nothing is padded."""
        lengths = [min(max(_LENGTHS), self.model.max_positions or max(_LENGTHS))] * 4
        src_BS, tgt_BT = self._random(lengths, self.src_pieces, 2), self._random(lengths, self.tgt_pieces, 3)
        bos_B1 = torch.full((len(tgt_BT), 1), self.special.bos)
        tgt_in_BT = torch.cat([bos_B1, tgt_BT[:, :-1]], dim=1)
        return Sentences(src_BS, torch.ones_like(src_BS, dtype=torch.bool), tgt_in_BT, tgt_BT)

    @property
    def src_pieces(self) -> int:
        """The size of the source vocabulary."""
        return int(self.model.src_embedding.num_embeddings)

    @property
    def tgt_pieces(self) -> int:
        """The size of the target vocabulary."""
        return int(self.model.tgt_embedding.num_embeddings)

    def _random(self, lengths: list[int], pieces: int, salt: int) -> Tensor:
        """Sentences of these lengths, EOS last, without control pieces, no piece twice in one if there are enough."""
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        control = {self.special.pad, self.special.unk, self.special.bos, self.special.eos}
        words = torch.tensor([piece for piece in range(min(pieces, 10_000)) if piece not in control])
        rows = torch.full((len(lengths), max(lengths)), self.special.pad)
        for row, length in zip(rows, lengths, strict=True):
            drawn = torch.randperm(len(words), generator=generator).repeat(-(-length // len(words)))
            row[: length - 1], row[length - 1] = words[drawn[: length - 1]], self.special.eos
        return rows


@torch.no_grad()
def recorded(subject: Subject, sentences: Sentences) -> dict[str, Tensor]:
    """The weights (B, H, Q, S) of every attention of a pass over the sentences."""
    with record_attention(subject.exact) as weights:
        subject.exact(sentences.src_BS, sentences.tgt_in_BT, sentences.keep_BS)
    return weights


@contextmanager
def outputs_of(model: torch.nn.Module, layers: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
    """Within the block, what the modules of these last names put out, by their whole name: of the last call."""
    seen: dict[str, Tensor] = {}

    def note(name: str) -> torch.utils.hooks.RemovableHandle:
        def hook(module: torch.nn.Module, inputs: object, output: Tensor) -> None:
            seen[name] = output

        return model.get_submodule(name).register_forward_hook(hook)

    named = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in layers]
    handles = [note(name) for name in named]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
