"""Validation: the loss a token, and BLEU and chrF of real translations against raw references."""

import math

import torch

from nmt.bundle import Bundle
from nmt.config import Config
from nmt.data.batching import once_each
from nmt.data.prepare import Prepared
from nmt.decoding.translator import Translator
from nmt.errors import ConfigError
from nmt.evaluation.faults import length_ratio, repeated_share
from nmt.evaluation.metrics import score
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.loss import AUTOCAST, batch_loss


class _Stopped(Exception):
    """A signal came."""


def validate(
    bundle: Bundle, prepared: Prepared, config: Config, ranks: Ranks, stop: StopRequest
) -> dict[str, float] | None:
    """Scores of the model as it stands, which is left in training mode. The ranks share the work.

    Returns: `loss` (nats a token, without smoothing, over pairs that pass the length rules), `bleu` and `chrf` (over
    the first `max_sentences` pairs, no length rule), of these translations `length_ratio` and `repeated` (see
    `nmt.evaluation.faults`); None if a signal came to any rank.
    """
    limit = config.validation.max_sentences or len(prepared.valid_src)
    loss, num_tokens, translations = 0.0, 0.0, list[str]()
    bundle.model.eval()
    try:
        loss, num_tokens = _loss(bundle, prepared, config, ranks, stop)
        translations = _translations(bundle, prepared.valid_src[:limit][ranks.rank :: ranks.world], config, stop)
    except _Stopped:
        pass
    finally:
        bundle.model.train()
    (signal_number,) = ranks.largest([float(stop.signal_number or 0)])
    if signal_number:
        return None
    loss, num_tokens = ranks.total([loss, num_tokens])
    hypotheses = [""] * len(prepared.valid_src[:limit])
    for rank, of_rank in enumerate(ranks.collect(translations)):
        hypotheses[rank :: ranks.world] = of_rank
    references = prepared.valid_tgt[:limit]
    bleu, chrf = _scores(hypotheses, [references], config)
    return {
        "loss": loss / num_tokens,
        "bleu": bleu,
        "chrf": chrf,
        "length_ratio": length_ratio(hypotheses, references),
        "repeated": repeated_share(bundle.tokenizer.encode_tgt(hypotheses)),
    }


def oriented(scores: dict[str, float], metric: str) -> float:
    """The deciding score, so that more is better; NaN counts as worst."""
    value = -scores[metric] if metric == "loss" else scores[metric]
    return value if math.isfinite(value) else -math.inf


@torch.inference_mode()
def _loss(bundle: Bundle, prepared: Prepared, config: Config, ranks: Ranks, stop: StopRequest) -> tuple[float, float]:
    """This rank's sum, and its number of tokens."""
    special, training = bundle.tokenizer.special, config.training
    total, num_tokens = 0.0, 0.0
    for batch in once_each(prepared.valid, special, training.batch_tokens, ranks.rank, ranks.world):
        _heed(stop)
        total += float(batch_loss(bundle.model, batch, special.pad, 0.0, training.precision))
        num_tokens += batch.num_tokens
    return total, num_tokens


def _translations(bundle: Bundle, lines: list[str], config: Config, stop: StopRequest) -> list[str]:
    dtype = AUTOCAST[config.training.precision]
    device = next(bundle.model.parameters()).device
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        searched = {"sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        # Without the default tag, since validation text has its own.
        decoding = {"beam_size": config.validation.beam_size, "n_best": 1, "tag": "", **searched}
        translator = Translator(bundle, decoding=decoding, num_workers=1)
        return translator.translate(lines, before_batch=lambda: _heed(stop))


def _heed(stop: StopRequest) -> None:
    if stop.signal_number is not None:
        raise _Stopped


def check_metrics(config: Config) -> None:
    """Compute the metrics once on a made-up line, so that a missing tokenizer shows now. Raises: ConfigError."""
    try:
        _scores(["a"], [["a"]], config)
    except ConfigError as error:
        raise ConfigError(f'{error} In a config: validation.tokenize = "char".') from error


def _scores(hypotheses: list[str], references: list[list[str]], config: Config) -> tuple[float, float]:
    language, tokenize = config.data.tgt_lang, config.validation.tokenize
    bleu, chrf = score(hypotheses, references, metrics=("bleu", "chrf"), tgt_lang=language, tokenize=tokenize)
    return bleu.value, chrf.value
