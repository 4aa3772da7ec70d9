"""The encoder-decoder Transformer (Vaswani et al. 2017), with pre- or post-norm (Xiong et al. 2020).

If nothing is padded `src_keep` is None, so that flash kernels can run. The target needs no mask: padding is on the
right, where causal attention never looks.

Shapes: B batch, S source, T target, N real source positions of the batch, D d_model, F d_ff, V vocabulary, W prefixes
of a sentence (the beam).
"""

from collections.abc import Callable, Sequence
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
from nmt.model.positions import LearnedPositions, ShawBias, SinusoidalPositions, T5Bias
from nmt.model.seq2seq import Seq2Seq

AddedPositions = SinusoidalPositions | LearnedPositions

_FIRST_BIAS = 0.1  # deviation of T5's biases at first; the scores have one of about 1
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
        self.self_attention = SelfAttention(config, causal=False)
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
        self.self_attention = SelfAttention(config, causal=True)
        self.self_attention_norm = nn.LayerNorm(config.d_model)
        self.cross_attention = CrossAttention(config)
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
        attended: Tensor = self.self_attention(x_BTD)
        return attended


class Transformer(Seq2Seq):
    """Layers of attention and feed-forward."""

    def __init__(self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__(config, src_vocab_size, tgt_vocab_size)
        d_model = config.d_model
        self.gated = config.activation == "swiglu"
        self.head_dim = config.head_dim
        self.src_positions, self.tgt_positions = _added_positions(config), _added_positions(config)
        if config.positions == "learned":
            self.max_positions = config.max_positions
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        # Post-norm layers end in a norm of their own; pre-norm leaves the residual sum to be normed here.
        pre_norm = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(d_model) if pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model) if pre_norm else nn.Identity()
        self._compiled: dict[Region, Region] = {}
        self._end_with(config, tgt_vocab_size)

    def encode(self, src_BS: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """See `Seq2Seq.encode`."""
        keep = None if src_keep_BS is None else src_keep_BS[:, None, None]
        x_BSD = self._embed_src(src_BS)
        for layer in self.encoder:
            x_BSD = self._run(_encode_with, layer, x_BSD, keep)
        memory_BSD: Tensor = self.encoder_norm(x_BSD)
        return memory_BSD

    def decode(self, tgt_in_BT: Tensor, memory_BSD: Tensor, src_keep_BS: Tensor | None = None) -> Tensor:
        """See `Seq2Seq.decode`."""
        keep = None if src_keep_BS is None else src_keep_BS[:, None, None]
        x_BTD = self._embed_tgt(tgt_in_BT, 0, tgt_in_BT.shape[1])
        for layer in self._decoder_layers():
            x_BTD = self._run(_decode_with, layer, x_BTD, memory_BSD, keep)
        states_BTD: Tensor = self.decoder_norm(x_BTD)
        return states_BTD

    def prefill(self, src_BS: Tensor, src_keep_BS: Tensor | None = None, width: int = 1) -> DecoderState:
        """See `Seq2Seq.prefill`; the memory is projected once a layer."""
        packing = Packing.of(torch.ones_like(src_BS, dtype=torch.bool) if src_keep_BS is None else src_keep_BS)
        x_ND = packing.pack(self._embed_src(src_BS))
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
        """See `Seq2Seq.decode_step`."""
        x_BWD = self._embed_tgt(tokens_BW, state.slots.length, positions=1)
        cache_bias = state.advance(tokens_BW, x_BWD.dtype)
        for layer, cross, cache in zip(self.decoder, state.cross, state.layers, strict=True):
            x_BWD = layer(x_BWD, cross, state.memory_bias, cache, cache_bias)
        logits_BWV: Tensor = self.output(self.decoder_norm(x_BWD))
        return logits_BWV

    def top_attention(self) -> nn.Module:
        """See `Seq2Seq.top_attention`."""
        return self._decoder_layers()[-1].cross_attention

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

    def _embed_src(self, src_BS: Tensor) -> Tensor:
        """Shape: (B, S, D)."""
        return self._placed(self._scaled(self.src_embedding, src_BS), self.src_positions, 0, src_BS.shape[1])

    def _embed_tgt(self, tgt_BT: Tensor, start: int, positions: int) -> Tensor:
        """Tokens that follow one another from `start` on, or all stand there, at 1 of `positions`. Shape: (B, T, D)."""
        return self._placed(self._scaled(self.tgt_embedding, tgt_BT), self.tgt_positions, start, positions)

    def _placed(self, x_BTD: Tensor, positions: AddedPositions | None, start: int, length: int) -> Tensor:
        """With positions added, and dropout (section 3.4 of the paper)."""
        if positions is not None:
            x_BTD = x_BTD + positions(start, length, like=x_BTD)
        dropped: Tensor = self.embedding_dropout(x_BTD)
        return dropped

    def _initialise(self) -> None:
        """Glorot-uniform projections, zero biases; tables of positions as small as embeddings are.

        The blocks of a fused projection are drawn as the separate matrices that they stand for.
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and module is not self.output:
                for block in self._blocks(name.rpartition(".")[2], module.weight.data):
                    nn.init.xavier_uniform_(block)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, LearnedPositions):
                nn.init.normal_(module.table_LD, std=module.table_LD.shape[1] ** -0.5)
            elif isinstance(module, T5Bias):
                nn.init.normal_(module.table_NH, std=_FIRST_BIAS)
            elif isinstance(module, ShawBias):
                nn.init.normal_(module.table_NK, std=module.table_NK.shape[1] ** -0.5)

    def _blocks(self, name: str, weight: Tensor) -> Sequence[Tensor]:
        """What a linear layer of that name stands for."""
        outputs, d_model = weight.shape
        if name == "qkv":
            kv_dim = (outputs - d_model) // 2
            return torch.split(weight, [d_model, kv_dim, kv_dim])
        return torch.chunk(weight, {"kv": 2, "up": 1 + self.gated}.get(name, 1))


def _added_positions(config: ModelConfig) -> AddedPositions | None:
    """What is added to the embeddings of one side."""
    if config.positions == "learned":
        return LearnedPositions(config.max_positions, config.d_model)
    return SinusoidalPositions(config.d_model) if config.positions == "sinusoidal" else None


def _encode_with(layer: EncoderLayer, x_BSD: Tensor, keep: Tensor | None) -> Tensor:
    output_BSD: Tensor = layer(x_BSD, keep)
    return output_BSD


def _decode_with(layer: DecoderLayer, x_BTD: Tensor, memory_BSD: Tensor, keep: Tensor | None) -> Tensor:
    return layer.attend(x_BTD, memory_BSD, keep)
