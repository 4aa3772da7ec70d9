"""All checks, one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from nmt.bundle import Bundle
from nmt.diagnosis import learning, outputs, probes
from nmt.diagnosis.findings import Finding, Findings, Level, skipped
from nmt.diagnosis.subject import Subject

Say = Callable[[str], None]

MODEL_CHECKS: tuple[Callable[[Subject], Finding], ...] = (
    probes.shape,
    probes.score_scale,
    probes.attention_weights,
    probes.head_use,
    probes.order_seen,
    probes.future_unseen,
    probes.padding_unseen,
    probes.source_read,
    probes.cached_decoding,
    learning.gradients,
    learning.first_loss,
    learning.overfit,
)

_TINY = 8  # of d_model: in less, norms and saturated units leave too few values to tell sentences apart
_NEED_WIDTH = (probes.order_seen, probes.source_read, learning.overfit)


def name_of(check: Callable[..., object]) -> str:
    """As the user reads it."""
    return check.__name__.replace("_", " ")


def check_model(
    subject: Subject,
    checks: Sequence[Callable[[Subject], Finding]] = MODEL_CHECKS,
    say: Say = lambda text: None,
) -> Findings:
    """Look at the weights, and unless they are no numbers run the checks. The model is left as it was.

    Args:
        say: told the name of each check before it runs.
    """
    say(name_of(learning.weights))
    findings = {name_of(learning.weights): learning.weights(subject)}
    if "not_finite" in findings["weights"].numbers:
        return findings
    for check in checks:
        say(name_of(check))
        findings[name_of(check)] = _by_width(check, check(subject), subject.config.d_model)
    return findings


def _by_width(check: Callable[[Subject], Finding], found: Finding, d_model: int) -> Finding:
    """What a tiny model without any fault may fail in is suspicious at most."""
    if check not in _NEED_WIDTH or found.level != Level.broken or d_model >= _TINY:
        return found
    why = f"model.d_model = {d_model} is too small to learn by heart; if a larger one has this too: {found.advice}"
    return replace(found, level=Level.suspicious, advice=why)


def check_text(
    bundle: Bundle, sources: Sequence[str], references: Sequence[str], say: Say = lambda text: None
) -> Findings:
    """Look at the tokenizer and at the translations of some lines; `references` may be empty."""
    if not sources:
        return {"translations": skipped("there is no text: give --src FILE, and --tgt FILE if you have it")}
    findings = {name_of(outputs.tokenizer): outputs.tokenizer(bundle.tokenizer, sources, references)}
    say(f"{len(sources)} translations")
    text = outputs.translate(bundle, sources, references)
    return findings | {name_of(check): check(text) for check in outputs.TEXT_CHECKS}
