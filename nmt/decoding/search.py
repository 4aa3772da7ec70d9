"""Greedy and beam search over token ids.

The search knows neither text nor model: it calls `step(tokens_N) -> logits (N, V)` and tells `state` which rows go on.
Every hypothesis ends with EOS, which is forced at the length limit, so its score is that of force-decoding it.

Beam search keeps, for each sentence, the best `beam_size` unfinished prefixes. A finished hypothesis is taken when it
ranks among the best `beam_size` continuations. A sentence is done when it has `beam_size` finished hypotheses, or when
no unfinished prefix can still win: log-probabilities only fall, so a prefix's score is bounded by its log-probability
over the largest length penalty. Sentences that are done leave the batch.

Shapes: B sentences still searched, W prefixes a sentence, N = B * W rows, V vocabulary, C candidates, T tokens so far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Step = Callable[[Tensor], Tensor]


class RowState(Protocol):
    """What the step function remembers of each row. All numbers are of the rows and sentences before the call."""

    def reorder(self, rows_N: Tensor) -> None:
        """Row i goes on from row rows_N[i], of the same sentence; after the first step there are more rows."""

    def keep_sentences(self, sentences: Tensor, rows: Tensor) -> None:
        """Go on with `sentences` alone; row i goes on from row rows[i]."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search.

    Attributes:
        length_penalty: alpha of GNMT (Wu et al. 2016, equation 14); 0 ranks by plain log-probability.
        min_length: tokens before EOS is allowed.
        n_best: hypotheses wanted a sentence.
    """

    bos: int
    eos: int
    banned: tuple[int, ...] = ()  # never generated
    beam_size: int = 4
    length_penalty: float = 0.6
    min_length: int = 1
    n_best: int = 1


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A finished translation.

    Attributes:
        score: log-probability / length penalty; decides the order.
        log_prob: natural log-probability of ids and EOS.
        ids: tokens without BOS and EOS.
    """

    score: float
    log_prob: float
    ids: tuple[int, ...]


IMPOSSIBLE = Hypothesis(-math.inf, -math.inf, ())  # stands in where the model gives every ending probability 0 or NaN


def length_penalty(length: int, alpha: float) -> float:
    """GNMT's ((5 + length) / 6) ** alpha; `length` counts EOS."""
    return float(((5 + length) / 6) ** alpha)


def _score_dtype(like: Tensor) -> torch.dtype:
    """Sums of log-probabilities are kept in float64, where the device has it."""
    return torch.float32 if like.device.type == "mps" else torch.float64


@torch.inference_mode()
def greedy_search(step: Step, state: RowState, max_lengths: Tensor, options: SearchOptions) -> list[list[Hypothesis]]:
    """The likeliest token at every step. `max_lengths`: int64 (B,), tokens a sentence, EOS included."""
    done: list[list[Hypothesis]] = [[] for _ in max_lengths]
    numbers = list(range(len(max_lengths)))  # of the sentences still searched
    tokens_B = torch.full_like(max_lengths, options.bos)
    history_BT = max_lengths.new_zeros(len(max_lengths), 0)
    log_probs_B = torch.zeros(len(max_lengths), dtype=_score_dtype(max_lengths), device=max_lengths.device)
    while numbers:
        step_log_probs_BV = _allowed_log_probs(step(tokens_B), history_BT.shape[1] + 1, max_lengths, options)
        best_B, tokens_B = step_log_probs_BV.max(-1)
        log_probs_B = log_probs_B + best_B
        history_BT = torch.cat([history_BT, tokens_B[:, None]], dim=1)
        # At the limit even if EOS, the only token allowed there, is impossible.
        ended = ((tokens_B == options.eos) | (history_BT.shape[1] >= max_lengths)).tolist()
        for row, log_prob in enumerate(log_probs_B.tolist()):
            if ended[row]:
                done[numbers[row]].append(_hypothesis(history_BT[row, :-1], log_prob, options))
        if any(ended):
            going = torch.tensor([row for row, end in enumerate(ended) if not end], device=tokens_B.device).long()
            numbers = [numbers[row] for row in going.tolist()]
            max_lengths, tokens_B, log_probs_B = max_lengths[going], tokens_B[going], log_probs_B[going]
            history_BT = history_BT[going]
            state.keep_sentences(going, going)
    return done


@torch.inference_mode()
def beam_search(step: Step, state: RowState, max_lengths: Tensor, options: SearchOptions) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses found a sentence, best first.

    Args:
        step: feeds one token a row; called with B rows first, then B * W.
        max_lengths: int64 (B,), tokens a sentence, EOS included.
    """
    done: list[list[Hypothesis]] = [[] for _ in max_lengths]
    numbers = list(range(len(max_lengths)))
    beams = _Beams.start(max_lengths, options)
    while numbers:
        num_rows = beams.scores_BW.numel()
        candidates = _candidates(step(beams.last_BW.flatten()), beams, max_lengths, options)
        _collect_finished(candidates, beams, numbers, done, options)
        beams, rows_BW = _advance(candidates, beams, options)
        going = [
            place
            for place, (best, longest) in enumerate(
                zip(beams.scores_BW[:, 0].tolist(), max_lengths.tolist(), strict=True)
            )
            if not _is_done(done[numbers[place]], best, longest, options)
        ]
        if len(going) < len(numbers):
            sentences = torch.tensor(going, device=max_lengths.device).long()
            numbers = [numbers[place] for place in going]
            max_lengths, beams, rows_BW = max_lengths[sentences], beams.select(sentences), rows_BW[sentences]
            state.keep_sentences(sentences, rows_BW.flatten())
        elif not torch.equal(rows_BW.flatten(), torch.arange(num_rows, device=rows_BW.device)):
            state.reorder(rows_BW.flatten())
    return [sorted(hypotheses, reverse=True)[: options.n_best] or [IMPOSSIBLE] for hypotheses in done]


@dataclass
class _Beams:
    """The unfinished prefixes, best first in each sentence."""

    scores_BW: Tensor  # log-probabilities; -inf marks an unused place
    last_BW: Tensor  # the newest tokens, at first BOS
    history_BWT: Tensor  # all tokens, without BOS

    @classmethod
    def start(cls, max_lengths: Tensor, options: SearchOptions) -> "_Beams":
        batch = len(max_lengths)
        scores_B1 = torch.zeros(batch, 1, dtype=_score_dtype(max_lengths), device=max_lengths.device)
        return cls(scores_B1, torch.full_like(max_lengths, options.bos)[:, None], max_lengths.new_zeros(batch, 1, 0))

    def select(self, sentences: Tensor) -> "_Beams":
        return _Beams(self.scores_BW[sentences], self.last_BW[sentences], self.history_BWT[sentences])


@dataclass
class _Candidates:
    """The best continuations of each sentence, best first."""

    scores_BC: Tensor
    parents_BC: Tensor  # place of the prefix within its sentence
    tokens_BC: Tensor


def _candidates(logits_NV: Tensor, beams: _Beams, max_lengths: Tensor, options: SearchOptions) -> _Candidates:
    """The 2 * beam_size best continuations: as many may end, and beam_size must go on."""
    batch, width = beams.scores_BW.shape
    number = beams.history_BWT.shape[2] + 1
    log_probs_NV = _allowed_log_probs(logits_NV, number, max_lengths.repeat_interleave(width), options)
    wanted = 2 * options.beam_size
    row_scores_NC, row_tokens_NC = log_probs_NV.topk(min(wanted, log_probs_NV.shape[1]), dim=-1)
    scores = (beams.scores_BW.view(-1, 1) + row_scores_NC).view(batch, -1)
    scores_BC, places_BC = scores.topk(min(wanted, scores.shape[1]), dim=-1)
    per_row = row_scores_NC.shape[1]
    tokens_BC = row_tokens_NC.view(batch, -1).gather(1, places_BC)
    return _Candidates(scores_BC, places_BC // per_row, tokens_BC)


def _allowed_log_probs(logits_NV: Tensor, number: int, max_lengths_N: Tensor, options: SearchOptions) -> Tensor:
    """Log-probabilities of token `number` (the first is 1), in at least float32; -inf where it is not allowed.

    The model's distribution is normalised over all tokens: a ban takes tokens away and gives the others nothing.
    """
    log_probs_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)).log_softmax(-1)
    log_probs_NV[:, list(options.banned)] = -torch.inf
    if number <= options.min_length:
        log_probs_NV[:, options.eos] = log_probs_NV[:, options.eos].where(number >= max_lengths_N, -torch.inf)
    at_limit = (number >= max_lengths_N)[:, None]
    not_eos = torch.arange(logits_NV.shape[1], device=logits_NV.device) != options.eos
    return log_probs_NV.masked_fill_(at_limit & not_eos, -torch.inf)


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
        log_prob = float(scores[place, rank])
        done[numbers[place]].append(_hypothesis(beams.history_BWT[place, parent], log_prob, options))


def _advance(candidates: _Candidates, beams: _Beams, options: SearchOptions) -> tuple[_Beams, Tensor]:
    """The best beam_size continuations that do not end, and the row each continues. Shapes: beams, (B, W)."""
    ends_BC = candidates.tokens_BC == options.eos
    going_BW = ends_BC.long().argsort(dim=1, stable=True)[:, : options.beam_size]
    scores_BW = candidates.scores_BC.masked_fill(ends_BC, -torch.inf).gather(1, going_BW)
    parents_BW = candidates.parents_BC.gather(1, going_BW)
    tokens_BW = candidates.tokens_BC.gather(1, going_BW)
    sentences_B1 = torch.arange(len(parents_BW), device=parents_BW.device)[:, None]
    history_BWT = torch.cat([beams.history_BWT[sentences_B1, parents_BW], tokens_BW[:, :, None]], dim=2)
    return _Beams(scores_BW, tokens_BW, history_BWT), sentences_B1 * beams.scores_BW.shape[1] + parents_BW


def _is_done(finished: list[Hypothesis], best_unfinished: float, max_length: int, options: SearchOptions) -> bool:
    """Whether more search cannot change a sentence's n-best list, or its beam is full."""
    if not best_unfinished > -torch.inf or len(finished) >= options.beam_size:  # `not >`: true of NaN too
        return True
    if len(finished) < options.n_best:
        return False
    bound = best_unfinished / length_penalty(max_length, options.length_penalty)
    return bound <= sorted(finished, reverse=True)[options.n_best - 1].score


def _hypothesis(ids_T: Tensor, log_prob: float, options: SearchOptions) -> Hypothesis:
    """From tokens without EOS, and their log-probability with it."""
    ids = tuple(ids_T.tolist())
    return Hypothesis(log_prob / length_penalty(len(ids) + 1, options.length_penalty), log_prob, ids)
