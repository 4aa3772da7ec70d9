"""The recurrent model against nn.LSTM and nn.GRU on packed sentences, its attention against loops; gradients too."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from nmt.model import recurrent
from nmt.model.recurrent import Cell, EncoderLayer, RecurrentAttention, RecurrentModel

VOCAB = 11
ATTENTIONS = ("bahdanau", "luong_dot", "luong_general", "luong_concat")
Make = Callable[..., RecurrentModel]
Source = Callable[[np.random.Generator, int], tuple[Tensor, Tensor]]


def torch_weights(cell: Cell, ending: str) -> dict[str, Tensor]:
    """A cell's weights under torch.nn's names."""
    kinds = {"ih": cell.input, "hh": cell.hidden}
    return {f"{what}_{kind}{ending}": getattr(kinds[kind], what) for kind in kinds for what in ("weight", "bias")}


def encoded(model: RecurrentModel, src_BS: Tensor, keep_BS: Tensor) -> Tensor:
    """What nn.LSTM or nn.GRU makes of packed sentences, layer by layer: zeros where padding is."""
    x_BSD = model.src_embedding(src_BS) * math.sqrt(model.output.in_features)
    for layer in model.encoder:
        kind = nn.LSTM if layer.from_left.is_lstm else nn.GRU
        module = kind(x_BSD.shape[-1], layer.from_left.size, batch_first=True, bidirectional=True).double()
        weights = torch_weights(layer.from_left, "_l0") | torch_weights(layer.from_right, "_l0_reverse")
        packed = pack_padded_sequence(x_BSD, keep_BS.sum(1), batch_first=True, enforce_sorted=False)
        outputs, _ = functional_call(module, weights, (packed,))
        x_BSD, _ = pad_packed_sequence(outputs, batch_first=True)
    return x_BSD


def context(attention: RecurrentAttention, state_D: Tensor, memory_SD: Tensor) -> Tensor:
    """The mean of the outputs of one sentence, score by score."""
    w = None if attention.kind == "luong_dot" else attention.query.weight
    scores = []
    for h_D in memory_SD:
        if attention.kind == "luong_dot":
            scores.append(state_D.dot(h_D))
        elif attention.kind == "luong_general":
            scores.append(state_D.dot(w.T @ h_D))
        else:
            both = torch.cat([w, attention.key.weight], dim=1) @ torch.cat([state_D, h_D])
            scores.append(attention.score_D.dot((both + attention.key.bias).tanh()))
    exps = [score.exp() for score in scores]
    return sum(e / sum(exps) * h_D for e, h_D in zip(exps, memory_SD, strict=True))


def decoded(model: RecurrentModel, tgt_T: Tensor, memory_SD: Tensor) -> Tensor:
    """The decoder's states for one sentence, by nn.LSTMCell or nn.GRUCell, in the papers' order."""
    first = (model.first_states.weight @ memory_SD.mean(0) + model.first_states.bias).tanh()
    states = [(each, torch.zeros_like(each)) for each in first.chunk(len(model.decoder))]
    fed, found = torch.zeros_like(memory_SD[0]), []
    for token in tgt_T:
        embedded = model.tgt_embedding.weight[token] * math.sqrt(len(fed))
        if model.cross_attention.kind == "bahdanau":
            fed = context(model.cross_attention, states[-1][0], memory_SD)
        x = torch.cat([embedded, fed])
        for number, cell in enumerate(model.decoder):
            kind = nn.LSTMCell if cell.is_lstm else nn.GRUCell
            before = states[number] if cell.is_lstm else states[number][0]
            after = functional_call(kind(len(x), cell.size).double(), torch_weights(cell, ""), (x, before))
            states[number] = after if cell.is_lstm else (after, after)
            x = states[number][0]
        mean = fed if model.cross_attention.kind == "bahdanau" else context(model.cross_attention, x, memory_SD)
        found.append((model.combine.weight @ torch.cat([x, mean]) + model.combine.bias).tanh())
        fed = mean if model.cross_attention.kind == "bahdanau" else found[-1]
    return torch.stack(found)


def gradients(model: nn.Module, output: Tensor, incoming: Tensor) -> list[Tensor]:
    optional = {"retain_graph": True, "materialize_grads": True, "allow_unused": True}
    return list(torch.autograd.grad(output, list(model.parameters()), incoming, **optional))


def recurrent_difference(make: Make, source: Source, cases: int, **config: object) -> float:
    """The largest difference of a real position's memory, of a logit, or of a parameter's gradient."""
    rng, worst = np.random.default_rng(1), 0.0
    for case in range(cases):
        model = make(rng, type="rnn", cell=("lstm", "gru")[case % 2], **config)
        (src, keep), tgt = source(rng, 2), torch.from_numpy(rng.integers(0, VOCAB, (2, int(rng.integers(2, 5)))))
        memory = encoded(model, src, keep)
        expected = torch.stack([decoded(model, tgt[b], memory[b][keep[b]]) for b in range(2)])
        pairs = [(model.encode(src, keep)[keep], memory[keep]), (model(src, tgt, keep), model.output(expected))]
        for ours, theirs in pairs:
            incoming = torch.from_numpy(rng.normal(size=ours.shape))
            both = zip(gradients(model, ours, incoming), gradients(model, theirs, incoming), strict=True)
            worst = max(worst, *(float((a - b).abs().max()) for a, b in [(ours.detach(), theirs.detach()), *both]))
    return worst


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_equals_torch_cells_and_scores_in_loops(
    kind: str, figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    worst = recurrent_difference(random_model, random_source, 4, attention=kind)
    figure(f"{kind}_max_difference", f"{worst:.0e} over 4 shapes", "fp64 <= 1e-10, with gradients", worst <= 1e-10)


def let_padding_count(patch: pytest.MonkeyPatch) -> None:
    run = EncoderLayer._run
    patch.setattr(EncoderLayer, "_run", staticmethod(lambda cell, x, keep, order: run(cell, x, None, order)))


def look_at_padding(patch: pytest.MonkeyPatch) -> None:
    forward = RecurrentAttention.forward
    patch.setattr(RecurrentAttention, "forward", lambda self, *tensors: forward(self, *tensors[:3], None))


def scale_scores(patch: pytest.MonkeyPatch) -> None:
    forward = RecurrentAttention.forward
    patch.setattr(RecurrentAttention, "forward", lambda self, state, *rest: forward(self, state / 2, *rest))


def feed_nothing(patch: pytest.MonkeyPatch) -> None:
    step = RecurrentModel._step

    def broken(self: RecurrentModel, x: Tensor, state: recurrent.RecurrentState) -> Tensor:
        state.fed_BWD = torch.zeros_like(state.fed_BWD)
        return step(self, x, state)

    patch.setattr(RecurrentModel, "_step", broken)


def lose_a_tenth(patch: pytest.MonkeyPatch) -> None:
    forward = Cell.forward
    patch.setattr(Cell, "forward", lambda self, x, state: tuple(0.9 * each for each in forward(self, x, state)))


@pytest.mark.parametrize("fault", [let_padding_count, look_at_padding, scale_scores, feed_nothing, lose_a_tenth])
def test_the_recurrent_comparison_sees(
    fault: Callable[[pytest.MonkeyPatch], None],
    figure: Callable[..., None],
    random_model: Make,
    random_source: Source,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    difference = recurrent_difference(random_model, random_source, 2, attention="luong_general")
    figure(f"recurrent_{fault.__name__}_difference", f"{difference:.1e}", "> 1e-3", difference > 1e-3)
