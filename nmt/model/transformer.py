"""The encoder-decoder Transformer (Vaswani et al. 2017), with pre- or post-norm (Xiong et al. 2020).

Training calls `forward`; translating calls `prefill` once and `decode_step` for every position, on the same modules.
Masks: `src_keep` is bool (B, S), True on real tokens, None if nothing is padded (then flash kernels can run). The
target needs no mask: padding is on the right, where causal attention never looks.

Shapes: B batch, S source, T target, N real source positions of the batch, D d_model, F d_ff, V vocabulary, W prefixes
of a sentence (the beam).
"""

import math
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt.config import ModelConfig
from nmt.model.attention import CrossAttention, SelfAttention, as_bias
from nmt.model.compiled import Region, compiled
from nmt.model.dropout import Dropout
from nmt.model.kv_cache import DecoderState, KeyValue, LayerCache, Slots
from nmt.model.packing import Packing
from nmt.model.positions import SinusoidalPositions

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """The position-wise layer: ReLU, GELU, SiLU, or SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.gated = config.activation == "swiglu"
        self.up = nn.Linear(config.d_model, config.d_ff * (2 if self.gated else 1))
        self.down = nn.Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Shape: (B, T, D) to (B, T, D)."""
        hidden_BTF = self.up(x_BTD)
        if self.gated:
            gate_BTF, value_BTF = hidden_BTF.chunk(2, dim=-1)
            hidden_BTF = F.silu(gate_BTF) * value_BTF
        else:
            hidden_BTF = _ACTIVATIONS[self.activation](hidden_BTF)
        projected: Tensor = self.down(self.dropout(hidden_BTF))
        return projected


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each on a residual branch."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.self_attention = SelfAttention(config.d_model, config.num_heads, config.attention_dropout)
        self.self_attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BSD: Tensor, keep: Tensor | None, packing: Packing | None = None) -> Tensor:
        """Shape: (B, S, D) to (B, S, D), or with `packing` (N, D) to (N, D). `keep`: bool, or a bias, (B, 1, 1, S)."""
        if self.pre_norm:
            normed_BSD = self.self_attention_norm(x_BSD)
            x_BSD = x_BSD + self.dropout(self.self_attention(normed_BSD, keep, packing=packing))
            x_BSD = x_BSD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BSD)))
            return x_BSD
        attended_BSD = self.self_attention(x_BSD, keep, packing=packing)
        x_BSD = self.self_attention_norm(x_BSD + self.dropout(attended_BSD))
        normed: Tensor = self.feed_forward_norm(x_BSD + self.dropout(self.feed_forward(x_BSD)))
        return normed


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each on a residual branch."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.self_attention = SelfAttention(config.d_model, config.num_heads, config.attention_dropout)
        self.self_attention_norm = nn.LayerNorm(config.d_model)
        self.cross_attention = CrossAttention(config.d_model, config.num_heads, config.attention_dropout)
        self.cross_attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x_BTD: Tensor,
        cross: KeyValue,
        memory_keep: Tensor | None,
        cache: LayerCache | None = None,
        cache_bias: Tensor | None = None,
    ) -> Tensor:
        """All T positions at once, or with `cache` the newest one of every prefix: (B, W, D) to (B, W, D).

        Shape: (B, T, D) to (B, T, D). `memory_keep`: bool, or a bias. `cache_bias`: (B, 1, W, C), of C slots.
        """
        if self.pre_norm:
            x_BTD = x_BTD + self.dropout(self._attend_self(self.self_attention_norm(x_BTD), cache, cache_bias))
            normed_BTD = self.cross_attention_norm(x_BTD)
            x_BTD = x_BTD + self.dropout(self.cross_attention(normed_BTD, cross, memory_keep))
            x_BTD = x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD)))
            return x_BTD
        x_BTD = self.self_attention_norm(x_BTD + self.dropout(self._attend_self(x_BTD, cache, cache_bias)))
        x_BTD = self.cross_attention_norm(x_BTD + self.dropout(self.cross_attention(x_BTD, cross, memory_keep)))
        normed: Tensor = self.feed_forward_norm(x_BTD + self.dropout(self.feed_forward(x_BTD)))
        return normed

    def attend(self, x_BTD: Tensor, memory_BSD: Tensor, memory_keep: Tensor | None) -> Tensor:
        """All T positions at once, given the encoder's output. Shape: (B, T, D) to (B, T, D)."""
        return self.forward(x_BTD, self.cross_attention.project_memory(memory_BSD), memory_keep)

    def _attend_self(self, x_BTD: Tensor, cache: LayerCache | None, cache_bias: Tensor | None) -> Tensor:
        if cache is not None:
            return self.self_attention.step(x_BTD, cache, cache_bias)
        attended: Tensor = self.self_attention(x_BTD, causal=True)
        return attended


class Transformer(nn.Module):
    """Source ids to target logits."""

    def __init__(self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__()
        d_model = config.d_model
        self.gated = config.activation == "swiglu"
        self.head_dim = config.head_dim
        assert config.tied_embeddings != "all" or src_vocab_size == tgt_vocab_size, "one vocabulary to tie"
        self.src_embedding = _embedding(src_vocab_size, d_model)
        tied = config.tied_embeddings
        self.tgt_embedding = self.src_embedding if tied == "all" else _embedding(tgt_vocab_size, d_model)
        self.positions = SinusoidalPositions(d_model)
        self.embedding_dropout = Dropout(config.embedding_dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        # Post-norm layers end in a norm of their own; pre-norm leaves the residual sum to be normed here.
        pre_norm = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(d_model) if pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model) if pre_norm else nn.Identity()
        self.output = nn.Linear(d_model, tgt_vocab_size, bias=config.output_bias)
        self.gradient_checkpointing = False  # of a layer keep its inputs alone; the backward pass computes it again
        self._compiled: dict[Region, Region] = {}
        self._output_is_tied = tied != "none"
        if not self.output.weight.is_meta:
            self._initialise()
        self.tie_output()

    def forward(self, src_BS: Tensor, tgt_in_BT: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """Logits of the next token at every target position. Shape: (B, T, V)."""
        logits_BTV: Tensor = self.output(self.states(src_BS, tgt_in_BT, src_keep_BS))
        return logits_BTV

    def states(self, src_BS: Tensor, tgt_in_BT: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """The decoder's last states, which the output layer turns into logits. Shape: (B, T, D)."""
        return self.decode(tgt_in_BT, self.encode(src_BS, src_keep_BS), src_keep_BS)

    def encode(self, src_BS: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """The encoder's output. Shape: (B, S, D)."""
        keep = None if src_keep_BS is None else src_keep_BS[:, None, None]
        x_BSD = self._embed(self.src_embedding, src_BS, 0)
        for layer in self.encoder:
            x_BSD = self._run(_encode_with, layer, x_BSD, keep)
        memory_BSD: Tensor = self.encoder_norm(x_BSD)
        return memory_BSD

    def decode(self, tgt_in_BT: Tensor, memory_BSD: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """The decoder's last states at every target position, given the encoder's output. Shape: (B, T, D)."""
        keep = None if src_keep_BS is None else src_keep_BS[:, None, None]
        x_BTD = self._embed(self.tgt_embedding, tgt_in_BT, 0)
        for layer in self._decoder_layers():
            x_BTD = self._run(_decode_with, layer, x_BTD, memory_BSD, keep)
        states_BTD: Tensor = self.decoder_norm(x_BTD)
        return states_BTD

    def prefill(self, src_BS: Tensor, src_keep_BS: Tensor | None = None, width: int = 1) -> DecoderState:
        """Encode once and project the memory once a layer: the state before the first target token.

        Args:
            width: the most prefixes a sentence will have.
        """
        packing = Packing.of(torch.ones_like(src_BS, dtype=torch.bool) if src_keep_BS is None else src_keep_BS)
        x_ND = packing.pack(self._embed(self.src_embedding, src_BS, 0))
        bias = None if src_keep_BS is None else as_bias(src_keep_BS[:, None, None], x_ND.dtype)
        for layer in self.encoder:
            x_ND = layer(x_ND, bias, packing)
        memory_ND = self.encoder_norm(x_ND)
        projected = [layer.cross_attention.project_memory(memory_ND, packing) for layer in self._decoder_layers()]
        slots = Slots(width, self.head_dim)
        return DecoderState(
            cross=[(k.contiguous(), v.contiguous()) for k, v in projected],  # which are read at every step
            memory_bias=bias,
            slots=slots,
            layers=[LayerCache(slots) for _ in self.decoder],
        )

    def decode_step(self, tokens_BW: Tensor, state: DecoderState) -> Tensor:
        """Feed the newest token of every prefix, move `state` on by one position. Shape: logits (B, W, V)."""
        x_BWD = self._embed(self.tgt_embedding, tokens_BW, state.step, positions=1)
        cache_bias = state.advance(tokens_BW, x_BWD.dtype)
        for layer, cross, cache in zip(self.decoder, state.cross, state.layers, strict=True):
            x_BWD = layer(x_BWD, cross, state.memory_bias, cache, cache_bias)
        logits_BWV: Tensor = self.output(self.decoder_norm(x_BWD))
        return logits_BWV

    def tie_output(self) -> None:
        """Let the output layer have the target embedding's matrix, if the config says so."""
        if self._output_is_tied:
            self.output.weight = self.tgt_embedding.weight

    def num_parameters(self) -> int:
        """Trainable numbers, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def compile_layers(self) -> None:
        """From here on layers run compiled while training. The modules, and decoding with them, stay as they are."""
        self._compiled = {region: compiled(region) for region in (_encode_with, _decode_with)}

    def _run(self, region: Region, layer: nn.Module, x_BTD: Tensor, *inputs: Tensor | None) -> Tensor:
        """A layer's output. While training it may be compiled, and computed again in the backward pass."""
        if not (self.training and torch.is_grad_enabled()):
            return region(layer, x_BTD, *inputs)
        states = [each for each in (x_BTD, *inputs) if each is not None and each.dim() == 3]
        if all(1 not in state.shape for state in states):  # to torch.compile one row, or position, is another program
            region = self._compiled.get(region, region)
        if self.gradient_checkpointing:
            # The default generators are put back to where they stood, so dropout draws the same masks again.
            again: Tensor = checkpoint(region, layer, x_BTD, *inputs, use_reentrant=False, preserve_rng_state=True)
            return again
        return region(layer, x_BTD, *inputs)

    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.decoder))

    def _embed(self, embedding: nn.Embedding, ids_BT: Tensor, start: int, positions: int | None = None) -> Tensor:
        """Scaled embeddings plus positions, with dropout (section 3.4 of the paper). Shape: (B, T, D).

        Args:
            positions: 1 if all T tokens stand at `start`; by default they follow one another.
        """
        x_BTD = embedding(ids_BT) * math.sqrt(embedding.embedding_dim)
        encodings_TD = self.positions(start, positions or ids_BT.shape[1], like=x_BTD)
        dropped: Tensor = self.embedding_dropout(x_BTD + encodings_TD)
        return dropped

    def _initialise(self) -> None:
        """Glorot-uniform projections, zero biases, embeddings of variance 1/D.

        The blocks of a fused projection are drawn as the separate square matrices that they stand for.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and module is not self.output:
                blocks = {"qkv": 3, "kv": 2, "up": 1 + self.gated}.get(name.rpartition(".")[2], 1)
                for block in module.weight.data.chunk(blocks):
                    nn.init.xavier_uniform_(block)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        nn.init.normal_(self.output.weight, std=self.output.in_features**-0.5)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)


def _embedding(vocab_size: int, d_model: int) -> nn.Embedding:
    """An embedding. On the meta device it is not initialised: for that torch would import its compiler, for seconds."""
    if torch.get_default_device().type == "meta":
        return nn.Embedding(vocab_size, d_model, _weight=torch.empty(vocab_size, d_model))
    return nn.Embedding(vocab_size, d_model)


def _encode_with(layer: EncoderLayer, x_BSD: Tensor, keep: Tensor | None) -> Tensor:
    output_BSD: Tensor = layer(x_BSD, keep)
    return output_BSD


def _decode_with(layer: DecoderLayer, x_BTD: Tensor, memory_BSD: Tensor, keep: Tensor | None) -> Tensor:
    return layer.attend(x_BTD, memory_BSD, keep)
