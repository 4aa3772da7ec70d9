"""What may be generated next: banned tokens, lengths, forced beginnings, repetition.

Shapes: B sentences, W prefixes a sentence, V vocabulary, T tokens so far.
"""

import torch
from torch import Tensor

from nmt.decoding.options import Limits, SearchOptions


def allow(logits_BWV: Tensor, history_BWT: Tensor, limits: Limits, options: SearchOptions) -> tuple[Tensor, Tensor]:
    """Logits of the next token, in at least float32, with -inf where it is not allowed; and their normaliser.

    The model's distribution is normalised over all tokens: a ban takes tokens away and gives the others nothing. A
    forced token may be a banned one. `logits_BWV` may be changed.
    Returns: logits (B, W, V), and log(sum(exp)) of them before any ban, (B, W).
    """
    logits_BWV = logits_BWV.to(torch.promote_types(logits_BWV.dtype, torch.float32))
    if options.repetition_penalty != 1.0:
        logits_BWV = _penalise_repetition(logits_BWV, history_BWT, options.repetition_penalty)
    normaliser_BW = logits_BWV.logsumexp(-1)
    number = history_BWT.shape[-1] + 1  # of the next token, the first is 1
    prefix_BP = limits.prefix_BP
    forced_B11 = prefix_BP[:, number - 1, None, None] if number <= prefix_BP.shape[1] else None
    free = None if forced_B11 is None else logits_BWV.clone()
    logits_BWV[..., list(options.banned)] = -torch.inf
    _ban_lengths(logits_BWV, number, limits, options.eos)
    if 0 < options.no_repeat_ngram < number:
        _ban_repeated_ngrams(logits_BWV, history_BWT, options.no_repeat_ngram)
    if free is not None and forced_B11 is not None:
        only = torch.arange(free.shape[-1], device=free.device) == forced_B11
        logits_BWV = torch.where(forced_B11 < 0, logits_BWV, free.masked_fill(~only, -torch.inf))
    return logits_BWV, normaliser_BW


def _ban_lengths(logits_BWV: Tensor, number: int, limits: Limits, eos: int) -> None:
    """No EOS before the minimum, nothing else at the maximum."""
    at_max_B = number >= limits.max_B
    too_early_B11 = ((number < limits.min_B) & ~at_max_B)[:, None, None]
    ends_BW1 = logits_BWV[..., eos, None].masked_fill(too_early_B11, -torch.inf)
    if at_max_B.any():
        logits_BWV.masked_fill_(at_max_B[:, None, None], -torch.inf)
    logits_BWV[..., eos, None] = ends_BW1


def _penalise_repetition(logits_BWV: Tensor, history_BWT: Tensor, penalty: float) -> Tensor:
    seen_BWT = logits_BWV.gather(-1, history_BWT)
    return logits_BWV.scatter(-1, history_BWT, torch.where(seen_BWT > 0, seen_BWT / penalty, seen_BWT * penalty))


def _ban_repeated_ngrams(logits_BWV: Tensor, history_BWT: Tensor, n: int) -> None:
    """Ban each token that would complete an n-gram which the prefix holds already."""
    grams_BWGn = history_BWT.unfold(-1, n, 1)
    newest = history_BWT[..., history_BWT.shape[-1] - n + 1 :]
    completes_BWG = (grams_BWGn[..., :-1] == newest[..., None, :]).all(-1)
    last_BWG = grams_BWGn[..., -1]
    banned = torch.where(completes_BWG, -torch.inf, 0.0).to(logits_BWV.dtype)
    logits_BWV.scatter_add_(-1, last_BWG, banned)
