"""The memory that a model needs, in bytes: measured on short sentences, and extended to the length that is asked for.

Decoding: what `prefill` and `decode_step` keep grows by the same number for each token of source and of target.
An RNN keeps a state for each prefix instead, whatever its length.
Training: what the forward pass saves for the backward pass is a n + b n^2 for a pair of n and n tokens; n^2 are
attention's weights, which flash kernels do not save; an RNN has none, nor has attention whose positions are added to
its scores.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.diagnosis.findings import Finding, ok, skipped
from nmt.diagnosis.subject import Subject
from nmt.errors import ConfigError
from nmt.model.seq2seq import Seq2Seq

_SHORT, _LONG = 16, 32  # tokens; on a CPU both are short enough for the kernel that saves its weights
_FP32 = 4
# Bytes a parameter while checks run: in fp32 the model, a copy, its gradients and Adam's two moments; one in float64.
_CHECKED = 28
_LENGTH = 128  # of which memory is told, unless another is asked for
_CAPACITY = 32  # tokens that a cache has room for at first; it doubles when it is full


@dataclass(frozen=True)
class Memory:
    """Bytes, in fp32.

    Attributes:
        source_token, target_token: that decoding keeps for each.
        prefix: that decoding keeps for each hypothesis, whatever its length: an RNN's state.
        saved_token, saved_square: that a training pass saves for each token of a pair, and for each token squared.
        flash_square: that of the latter which is left with flash attention; None if it cannot run.
    """

    weights: int
    source_token: float
    target_token: float
    prefix: float
    saved_token: float
    saved_square: float
    flash_square: float | None

    def decoding(self, length: int, batch: int, width: int) -> float:
        """Keys, values and states while `batch` sentences are decoded with `width` prefixes each that share nothing."""
        return batch * (length * (self.source_token + width * self.target_token) + width * self.prefix)

    def training(self, length: int, batch: int) -> float:
        """Weights, gradients, Adam's two moments, and what is saved for the backward pass of `batch` pairs."""
        return self._training(length, batch, self.saved_square)

    def training_with_flash(self, length: int, batch: int) -> float | None:
        """The same with flash attention; None if it cannot run."""
        return None if self.flash_square is None else self._training(length, batch, self.flash_square)

    def _training(self, length: int, batch: int, square: float) -> float:
        return 4 * self.weights + batch * (self.saved_token * length + square * length**2)


def measure(subject: Subject) -> Memory:
    """Measure a copy of the model, which must have `_CAPACITY` positions and one more."""
    model = subject.single_copy()
    few, many = (state_bytes(model, length, 1) for length in (_SHORT, _LONG))
    full = state_bytes(model, _SHORT, _CAPACITY + 1)
    source, target = (many - few) / (_LONG - _SHORT), (full - few) / _CAPACITY
    short, long = (saved_bytes(model, length, length) for length in (_SHORT, _LONG))
    square = max(0.0, (long / _LONG - short / _SHORT) / (_LONG - _SHORT))
    mixed = sum(saved_bytes(model, *lengths) for lengths in ((_SHORT, _LONG), (_LONG, _SHORT)))
    cross = (short + long - mixed) / (_LONG - _SHORT) ** 2  # what grows with source times target
    return Memory(
        weights=sum(parameter.numel() for parameter in model.parameters()) * _FP32,
        source_token=source,
        target_token=target,
        prefix=0.0 if target else few - _SHORT * source,
        saved_token=short / _SHORT - square * _SHORT,
        saved_square=square,
        flash_square=_flash_square(subject.config, square, cross),
    )


def _flash_square(config: ModelConfig, square: float, cross: float) -> float | None:
    """What flash attention leaves of `square`, of which `cross` is of attention over the source."""
    if config.type == "rnn":
        return None
    return square - cross if config.positions in ("relative", "shaw") else 0.0


def bytes_to_check(parameters: int) -> int:
    """What the checks of a model need for its weights alone, at their worst.

    Raises: ConfigError, if this machine has less.
    """
    needed, there = _CHECKED * parameters, _machine_bytes()
    if there is not None and needed > there:
        raise ConfigError(
            f"Checking {parameters:,} parameters needs {needed:,} bytes of memory at least, and this machine has "
            f"{there:,}. Check a smaller model.num_encoder_layers, num_decoder_layers or d_model: what is wrong is "
            f"wrong there too."
        )
    return needed


def _machine_bytes() -> int | None:
    """None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def usual_length(model: Seq2Seq, length: int | None) -> int:
    """The length of which memory is told: 128 unless given, or the most that the model has positions for.

    Raises: ConfigError, if the one given is longer than those.
    """
    most = model.max_positions
    if length is not None and most is not None and length > most:
        raise ConfigError(
            f"--length {length} is longer than model.max_positions = {most}, which this model has learned: give {most} "
            f"or less."
        )
    return length if length is not None else min(_LENGTH, most or _LENGTH)


def memory(subject: Subject, length: int, batch: int, width: int) -> Finding:
    """What decoding and training need for a batch of sentences of this length."""
    positions = subject.model.max_positions
    if positions is not None and positions <= _CAPACITY:
        return skipped(f"a model of {positions} positions is too short to be measured")
    found = measure(subject)
    decoding, training = found.decoding(length, batch, width), found.training(length, batch)
    flash = found.training_with_flash(length, batch)
    a_prefix = f"{found.prefix:,.0f}" if found.prefix else f"{length} x {found.target_token:,.0f}"
    numbers = {} if flash is None else {"training_with_flash": flash}
    with_flash = "" if flash is None else f", with flash attention {as_bytes(flash)}"
    return ok(
        f"weights {as_bytes(found.weights)}; decoding {as_bytes(decoding)} at most ({batch} sentences of {length} "
        f"tokens, beam {width}: {batch} x ({length} x {found.source_token:,.0f} + {width} x {a_prefix})); training "
        f"{as_bytes(training)}{with_flash} ({batch} pairs: 4 x weights + {batch} x ({length} x "
        f"{found.saved_token:,.0f} + {length}^2 x {found.saved_square:,.0f}))",
        weights=found.weights,
        source_token=found.source_token,
        target_token=found.target_token,
        prefix=found.prefix,
        decoding=decoding,
        training=training,
        **numbers,
    )


@torch.no_grad()
def state_bytes(model: Seq2Seq, src_tokens: int, steps: int) -> int:
    """What the state of decoding holds after so many steps for one sentence of so many source tokens."""
    state = model.prefill(torch.zeros(1, src_tokens, dtype=torch.int64))
    for _ in range(steps):
        model.decode_step(torch.zeros(1, 1, dtype=torch.int64), state)
    return _bytes_in(list(_tensors_in(state)))


def saved_bytes(model: Seq2Seq, src_tokens: int, tgt_tokens: int) -> int:
    """What a forward pass of one pair, with dropout, saves for the backward pass; weights are not counted."""
    src, tgt = (torch.zeros(1, tokens, dtype=torch.int64) for tokens in (src_tokens, tgt_tokens))
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    model.train()
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(src, tgt)
    model.eval()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return _bytes_in([tensor for tensor in saved if tensor.untyped_storage().data_ptr() not in own])


def _tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors of a state, however deep; a model in it is not part of it."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_in(each)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        yield from _tensors_in(list(vars(value).values()))


def _bytes_in(tensors: list[Tensor]) -> int:
    """Of all, each piece of memory counted once."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def as_bytes(number: float) -> str:
    """For the reader."""
    for unit in ("bytes", "kB", "MB"):
        if number < 10_000:
            return f"{number:,.0f} {unit}"
        number /= 1000
    return f"{number:,.1f} GB"
