"""What may be generated next: banned tokens, lengths, forced beginnings, repetition.

Shapes: B sentences, W prefixes a sentence, V vocabulary, T tokens so far.
"""

import torch
from torch import Tensor

from nmt.decoding.options import Limits, SearchOptions


def allow(logits_BWV: Tensor, history_BWT: Tensor, limits: Limits, options: SearchOptions) -> Tensor:
    """Log-probabilities of the next token, in at least float32, with -inf where it is not allowed. Shape: (B, W, V).

    The model's distribution is normalised over all tokens: a ban takes tokens away and gives the others nothing. A
    forced token may be a banned one.
    """
    logits_BWV = logits_BWV.to(torch.promote_types(logits_BWV.dtype, torch.float32))
    if options.repetition_penalty != 1.0:
        logits_BWV = _penalise_repetition(logits_BWV, history_BWT, options.repetition_penalty)
    log_probs_BWV = logits_BWV.log_softmax(-1)
    number = history_BWT.shape[-1] + 1  # of the next token, the first is 1
    forced = _forced(log_probs_BWV, number, limits)
    log_probs_BWV[..., list(options.banned)] = -torch.inf
    _ban_lengths(log_probs_BWV, number, limits, options.eos)
    if 0 < options.no_repeat_ngram < number:
        _ban_repeated_ngrams(log_probs_BWV, history_BWT, options.no_repeat_ngram)
    if forced is not None:
        is_forced_B11, tokens_BW1, values_BW1 = forced
        log_probs_BWV.masked_fill_(is_forced_B11, -torch.inf)
        values_BW1 = torch.where(is_forced_B11, values_BW1, log_probs_BWV.gather(-1, tokens_BW1))
        log_probs_BWV.scatter_(-1, tokens_BW1, values_BW1)
    return log_probs_BWV


def _forced(log_probs_BWV: Tensor, number: int, limits: Limits) -> tuple[Tensor, Tensor, Tensor] | None:
    """Which sentences have a token forced now, bool (B, 1, 1), it and its value, (B, W, 1); None if no sentence has."""
    if number > limits.prefix_BP.shape[1]:
        return None
    tokens_B11 = limits.prefix_BP[:, number - 1, None, None]
    tokens_BW1 = tokens_B11.clamp(min=0).expand(-1, log_probs_BWV.shape[1], -1)
    return tokens_B11 >= 0, tokens_BW1, log_probs_BWV.gather(-1, tokens_BW1)


def _ban_lengths(log_probs_BWV: Tensor, number: int, limits: Limits, eos: int) -> None:
    """No EOS before the minimum, nothing else at the maximum."""
    at_max_B = number >= limits.max_B
    too_early_B11 = ((number < limits.min_B) & ~at_max_B)[:, None, None]
    ends_BW1 = log_probs_BWV[..., eos, None].masked_fill(too_early_B11, -torch.inf)
    if at_max_B.any():
        log_probs_BWV.masked_fill_(at_max_B[:, None, None], -torch.inf)
    log_probs_BWV[..., eos, None] = ends_BW1


def _penalise_repetition(logits_BWV: Tensor, history_BWT: Tensor, penalty: float) -> Tensor:
    seen_BWT = logits_BWV.gather(-1, history_BWT)
    return logits_BWV.scatter(-1, history_BWT, torch.where(seen_BWT > 0, seen_BWT / penalty, seen_BWT * penalty))


def _ban_repeated_ngrams(log_probs_BWV: Tensor, history_BWT: Tensor, n: int) -> None:
    """Ban each token that would complete an n-gram which the prefix holds already."""
    grams_BWGn = history_BWT.unfold(-1, n, 1)
    newest = history_BWT[..., history_BWT.shape[-1] - n + 1 :]
    completes_BWG = (grams_BWGn[..., :-1] == newest[..., None, :]).all(-1)
    last_BWG = grams_BWGn[..., -1]
    banned = torch.where(completes_BWG, -torch.inf, 0.0).to(log_probs_BWV.dtype)
    log_probs_BWV.scatter_add_(-1, last_BWG, banned)
