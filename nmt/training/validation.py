"""Validation: the loss a token, and BLEU and chrF of real translations against raw references."""

import math

import torch

from nmt.bundle import Bundle
from nmt.config import Config
from nmt.data.batching import once_each
from nmt.data.prepare import Prepared
from nmt.decoding.translator import Translator
from nmt.errors import ConfigError
from nmt.evaluation.metrics import score
from nmt.training.loss import AUTOCAST, batch_loss


def validate(bundle: Bundle, prepared: Prepared, config: Config) -> dict[str, float]:
    """Scores of the model as it stands, which is left in training mode.

    Returns: `loss` (nats a token, without smoothing, over pairs that pass the length rules), `bleu` and `chrf` (over
    the first `max_sentences` pairs, no length rule).
    """
    bundle.model.eval()
    loss, bleu, chrf = _loss(bundle, prepared, config), *_translation_scores(bundle, prepared, config)
    bundle.model.train()
    return {"loss": loss, "bleu": bleu, "chrf": chrf}


def oriented(scores: dict[str, float], metric: str) -> float:
    """The deciding score, so that more is better; NaN counts as worst."""
    value = -scores[metric] if metric == "loss" else scores[metric]
    return value if math.isfinite(value) else -math.inf


@torch.inference_mode()
def _loss(bundle: Bundle, prepared: Prepared, config: Config) -> float:
    special, training = bundle.tokenizer.special, config.training
    total, num_tokens = 0.0, 0
    for batch in once_each(prepared.valid, special, training.tokens_per_batch):
        total += float(batch_loss(bundle.model, batch, special.pad, 0.0, training.precision))
        num_tokens += batch.num_tokens
    return total / num_tokens


def _translation_scores(bundle: Bundle, prepared: Prepared, config: Config) -> tuple[float, float]:
    limit = config.validation.max_sentences or len(prepared.valid_src)
    dtype = AUTOCAST[config.training.precision]
    device = next(bundle.model.parameters()).device
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        translator = Translator(bundle, beam_size=config.validation.beam_size)
        hypotheses = translator.translate(prepared.valid_src[:limit])
    references = [prepared.valid_tgt[:limit]]
    return _scores(hypotheses, references, config)


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
