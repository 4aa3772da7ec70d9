"""Decoding without comparing prefixes: greedy, sampling, and forced paths.

A path that is forced from its first token to its last one (`Limits.prefix_BP`) is scored, by the very steps that a
search takes.

Shapes: B sentences still followed, W paths a sentence, V vocabulary, T tokens so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.decoding.constraints import allow
from nmt.decoding.options import Limits, SearchOptions
from nmt.decoding.search import Hypothesis, Rows, hypothesis, score_dtype, staying

# From the log-probabilities (B, W, V) of token `number`, and the sentences' places in the batch: the tokens, (B, W).
Choose = Callable[[Tensor, int, Sequence[int]], Tensor]


def greedy_search(rows: Rows, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """The likeliest token at every step: one hypothesis a sentence."""
    return follow(rows, limits, options, lambda log_probs_BWV, number, places: log_probs_BWV.argmax(-1))


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens.

    Attributes:
        temperature: log-probabilities are divided by it.
        top_k: only the k likeliest tokens; 0: all.
        top_p: only the likeliest tokens that together have this probability (Holtzman et al. 2020).
        seeds: one a sentence; a path's numbers come from its sentence's seed and its own place, whatever the batch.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seeds: tuple[int, ...] = ()


def sample(rows: Rows, limits: Limits, options: SearchOptions, sampling: Sampling) -> list[list[Hypothesis]]:
    """`n_best` drawn hypotheses a sentence, best first."""
    if not len(limits):
        return []
    longest = int(limits.max_B.max())
    uniform_BWL = torch.stack([_uniform(seed, options.n_best, longest) for seed in sampling.seeds])

    def draw(log_probs_BWV: Tensor, number: int, places: Sequence[int]) -> Tensor:
        device = log_probs_BWV.device
        return _draw(log_probs_BWV, uniform_BWL[list(places), :, number - 1].to(device, score_dtype(device)), sampling)

    return follow(rows, limits, options, draw, num_paths=options.n_best)


@torch.inference_mode()
def follow(
    rows: Rows, limits: Limits, options: SearchOptions, choose: Choose, num_paths: int = 1
) -> list[list[Hypothesis]]:
    """Go on with the tokens that `choose` names until EOS or the length limit. Returns: `num_paths` a sentence."""
    done: list[list[Hypothesis]] = [[] for _ in range(len(limits))]
    numbers = list(range(len(limits)))  # of the sentences in the batch
    device, dtype = limits.max_B.device, score_dtype(limits.max_B.device)
    last_BW = torch.full((len(limits), 1), options.bos, device=device)
    history_BWT = last_BW.new_zeros(len(limits), 1, 0)
    log_probs_BWT = history_BWT.to(dtype)
    ended_BW = torch.zeros(len(limits), num_paths, dtype=torch.bool, device=device)
    while numbers:
        log_probs_BWV = allow(rows.step(last_BW), history_BWT, limits, options)
        if last_BW.shape[1] < num_paths:  # all paths begin with BOS, whose distribution they share
            log_probs_BWV = log_probs_BWV.repeat_interleave(num_paths, dim=1)
            history_BWT, log_probs_BWT = (t.expand(-1, num_paths, -1) for t in (history_BWT, log_probs_BWT))
            rows.reorder(torch.zeros_like(ended_BW, dtype=torch.long))
        last_BW = choose(log_probs_BWV, history_BWT.shape[2] + 1, numbers)
        step_BW = log_probs_BWV.gather(-1, last_BW[..., None])[..., 0].to(dtype)
        total_BW = step_BW if not history_BWT.shape[2] else log_probs_BWT[..., -1] + step_BW
        history_BWT = torch.cat([history_BWT, last_BW[..., None]], dim=2)
        log_probs_BWT = torch.cat([log_probs_BWT, total_BW[..., None]], dim=2)
        # At the limit even if EOS, the only token allowed there, is impossible.
        ends_BW = ~ended_BW & ((last_BW == options.eos) | (history_BWT.shape[2] >= limits.max_B)[:, None])
        for b, w in ends_BW.nonzero().tolist():
            ids, log_probs = history_BWT[b, w, :-1].tolist(), log_probs_BWT[b, w].tolist()
            done[numbers[b]].append(hypothesis(ids, log_probs, options))
        ended_BW = ended_BW | ends_BW
        over = ended_BW.all(1).tolist()
        if any(over):
            places = staying(over)
            numbers = [numbers[b] for b in places]
            going = torch.tensor(places, device=device).long()
            limits, ended_BW, last_BW = limits.select(going), ended_BW[going], last_BW[going]
            history_BWT, log_probs_BWT = history_BWT[going], log_probs_BWT[going]
            rows.keep_sentences(going)
    return [sorted(hypotheses, reverse=True) for hypotheses in done]


def _uniform(seed: int, num_paths: int, length: int) -> Tensor:
    """float64 (W, L) from [0, 1): a path's own row, whatever the number of paths and the length."""
    rows = []
    for path in range(num_paths):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + path) % 2**63)
        rows.append(torch.rand(length, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def _draw(log_probs_BWV: Tensor, uniform_BW: Tensor, sampling: Sampling) -> Tensor:
    """One token a path, by the inverse of the cumulated probabilities. Shape: (B, W)."""
    logits = log_probs_BWV.to(uniform_BW.dtype) / sampling.temperature
    tokens = None
    if sampling.top_k:
        logits, tokens = logits.topk(min(sampling.top_k, logits.shape[-1]), dim=-1)
    elif sampling.top_p < 1.0:
        logits, tokens = logits.sort(dim=-1, descending=True)
    probs = logits.softmax(-1)
    if sampling.top_p < 1.0:
        probs = probs * (probs.cumsum(-1) - probs < sampling.top_p)
    cumulated = probs.cumsum(-1)
    total = cumulated[..., -1:].contiguous()
    place = torch.searchsorted(cumulated, uniform_BW[..., None] * total, right=True)
    place = torch.minimum(place, torch.searchsorted(cumulated, total))  # where rounding reached the total
    place = place.clamp(max=probs.shape[-1] - 1)  # of a broken model, whose probabilities are NaN
    return (place if tokens is None else tokens.gather(-1, place))[..., 0]
