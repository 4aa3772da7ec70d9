"""The memory that a model needs, in bytes: measured on short sentences, and extended to the length that is asked for.

Decoding: what `prefill` and `decode_step` keep grows by the same number for each token of source and of target.
Training: what the forward pass saves for the backward pass is a n + b n^2 for a pair of n and n tokens; n^2 are
attention's weights, which flash kernels do not save.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.diagnosis.findings import Finding, ok
from nmt.diagnosis.subject import Subject
from nmt.model.seq2seq import Seq2Seq

_SHORT, _LONG = 16, 32  # tokens; on a CPU both are short enough for the kernel that saves its weights
_FP32 = 4
_CAPACITY = 32  # tokens that a cache has room for at first; it doubles when it is full


@dataclass(frozen=True)
class Memory:
    """Bytes, in fp32.

    Attributes:
        source_token, target_token: that decoding keeps for each.
        saved_token, saved_square: that a training pass saves for each token of a pair, and for each token squared.
    """

    weights: int
    source_token: float
    target_token: float
    saved_token: float
    saved_square: float

    def decoding(self, length: int, batch: int, width: int) -> float:
        """Keys, values and states while `batch` sentences are decoded with `width` prefixes each that share nothing."""
        return batch * length * (self.source_token + width * self.target_token)

    def training(self, length: int, batch: int, *, flash: bool) -> float:
        """Weights, gradients, Adam's two moments, and what is saved for the backward pass of `batch` pairs."""
        squares = 0.0 if flash else self.saved_square * length**2
        return 4 * self.weights + batch * (self.saved_token * length + squares)


def measure(subject: Subject) -> Memory:
    """Measure a copy of the model."""
    model = subject.single_copy()
    few, many = (state_bytes(model, length, 1) for length in (_SHORT, _LONG))
    full = state_bytes(model, _SHORT, _CAPACITY + 1)
    short, long = (saved_bytes(model, length) for length in (_SHORT, _LONG))
    square = max(0.0, (long / _LONG - short / _SHORT) / (_LONG - _SHORT))
    return Memory(
        weights=sum(parameter.numel() for parameter in model.parameters()) * _FP32,
        source_token=(many - few) / (_LONG - _SHORT),
        target_token=(full - few) / _CAPACITY,
        saved_token=short / _SHORT - square * _SHORT,
        saved_square=square,
    )


def memory(subject: Subject, length: int, batch: int, width: int) -> Finding:
    """What decoding and training need for a batch of sentences of this length."""
    found, config = measure(subject), subject.config
    decoding, training = found.decoding(length, batch, width), found.training(length, batch, flash=False)
    flash = found.training(length, batch, flash=True)
    terms = (
        f"weights {_bytes(found.weights)}; decoding {batch} sentences of {length} tokens, beam {width}: "
        f"{batch} x {length} x ({found.source_token:,.0f} of source + {width} x {found.target_token:,.0f} of target) = "
        f"{_bytes(decoding)} at most; training on {batch} pairs: 4 x weights (gradients, Adam's two moments) + "
        f"{batch} x ({found.saved_token:,.0f} x {length} + {found.saved_square:,.0f} x {length}^2) = "
        f"{_bytes(training)}, with flash attention {_bytes(flash)}"
    )
    heads = getattr(config, "num_kv_heads", None) or config.num_heads
    if found.target_token == 2 * config.num_decoder_layers * heads * config.head_dim * _FP32:
        terms += (
            f". A target token keeps 2 x {config.num_decoder_layers} layers x {heads} heads x {config.head_dim} x "
            f"{_FP32} bytes"
        )
    return ok(
        terms,
        weights=found.weights,
        source_token=found.source_token,
        target_token=found.target_token,
        decoding=decoding,
        training=training,
        training_with_flash=flash,
    )


@torch.no_grad()
def state_bytes(model: Seq2Seq, src_tokens: int, steps: int) -> int:
    """What the state of decoding holds after so many steps for one sentence of so many source tokens."""
    state = model.prefill(torch.zeros(1, src_tokens, dtype=torch.int64))
    for _ in range(steps):
        model.decode_step(torch.zeros(1, 1, dtype=torch.int64), state)
    return _bytes_in(list(_tensors_in(state)))


def saved_bytes(model: Seq2Seq, length: int) -> int:
    """What a forward pass of one pair, with dropout, saves for the backward pass; weights are not counted."""
    ids = torch.zeros(1, length, dtype=torch.int64)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    model.train()
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, ids)
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


def _bytes(number: float) -> str:
    """For the reader."""
    for unit in ("bytes", "kB", "MB"):
        if number < 10_000:
            return f"{number:,.0f} {unit}"
        number /= 1000
    return f"{number:,.1f} GB"
