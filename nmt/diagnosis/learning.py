"""Checks of weights and of what training makes of them.

Shapes: B batch, T target, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.diagnosis.findings import Finding, broken, counted, ok, skipped, some, suspicious
from nmt.diagnosis.subject import Sentences, Subject

_ODD_NORM = 100.0  # times the root mean square of 1 / sqrt(inputs), or as many times less
_LOSS_ABOVE, _LOGITS_SD = 2.0, 10.0  # of a fresh model: nats over ln(V), standard deviation of its logits
_STEPS, _WARMUP = 150, 20
_LEARNT, _NOT_LEARNT = 0.2, 0.5  # of the loss at the beginning


def weights(subject: Subject) -> Finding:
    """Every weight is a number; no matrix is constant, or of another magnitude than its width asks for."""
    bad, flat, odd = [], [], []
    for name, parameter in subject.model.named_parameters():
        values = parameter.detach().float()
        if not values.isfinite().all():
            bad.append(name)
        elif values.ndim >= 2:
            size = float(values.square().mean().sqrt()) * math.sqrt(values.shape[-1])
            one_input = values.shape[-1] == 1 and bool(values.any())  # of which few numbers may happen to be the same
            if values.numel() > 1 and not one_input and float(values.max() - values.min()) == 0.0:
                flat.append(name)
            elif not 1 / _ODD_NORM <= size <= _ODD_NORM:
                odd.append(f"{name} (root mean square {size / math.sqrt(values.shape[-1]):.2g})")
    if bad:
        return broken(
            f"{some(bad)} holds NaN or infinity",
            "training diverged: go back to an earlier checkpoint, and lower training.learning_rate or lengthen "
            "warmup_updates. The other checks would mean nothing and were left out.",
            not_finite=len(bad),
        )
    if flat:
        return broken(
            f"all numbers of {some(flat)} are the same",
            "it was never initialised, or set to zero: it cannot be learnt.",
        )
    if odd:
        return suspicious(
            f"{some(odd)} is {_ODD_NORM:g} times too large or too small for its width",
            "its initialisation or its learning rate is wrong, or it is not used.",
        )
    return ok(f"{sum(1 for _ in subject.model.parameters())} tensors hold finite numbers of the usual magnitude")


def gradients(subject: Subject) -> Finding:
    """Every parameter is trained: none is frozen, each gets a gradient."""
    frozen = [name for name, parameter in subject.model.named_parameters() if not parameter.requires_grad]
    if frozen:
        return broken(
            f"frozen: {counted(len(frozen), 'parameter')}, {some(frozen)}",
            "requires_grad is False: they keep their values through training. Is that meant?",
        )
    named = dict(subject.exact.named_parameters())
    loss = loss_of(subject.exact, subject.sentences, subject.special.pad)
    found = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    grads = dict(zip(named, found, strict=True))
    without = [name for name, grad in grads.items() if grad is None or not grad.any()]
    if without:
        return broken(
            f"no gradient for {counted(len(without), 'parameter')}: {some(without)}",
            "they are not used, or the graph is cut before them (detach, no_grad, .data).",
        )
    bad = [name for name, grad in grads.items() if grad is not None and not grad.isfinite().all()]
    if bad:
        return broken(f"the gradient of {some(bad)} is not finite", "look for a division by zero, or log of 0, there.")
    return ok(f"all {len(named)} parameters get one")


@torch.no_grad()
def first_loss(subject: Subject) -> Finding:
    """A fresh model guesses: its loss is about ln(V), its logits are small."""
    data, model = subject.sentences, subject.exact
    spread = float(model(data.src_BS, data.tgt_in_BT, data.keep_BS).std())
    if not subject.fresh:
        return skipped(f"the model is trained (standard deviation of its logits {spread:.3g})")
    loss, guessing = float(loss_of(model, data, subject.special.pad)), math.log(subject.tgt_pieces)
    found = f"loss {loss:.3g} nats a token, ln(V) = {guessing:.3g}; standard deviation of logits {spread:.3g}"
    numbers = {"loss": loss, "ln(V)": guessing, "logits": spread}
    if not (abs(loss - guessing) <= _LOSS_ABOVE and spread <= _LOGITS_SD):
        return suspicious(
            found,
            "a fresh model should guess: embeddings or the output layer are initialised too wide, or tied embeddings "
            "are scaled twice.",
            **numbers,
        )
    return ok(found, **numbers)


def overfit(subject: Subject) -> Finding:
    """Eight pairs are learnt by heart in 150 steps of Adam, without dropout."""
    model, data, pad = subject.single_copy(), subject.sentences, subject.special.pad
    rate = min(1e-2, 0.25 / subject.config.d_model)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad] or model.parameters(), lr=rate)
    first = last = math.inf
    for step in range(1, _STEPS + 1):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, step / _WARMUP)
        loss = loss_of(model, data, pad)
        last = float(loss.detach())
        first = last if step == 1 else first
        if not math.isfinite(last) or last <= _LEARNT * first or not loss.requires_grad:
            break
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    found = (
        f"the loss of eight pairs, made up of random tokens (so that it may begin above ln(V) = "
        f"{math.log(subject.tgt_pieces):.3g}), went from {first:.3g} to {last:.3g} in {counted(step, 'step')}"
    )
    numbers = {"first": first, "last": last, "steps": float(step)}
    if not last <= _NOT_LEARNT * first:
        return broken(
            found,
            "a model that cannot learn eight pairs by heart learns nothing: look at the other findings first, then at "
            "how targets are shifted and which parameters the optimiser has.",
            **numbers,
        )
    if last > _LEARNT * first:
        return suspicious(
            found, "it learns slowly: post-norm and deep models need a smaller rate or warm-up.", **numbers
        )
    return ok(found, **numbers)


def loss_of(model: nn.Module, data: Sentences, pad: int) -> Tensor:
    """The mean cross-entropy a token, in nats."""
    logits_BTV = model(data.src_BS, data.tgt_in_BT, data.keep_BS)
    return F.cross_entropy(logits_BTV.flatten(0, 1), data.tgt_out_BT.flatten(), ignore_index=pad)
