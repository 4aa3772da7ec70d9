"""What a search is asked for: the options of all sentences, and the limits of each.

Shapes: B sentences, P tokens of the longest prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LengthPenalty = Literal["gnmt", "power"]


@dataclass(frozen=True)
class SearchOptions:
    """How to search, and what may be generated.

    Attributes:
        banned: tokens that are never generated.
        n_best: hypotheses wanted a sentence.
        length_penalty: alpha; 0 ranks by plain log-probability.
        length_penalty_type: gnmt, ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14), or power, length ** alpha.
        coverage_penalty: beta of the same paper: the score loses for source tokens that were looked at too little.
        no_repeat_ngram: no n-gram of this length twice in a hypothesis; 0: no such rule.
        repetition_penalty: tokens that occurred get their positive logits divided, their negative ones multiplied by it
            (Keskar et al. 2019).
    """

    bos: int
    eos: int
    banned: tuple[int, ...] = ()
    beam_size: int = 4
    n_best: int = 1
    length_penalty: float = 0.6
    length_penalty_type: LengthPenalty = "gnmt"
    coverage_penalty: float = 0.0
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class Limits:
    """What holds for each sentence.

    Attributes:
        min_B, max_B: tokens of a hypothesis, EOS included, int64 (B,); max comes before min.
        prefix_BP: the tokens that a hypothesis must begin with, int64 (B, P), -1 behind shorter ones.
    """

    min_B: Tensor
    max_B: Tensor
    prefix_BP: Tensor

    @classmethod
    def of(
        cls, min_lengths: Sequence[int], max_lengths: Sequence[int], prefixes: Sequence[Sequence[int]] | None = None
    ) -> "Limits":
        """From numbers a sentence. A prefix and its EOS always fit."""
        prefixes = prefixes or [()] * len(max_lengths)
        longest = max(map(len, prefixes), default=0)
        rows = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
        max_B = torch.tensor([max(n, len(p) + 1) for n, p in zip(max_lengths, prefixes, strict=True)]).long()
        return cls(torch.tensor(min_lengths).long(), max_B, torch.tensor(rows).long().view(len(max_B), longest))

    def __len__(self) -> int:
        return len(self.max_B)

    def to(self, device: torch.device) -> "Limits":
        """The same on a device."""
        return Limits(self.min_B.to(device), self.max_B.to(device), self.prefix_BP.to(device))

    def select(self, sentences: Tensor) -> "Limits":
        """Those of `sentences`, int64."""
        return Limits(self.min_B[sentences], self.max_B[sentences], self.prefix_BP[sentences])
