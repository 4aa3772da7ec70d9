"""Beam search over token ids.

The search knows neither text nor model: it calls `rows.step(tokens) -> logits` and tells `rows` which prefixes go on.
Every hypothesis ends with EOS, which is forced at the length limit, so its score is that of force-decoding it.

Beam search keeps, for each sentence, the best `beam_size` unfinished prefixes. A finished hypothesis is taken when it
ranks among the best `beam_size` continuations. A sentence is done when it has `beam_size` finished hypotheses, or when
no unfinished prefix can still win: log-probabilities only fall, so a prefix's score is bounded by its log-probability
over the largest length penalty. Sentences that are done leave the batch.

Shapes: B sentences still searched, W prefixes a sentence, V vocabulary, C candidates, T tokens so far, S source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from nmt.decoding.constraints import allow
from nmt.decoding.options import Limits, SearchOptions


class Rows(Protocol):
    """The model's side of a search: the prefixes of each sentence, and what it remembers of them."""

    def step(self, tokens_BW: Tensor) -> Tensor:
        """Feed the newest token of every prefix. Returns: logits (B, W, V) of the next, which the search may change."""

    def attention(self) -> Tensor:
        """What the last step looked at: weights (B, W, S) that sum to 1, and 1 where the source is padded."""

    def reorder(self, parents_BW: Tensor) -> None:
        """Prefix w of sentence b goes on from prefix parents_BW[b, w]; after the first step there are more."""

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with `sentences` alone."""


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A finished translation.

    Attributes:
        score: log-probability / length penalty + coverage penalty; decides the order.
        log_prob: natural log-probability of ids and EOS.
        ids: tokens without BOS and EOS.
        token_log_probs: of each id and of EOS; they sum to log_prob.
    """

    score: float
    log_prob: float
    ids: tuple[int, ...]
    token_log_probs: tuple[float, ...] = ()


IMPOSSIBLE = Hypothesis(-math.inf, -math.inf, ())  # stands in where the model gives every ending probability 0 or NaN


def length_penalty(length: int, options: SearchOptions) -> float:
    """What a log-probability is divided by; `length` counts EOS."""
    base = length if options.length_penalty_type == "power" else (5 + length) / 6
    return float(base**options.length_penalty)


def score_dtype(device: torch.device) -> torch.dtype:
    """Sums of log-probabilities are kept in float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


@torch.inference_mode()
def beam_search(rows: Rows, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses found of each sentence, best first."""
    done: list[list[Hypothesis]] = [[] for _ in range(len(limits))]
    numbers = list(range(len(limits)))  # of the sentences in the batch
    beams = _Beams.start(limits, options)
    while numbers:
        logits_BWV = rows.step(beams.last_BW)
        coverage_BWS = None
        if options.coverage_penalty:
            coverage_BWS = rows.attention() if beams.coverage_BWS is None else beams.coverage_BWS + rows.attention()
        beams = replace(beams, coverage_BWS=coverage_BWS)
        candidates = _candidates(logits_BWV, beams, limits, options)
        _collect_finished(candidates, beams, numbers, done, options)
        beams, parents_BW = _advance(candidates, beams, options)
        longest = limits.max_B.tolist()
        bests = beams.scores_BW[:, 0].tolist()
        over = [_is_done(done[number], bests[b], longest[b], options) for b, number in enumerate(numbers)]
        rows.reorder(parents_BW)
        if any(over):
            going = staying(over)
            numbers = [numbers[b] for b in going]
            sentences = torch.tensor(going, device=parents_BW.device).long()
            limits, beams = limits.select(sentences), beams.select(sentences)
            rows.keep_sentences(sentences)
    return [sorted(hypotheses, reverse=True)[: options.n_best] or [IMPOSSIBLE] for hypotheses in done]


def staying(over: Sequence[bool]) -> list[int]:
    """The places of those that are not over: as few as possible move, the last ones into the gaps."""
    count = len(over) - sum(over)
    last = [place for place in range(count, len(over)) if not over[place]]
    return [place if not over[place] else last.pop() for place in range(count)]


@dataclass
class _Beams:
    """The unfinished prefixes, best first in each sentence."""

    scores_BW: Tensor  # log-probabilities; -inf marks an unused place
    last_BW: Tensor  # the newest tokens, at first BOS
    history_BWT: Tensor  # all tokens, without BOS
    log_probs_BWT: Tensor  # scores_BW after each of them
    coverage_BWS: Tensor | None = None  # attention so far, summed over T

    @classmethod
    def start(cls, limits: Limits, options: SearchOptions) -> "_Beams":
        batch, like = len(limits), limits.max_B
        scores_B1 = torch.zeros(batch, 1, dtype=score_dtype(like.device), device=like.device)
        nothing = like.new_zeros(batch, 1, 0)
        return cls(scores_B1, like.new_full((batch, 1), options.bos), nothing, nothing.to(scores_B1.dtype))

    def select(self, sentences: Tensor) -> "_Beams":
        coverage = None if self.coverage_BWS is None else self.coverage_BWS[sentences]
        return _Beams(
            self.scores_BW[sentences],
            self.last_BW[sentences],
            self.history_BWT[sentences],
            self.log_probs_BWT[sentences],
            coverage,
        )


@dataclass
class _Candidates:
    """The best continuations of each sentence, best first."""

    scores_BC: Tensor
    parents_BC: Tensor  # place of the prefix within its sentence
    tokens_BC: Tensor


def _candidates(logits_BWV: Tensor, beams: _Beams, limits: Limits, options: SearchOptions) -> _Candidates:
    """The 2 * beam_size best continuations: as many may end, and beam_size must go on."""
    log_probs_BWV = allow(logits_BWV, beams.history_BWT, limits, options)
    wanted = 2 * options.beam_size
    log_probs_BWC, tokens_BWC = log_probs_BWV.topk(min(wanted, log_probs_BWV.shape[-1]), dim=-1)
    scores = (beams.scores_BW[..., None] + log_probs_BWC.to(beams.scores_BW.dtype)).flatten(1)
    scores_BC, places_BC = scores.topk(min(wanted, scores.shape[1]), dim=-1)
    return _Candidates(scores_BC, places_BC // tokens_BWC.shape[-1], tokens_BWC.flatten(1).gather(1, places_BC))


def _collect_finished(
    candidates: _Candidates,
    beams: _Beams,
    numbers: Sequence[int],
    done: list[list[Hypothesis]],
    options: SearchOptions,
) -> None:
    """Move hypotheses that end among the best beam_size continuations to `done`."""
    best = slice(0, options.beam_size)
    scores = candidates.scores_BC[:, best]
    ends = (candidates.tokens_BC[:, best] == options.eos) & (scores > -torch.inf)
    for place, rank in ends.nonzero().tolist():
        parent = candidates.parents_BC[place, rank]
        log_probs = [*beams.log_probs_BWT[place, parent].tolist(), float(scores[place, rank])]
        coverage = 0.0
        if beams.coverage_BWS is not None:
            covered_S = beams.coverage_BWS[place, parent].clamp(max=1.0)
            coverage = options.coverage_penalty * float(covered_S.log().sum())
        done[numbers[place]].append(hypothesis(beams.history_BWT[place, parent].tolist(), log_probs, options, coverage))


def _advance(candidates: _Candidates, beams: _Beams, options: SearchOptions) -> tuple[_Beams, Tensor]:
    """The best beam_size continuations that do not end, and the prefix each continues, (B, W)."""
    ends_BC = candidates.tokens_BC == options.eos
    going_BW = ends_BC.long().argsort(dim=1, stable=True)[:, : options.beam_size]
    scores_BW = candidates.scores_BC.masked_fill(ends_BC, -torch.inf).gather(1, going_BW)
    parents_BW = candidates.parents_BC.gather(1, going_BW)
    tokens_BW = candidates.tokens_BC.gather(1, going_BW)
    sentences_B1 = torch.arange(len(parents_BW), device=parents_BW.device)[:, None]
    advanced = _Beams(
        scores_BW,
        tokens_BW,
        torch.cat([beams.history_BWT[sentences_B1, parents_BW], tokens_BW[:, :, None]], dim=2),
        torch.cat([beams.log_probs_BWT[sentences_B1, parents_BW], scores_BW[:, :, None]], dim=2),
        None if beams.coverage_BWS is None else beams.coverage_BWS[sentences_B1, parents_BW],
    )
    return advanced, parents_BW


def _is_done(finished: list[Hypothesis], best_unfinished: float, max_length: int, options: SearchOptions) -> bool:
    """Whether more search cannot change a sentence's n-best list, or its beam is full.

    The bound holds with a coverage penalty too, which only takes away.
    """
    if not best_unfinished > -torch.inf or len(finished) >= options.beam_size:  # `not >`: true of NaN too
        return True
    if len(finished) < options.n_best:
        return False
    bound = best_unfinished / length_penalty(max_length, options)
    return bound <= sorted(finished, reverse=True)[options.n_best - 1].score


def hypothesis(
    ids: Sequence[int], log_probs: Sequence[float], options: SearchOptions, coverage: float = 0.0
) -> Hypothesis:
    """From tokens without EOS, and the log-probability after each of them and after EOS."""
    log_prob = log_probs[-1]
    steps = [later - earlier for earlier, later in zip([0.0, *log_probs], log_probs, strict=False)]
    score = log_prob / length_penalty(len(ids) + 1, options) + coverage
    return Hypothesis(score, log_prob, tuple(ids), tuple(steps))
