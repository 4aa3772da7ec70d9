"""The recurrent encoder-decoder with attention (Bahdanau et al. 2015; Luong et al. 2015).

A bidirectional encoder, a decoder that is fed at each step what it last found (input feeding), and between them one of
four scores of a state s against an encoder output h: Bahdanau's v tanh(W s + U h), of the state before the step, and
Luong's s h (dot), s W h (general) and v tanh(W s + U h) (concat), of the state after it.

Every product is an `nn.Linear`, so that all are prepared for translating alike (see `inference`).

Shapes: B batch, S source, T target, D d_model, E a cell's size, W prefixes of a sentence (the beam; 1 while training).
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.attention import AttentionModule, as_bias
from nmt.model.dropout import Dropout, drop
from nmt.model.seq2seq import Seq2Seq

CellState = tuple[Tensor, ...]  # what a cell hands on: its output first; an LSTM has a second tensor


class Cell(nn.Module):
    """One step of an LSTM (Hochreiter and Schmidhuber 1997, with forget gates) or a GRU (Cho et al. 2014).

    The equations are those of `nn.LSTM` and `nn.GRU`.
    """

    def __init__(self, config: ModelConfig, input_size: int, size: int) -> None:
        super().__init__()
        self.is_lstm, self.size = config.cell == "lstm", size
        self.gates = 4 if self.is_lstm else 3
        self.input = nn.Linear(input_size, self.gates * size)
        self.hidden = nn.Linear(size, self.gates * size)

    def start(self, like: Tensor, *shape: int) -> CellState:
        """Zeros of shape (*shape, E)."""
        return (like.new_zeros(*shape, self.size),) * (2 if self.is_lstm else 1)

    def forward(self, from_input: Tensor, state: CellState) -> CellState:
        """The next state, given `self.input` of the step's input. Shapes: any, in the last dimension E."""
        from_hidden = self.hidden(state[0])
        if self.is_lstm:
            take, keep, new, give = (from_input + from_hidden).chunk(4, dim=-1)
            inner = _gate(keep) * state[1] + _gate(take) * new.tanh()
            return _gate(give) * inner.tanh(), inner
        reset, update, new = from_input.chunk(3, dim=-1)
        reset_hidden, update_hidden, new_hidden = from_hidden.chunk(3, dim=-1)
        fresh = (new + _gate(reset + reset_hidden) * new_hidden).tanh()
        stays = _gate(update + update_hidden)
        return (fresh + stays * (state[0] - fresh),)


def _gate(x: Tensor) -> Tensor:
    """The sigmoid. torch's own, and its `lerp`, have other bits in the last numbers of a tensor, by its size."""
    return 0.5 + 0.5 * (0.5 * x).tanh()


class EncoderLayer(nn.Module):
    """Two cells, one from the left and one from the right, whose outputs stand side by side."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.from_left = Cell(config, config.d_model, config.d_model // 2)
        self.from_right = Cell(config, config.d_model, config.d_model // 2)

    def forward(self, x_BSD: Tensor, keep_BS: Tensor | None) -> Tensor:
        """Shape: (B, S, D) to (B, S, D)."""
        order = range(x_BSD.shape[1])
        left_BSE = self._run(self.from_left, x_BSD, keep_BS, order)
        return torch.cat([left_BSE, self._run(self.from_right, x_BSD, keep_BS, order[::-1])], dim=-1)

    @staticmethod
    def _run(cell: Cell, x_BSD: Tensor, keep_BS: Tensor | None, order: range) -> Tensor:
        """A cell's outputs, taken in that order; padding changes no state. Shape: (B, S, E)."""
        from_input_BSE, state = cell.input(x_BSD), cell.start(x_BSD, len(x_BSD))
        outputs: dict[int, Tensor] = {}
        for place in order:
            after = cell(from_input_BSE[:, place], state)
            if keep_BS is not None:
                keep_B1 = keep_BS[:, place, None]
                after = tuple(torch.where(keep_B1, new, old) for new, old in zip(after, state, strict=True))
            state = after
            outputs[place] = state[0]
        return torch.stack([outputs[place] for place in range(x_BSD.shape[1])], dim=1)


class RecurrentAttention(AttentionModule):
    """How well each encoder output fits a state of the decoder, and their mean by that: one head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model, self.kind = config.d_model, config.attention
        self.dropout = config.attention_dropout
        self.additive = self.kind in ("bahdanau", "luong_concat")
        self.query = nn.Identity() if self.kind == "luong_dot" else nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model) if self.additive else nn.Identity()
        self.score_D = nn.Parameter(torch.empty(d_model)) if self.additive else None

    def forward(self, state_BWD: Tensor, keys_BSD: Tensor, memory_BSD: Tensor, bias_B1S: Tensor | None) -> Tensor:
        """The context of each state. Shape: (B, W, D) to (B, W, D).

        Args:
            keys_BSD: `self.key` of the memory.
            bias_B1S: which positions are real, see `as_bias`; None if all are.
        """
        query_BWD = self.query(state_BWD)
        if self.score_D is not None:
            scores_BWS = (query_BWD[:, :, None] + keys_BSD[:, None]).tanh() @ self.score_D
        else:
            scores_BWS = query_BWD @ keys_BSD.transpose(1, 2)
        weights_BWS = (scores_BWS if bias_B1S is None else scores_BWS + bias_B1S).softmax(-1)
        if self.recorded is not None:
            self.recorded.append(weights_BWS[:, None])
        return drop(weights_BWS, self.dropout if self.training else 0.0) @ memory_BSD


@dataclass
class RecurrentState:
    """All that decoding one more position needs.

    Attributes:
        memory_BSD, keys_BSD, bias_B1S: see `RecurrentAttention`; the prefixes of a sentence share them.
        layers: of each decoder layer, (B, W, D).
        fed_BWD: what the last step found.
    """

    memory_BSD: Tensor
    keys_BSD: Tensor
    bias_B1S: Tensor | None
    layers: list[CellState]
    fed_BWD: Tensor

    def reorder(self, parents_BW: Tensor) -> None:
        """See `seq2seq.StepState`."""
        sentences_B1 = torch.arange(len(parents_BW), device=parents_BW.device)[:, None]
        self.layers = [tuple(each[sentences_B1, parents_BW] for each in state) for state in self.layers]
        self.fed_BWD = self.fed_BWD[sentences_B1, parents_BW]

    def keep_sentences(self, sentences: Tensor) -> None:
        """See `seq2seq.StepState`."""
        self.memory_BSD, self.keys_BSD = self.memory_BSD[sentences], self.keys_BSD[sentences]
        self.bias_B1S = None if self.bias_B1S is None else self.bias_B1S[sentences]
        self.layers = [tuple(each[sentences] for each in state) for state in self.layers]
        self.fed_BWD = self.fed_BWD[sentences]


class RecurrentModel(Seq2Seq):
    """Layers of LSTMs or GRUs, and one attention."""

    def __init__(self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__(config, src_vocab_size, tgt_vocab_size)
        d_model, layers = config.d_model, config.num_decoder_layers
        self.attends_first = config.attention == "bahdanau"
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.first_states = nn.Linear(d_model, layers * d_model)
        self.decoder = nn.ModuleList(Cell(config, d_model * (1 if layer else 2), d_model) for layer in range(layers))
        self.cross_attention = RecurrentAttention(config)
        self.combine = nn.Linear(2 * d_model, d_model)
        self._end_with(config, tgt_vocab_size)

    def encode(self, src_BS: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """See `Seq2Seq.encode`."""
        x_BSD = self.embedding_dropout(self._scaled(self.src_embedding, src_BS))
        for number, layer in enumerate(self.encoder):
            x_BSD = layer(self.dropout(x_BSD) if number else x_BSD, src_keep_BS)
        memory_BSD: Tensor = x_BSD
        return memory_BSD

    def decode(self, tgt_in_BT: Tensor, memory_BSD: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """See `Seq2Seq.decode`: step by step, since each is fed what the one before found."""
        state = self._first_state(memory_BSD, src_keep_BS)
        x_BTD = self._embed_tgt(tgt_in_BT)
        return torch.cat([self._step(x_B1D, state) for x_B1D in torch.split(x_BTD, 1, dim=1)], dim=1)

    def prefill(self, src_BS: Tensor, src_keep_BS: Tensor | None = None, width: int = 1) -> RecurrentState:
        """See `Seq2Seq.prefill`."""
        return self._first_state(self.encode(src_BS, src_keep_BS), src_keep_BS)

    def decode_step(self, tokens_BW: Tensor, state: RecurrentState) -> Tensor:
        """See `Seq2Seq.decode_step`."""
        logits_BWV: Tensor = self.output(self._step(self._embed_tgt(tokens_BW), state))
        return logits_BWV

    def top_attention(self) -> nn.Module:
        """See `Seq2Seq.top_attention`."""
        return self.cross_attention

    def _first_state(self, memory_BSD: Tensor, keep_BS: Tensor | None) -> RecurrentState:
        """Before the first target token: each layer starts from the mean of the encoder's output (Sennrich 2017)."""
        if keep_BS is None:
            bias, mean_B1D = None, memory_BSD.mean(1, keepdim=True)
        else:
            bias = as_bias(keep_BS[:, None], memory_BSD.dtype)
            shares_B1S = keep_BS[:, None].to(memory_BSD.dtype) / keep_BS.sum(1).clamp(min=1)[:, None, None]
            mean_B1D = shares_B1S @ memory_BSD
        outputs = self.first_states(mean_B1D).tanh().chunk(len(self.decoder), dim=-1)
        layers: list[CellState] = [
            (output, torch.zeros_like(output)) if cell.is_lstm else (output,)
            for cell, output in zip(self._cells(), outputs, strict=True)
        ]
        keys_BSD = self.cross_attention.key(memory_BSD)
        return RecurrentState(memory_BSD, keys_BSD, bias, layers, torch.zeros_like(mean_B1D))

    def _cells(self) -> list[Cell]:
        return cast(list[Cell], list(self.decoder))

    def _step(self, x_BWD: Tensor, state: RecurrentState) -> Tensor:
        """One target position of every prefix, which moves `state` on. Shape: (B, W, D) to (B, W, D)."""
        if self.attends_first:
            context_BWD = state.fed_BWD = self._context(state.layers[-1][0], state)
        below_BWD = torch.cat([x_BWD, state.fed_BWD], dim=-1)
        for number, cell in enumerate(self._cells()):
            state.layers[number] = cell(cell.input(below_BWD), state.layers[number])
            below_BWD = self.dropout(state.layers[number][0])
        if not self.attends_first:
            context_BWD = self._context(below_BWD, state)
        found_BWD: Tensor = self.combine(torch.cat([below_BWD, context_BWD], dim=-1)).tanh()  # Luong's equation 5
        if not self.attends_first:
            state.fed_BWD = found_BWD
        dropped_BWD: Tensor = self.dropout(found_BWD)
        return dropped_BWD

    def _context(self, asking_BWD: Tensor, state: RecurrentState) -> Tensor:
        context_BWD: Tensor = self.cross_attention(asking_BWD, state.keys_BSD, state.memory_BSD, state.bias_B1S)
        return context_BWD

    def _embed_tgt(self, tgt_BT: Tensor) -> Tensor:
        embedded_BTD: Tensor = self.embedding_dropout(self._scaled(self.tgt_embedding, tgt_BT))
        return embedded_BTD

    def _initialise(self) -> None:
        """Glorot-uniform products, orthogonal ones of states, zero biases; LSTMs begin by keeping what they have."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.output:
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, Cell):
                for block in torch.chunk(module.hidden.weight.data, module.gates):
                    nn.init.orthogonal_(block)
                if module.is_lstm:
                    module.hidden.bias.data[module.size : 2 * module.size] = 1.0
        if self.cross_attention.score_D is not None:
            nn.init.normal_(self.cross_attention.score_D, std=self.cross_attention.score_D.numel() ** -0.5)
