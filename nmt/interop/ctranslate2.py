"""Models for CTranslate2, written by its own model specification (the optional extra `ctranslate2`)."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt.bundle import Bundle
from nmt.config import DecodingConfig
from nmt.errors import ConfigError
from nmt.interop.defaults import NEVER, lost_defaults, refuse_other_attention
from nmt.model.positions import sinusoidal
from nmt.model.transformer import DecoderLayer, EncoderLayer, Transformer
from nmt.storage.atomic import write_file

_POSITIONS = 4096  # of source or target that the exported model can have; theirs end where the table ends
_THEIR_ARGUMENTS = {
    "beam_size": "beam_size",
    "length_penalty": "length_penalty",
    "coverage_penalty": "coverage_penalty",
    "n_best": "num_hypotheses",
    "min_length": "min_decoding_length",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
    "max_length": "max_decoding_length",
}
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}


def export_ctranslate2(bundle: Bundle, folder: Path) -> list[str]:
    """Write what `ctranslate2.Translator` loads, and source.spm and target.spm, into an existing folder.

    It is given the pieces of source.spm without </s>, which it adds, and starts by itself. What is never generated here
    (<pad>, <unk>, <s>) is not generated there, by a bias of the output layer.

    Returns: warnings about decode defaults, which such a folder does not hold.
    Raises: ConfigError (CTranslate2 is not installed, or has no such model), OSError.
    """
    specs = _import_specs()
    refuse_other_attention(bundle.config.model, "CTranslate2")
    config, model, tokenizer = bundle.config, bundle.model, bundle.tokenizer
    spec = specs.TransformerSpec.from_config(
        (config.model.num_encoder_layers, config.model.num_decoder_layers),
        config.model.num_heads,
        pre_norm=config.model.norm == "pre",
        activation=specs.common_spec.Activation[_ACTIVATIONS[config.model.activation]],
        ffn_glu=config.model.activation == "swiglu",
    )
    assert isinstance(model, Transformer)
    for stack, embeddings, theirs in (
        (model.src_embedding, spec.encoder.embeddings[0], spec.encoder),
        (model.tgt_embedding, spec.decoder.embeddings, spec.decoder),
    ):
        embeddings.weight = _array(stack.weight)
        theirs.scale_embeddings = math.sqrt(config.model.d_model)
        theirs.position_encodings.encodings = sinusoidal(_POSITIONS, config.model.d_model).float().numpy()
    for encoder_layer, encoder_spec in zip(model.encoder, spec.encoder.layer, strict=True):
        assert isinstance(encoder_layer, EncoderLayer)
        _set_encoder_layer(encoder_spec, encoder_layer)
    for decoder_layer, decoder_spec in zip(model.decoder, spec.decoder.layer, strict=True):
        assert isinstance(decoder_layer, DecoderLayer)
        _set_encoder_layer(decoder_spec, decoder_layer)
        cross = decoder_layer.cross_attention
        for linear_spec, linear in zip(decoder_spec.attention.linear, (cross.q, cross.kv, cross.out), strict=True):
            _set_linear(linear_spec, linear.weight, linear.bias)
        _set_norm(decoder_spec.attention.layer_norm, decoder_layer.cross_attention_norm)
    if config.model.norm == "pre":
        _set_norm(spec.encoder.layer_norm, model.encoder_norm)
        _set_norm(spec.decoder.layer_norm, model.decoder_norm)
    _set_linear(spec.decoder.projection, model.output.weight, _bias_with_bans(bundle))
    _set_vocabulary(spec, bundle)
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    write_file(folder / "source.spm", tokenizer.src_model)
    write_file(folder / "target.spm", tokenizer.tgt_model)
    return [
        "a CTranslate2 folder holds no decode defaults: give translate_batch "
        f"{', '.join(_arguments(config.decoding))} (and max_decoding_length, 256 by default, for long lines)",
        *lost_defaults(config.decoding, ("min_length_ratio", "sample", "tag"), "CTranslate2"),
    ]


def _arguments(decoding: DecodingConfig) -> list[str]:
    """What `translate_batch` is to be given: two that have other defaults there, and all that were set here."""
    own_defaults = DecodingConfig()
    return [
        f"{theirs}={getattr(decoding, key)}"
        for key, theirs in _THEIR_ARGUMENTS.items()
        if key in ("beam_size", "length_penalty") or getattr(decoding, key) != getattr(own_defaults, key)
    ]


def _import_specs() -> ModuleType:
    try:
        from ctranslate2.specs import transformer_spec
    except ImportError as error:
        raise ConfigError(
            f'--format ctranslate2 needs the package ctranslate2 ({error}): pip install ".[ctranslate2]".'
        ) from error
    module: ModuleType = transformer_spec
    return module


def _set_encoder_layer(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    """Self-attention and feed-forward, which layers of both stacks have."""
    _set_linear(spec.self_attention.linear[0], layer.self_attention.qkv.weight, layer.self_attention.qkv.bias)
    _set_linear(spec.self_attention.linear[1], layer.self_attention.out.weight, layer.self_attention.out.bias)
    _set_norm(spec.self_attention.layer_norm, layer.self_attention_norm)
    up, down = layer.feed_forward.up, layer.feed_forward.down
    if layer.feed_forward.gated:
        (gate, value), (gate_bias, value_bias) = up.weight.chunk(2), up.bias.chunk(2)
        _set_linear(spec.ffn.linear_0, gate, gate_bias)
        _set_linear(spec.ffn.linear_0_noact, value, value_bias)
    else:
        _set_linear(spec.ffn.linear_0, up.weight, up.bias)
    _set_linear(spec.ffn.linear_1, down.weight, down.bias)
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def _set_linear(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight, spec.bias = _array(weight), _array(bias)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> "np.ndarray[Any, Any]":
    array: np.ndarray[Any, Any] = tensor.detach().float().cpu().contiguous().numpy()
    return array


def _bias_with_bans(bundle: Bundle) -> Tensor:
    """Shape: (V,)."""
    bias, special = bundle.model.output.bias, bundle.tokenizer.special
    bias_V = torch.zeros(bundle.config.tgt_vocab_size) if bias is None else bias.detach().clone()
    bias_V[[special.pad, special.bos, special.unk]] = NEVER
    return bias_V


def _set_vocabulary(spec: Any, bundle: Bundle) -> None:
    tokenizer, special, config = bundle.tokenizer, bundle.tokenizer.special, bundle.config
    pieces: Sequence[str] = tokenizer.tgt_pieces(range(config.tgt_vocab_size))
    spec.register_source_vocabulary(tokenizer.src_pieces(range(config.src_vocab_size)))
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token, spec.config.eos_token = pieces[special.unk], pieces[special.eos]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[special.bos]
    spec.config.add_source_eos = True
