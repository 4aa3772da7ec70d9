"""What every encoder-decoder model is made of, whatever is between: embeddings, an output layer, and how it is called.

Training calls `forward`, or `states`; translating calls `prefill` once and `decode_step` for every position, on the
same modules. Masks: `src_keep` is bool (B, S), True on real tokens, None if nothing is padded.

Shapes: B batch, S source, T target, D d_model, V vocabulary, W prefixes of a sentence (the beam).
"""

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.dropout import Dropout


class StepState(Protocol):
    """What decoding keeps of a batch from position to position."""

    def reorder(self, parents_BW: Tensor) -> None:
        """Prefix w of sentence b goes on from what was prefix parents_BW[b, w] of it; there may be more than before."""

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with `sentences` alone, in that order."""


class Seq2Seq(nn.Module, ABC):
    """Source ids to target logits.

    Attributes:
        max_positions: the most positions a side can have, the start or end of sentence included; None: any number.
    """

    max_positions: int | None = None

    def __init__(self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__()
        tied = config.tied_embeddings
        assert tied != "all" or src_vocab_size == tgt_vocab_size, "one vocabulary to tie"
        self.src_embedding = _embedding(src_vocab_size, config.d_model)
        self.tgt_embedding = self.src_embedding if tied == "all" else _embedding(tgt_vocab_size, config.d_model)
        self.embedding_dropout = Dropout(config.embedding_dropout)
        self.gradient_checkpointing = False  # of a layer keep its inputs alone; the backward pass computes it again
        self._output_is_tied = tied != "none"

    def forward(self, src_BS: Tensor, tgt_in_BT: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """Logits of the next token at every target position. Shape: (B, T, V)."""
        logits_BTV: Tensor = self.output(self.states(src_BS, tgt_in_BT, src_keep_BS))
        return logits_BTV

    def states(self, src_BS: Tensor, tgt_in_BT: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """The decoder's last states, which the output layer turns into logits. Shape: (B, T, D)."""
        return self.decode(tgt_in_BT, self.encode(src_BS, src_keep_BS), src_keep_BS)

    @abstractmethod
    def encode(self, src_BS: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """The encoder's output, `memory`. Shape: (B, S, D)."""

    @abstractmethod
    def decode(self, tgt_in_BT: Tensor, memory_BSD: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """The decoder's last states at every target position, given the encoder's output. Shape: (B, T, D)."""

    @abstractmethod
    def prefill(self, src_BS: Tensor, src_keep_BS: Tensor | None = None, width: int = 1) -> Any:
        """Encode once, and compute what no target changes: the state before the first target token, a StepState.

        Args:
            width: the most prefixes a sentence will have.
        """

    @abstractmethod
    def decode_step(self, tokens_BW: Tensor, state: Any) -> Tensor:
        """Feed the newest token of every prefix, move `state` on by one position. Shape: logits (B, W, V)."""

    @abstractmethod
    def top_attention(self) -> nn.Module:
        """The last module that looks at the source."""

    def tie_output(self) -> None:
        """Let the output layer have the target embedding's matrix, if the config says so."""
        if self._output_is_tied:
            self.output.weight = self.tgt_embedding.weight

    def num_parameters(self) -> int:
        """Trainable numbers, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def compile_layers(self) -> None:
        """From here on layers run compiled while training, if the model has any that can be."""

    def _end_with(self, config: ModelConfig, tgt_vocab_size: int) -> None:
        """Add the output layer, the last module, and initialise everything."""
        self.output = nn.Linear(config.d_model, tgt_vocab_size, bias=config.output_bias)
        if not self.output.weight.is_meta:
            for embedding in dict.fromkeys((self.src_embedding, self.tgt_embedding)):
                nn.init.normal_(embedding.weight, std=embedding.embedding_dim**-0.5)
            self._initialise()
            nn.init.normal_(self.output.weight, std=self.output.in_features**-0.5)
            if self.output.bias is not None:
                nn.init.zeros_(self.output.bias)
        self.tie_output()

    @abstractmethod
    def _initialise(self) -> None:
        """Draw the weights of what is between embeddings and output layer."""

    @staticmethod
    def _scaled(embedding: nn.Embedding, ids_BT: Tensor) -> Tensor:
        """Embeddings with a variance of 1 (Vaswani et al. 2017, section 3.4). Shape: (B, T, D)."""
        x_BTD: Tensor = embedding(ids_BT) * math.sqrt(embedding.embedding_dim)
        kind = x_BTD.device.type
        # Under autocast to bf16 what is added to them is bf16; a wider sum would be converted twice a layer.
        in_bf16 = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
        return x_BTD.to(torch.bfloat16) if in_bf16 else x_BTD


def _embedding(vocab_size: int, d_model: int) -> nn.Embedding:
    """An embedding. On the meta device it is not initialised: for that torch would import its compiler, for seconds."""
    if torch.get_default_device().type == "meta":
        return nn.Embedding(vocab_size, d_model, _weight=torch.empty(vocab_size, d_model))
    return nn.Embedding(vocab_size, d_model)
