"""Bundles into MarianMT folders of Hugging Face transformers; see `marian_layout`."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.bundle import Bundle, weights_of, write_tensors
from nmt.errors import ConfigError
from nmt.interop.defaults import lost_defaults, refuse_other_attention
from nmt.interop.marian_layout import BIAS, REQUIRED, permuted, residual_order, their_names
from nmt.interop.renumber import without_foreign
from nmt.storage.atomic import write_file


def export_marian(bundle: Bundle, folder: Path) -> list[str]:
    """Write what transformers loads as MarianMTModel and MarianTokenizer into an existing folder.

    Returns: warnings, about decode defaults that mean something else there.
    Raises: ConfigError (a model that is no MarianMTModel), StorageError, OSError.
    """
    config, tokenizer, special = bundle.config, bundle.tokenizer, bundle.tokenizer.special
    _refuse_what_marian_lacks(bundle)
    pieces = tokenizer.tgt_pieces(range(config.tgt_vocab_size))
    longest = config.decoding.most_pieces(config.max_length) + 2  # there start and end count too
    write_tensors(folder / "model.safetensors", _their_tensors(bundle), {"format": "pt"})
    # Their tokenizer turns translations into text by source.spm, which must not know target pieces as control pieces.
    write_file(folder / "source.spm", without_foreign(tokenizer.src_model, special))
    write_file(folder / "target.spm", without_foreign(tokenizer.tgt_model, special))
    ids = {
        "pad_token_id": special.pad,
        "eos_token_id": special.eos,
        "decoder_start_token_id": special.bos,
        "forced_eos_token_id": special.eos,
        "bos_token_id": None,
    }
    shape = config.model
    tables: dict[str, dict[str, Any]] = {
        "vocab.json": {piece: number for number, piece in enumerate(pieces)},
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": config.src_lang,
            "target_lang": config.tgt_lang,
            "unk_token": pieces[special.unk],
            "eos_token": pieces[special.eos],
            "pad_token": pieces[special.pad],
            "model_max_length": config.max_length,
            "separate_vocabs": False,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {
            **ids,
            "num_beams": config.decoding.beam_size,
            "length_penalty": config.decoding.length_penalty,
            "early_stopping": True,
            "max_length": longest,
            "min_length": config.decoding.min_length and config.decoding.min_length + 1,
            "no_repeat_ngram_size": config.decoding.no_repeat_ngram,
            "bad_words_ids": [[number] for number in sorted({special.pad, special.bos, special.unk})],
        },
        "config.json": {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "dtype": "float32",
            **ids,
            "is_encoder_decoder": True,
            "vocab_size": len(pieces),
            "decoder_vocab_size": len(pieces),
            "d_model": shape.d_model,
            "encoder_layers": shape.num_encoder_layers,
            "decoder_layers": shape.num_decoder_layers,
            "encoder_attention_heads": shape.num_heads,
            "decoder_attention_heads": shape.num_heads,
            "encoder_ffn_dim": shape.d_ff,
            "decoder_ffn_dim": shape.d_ff,
            "activation_function": shape.activation,
            "dropout": shape.dropout,
            "attention_dropout": shape.attention_dropout,
            "activation_dropout": shape.activation_dropout,
            "max_position_embeddings": max(512, config.max_length, longest),
            **{key: needed for key, (needed, _) in REQUIRED.items() if key != "model_type"},
        },
    }
    for name, table in tables.items():
        write_file(folder / name, json.dumps(table, indent=2, ensure_ascii=False).encode())
    return lost_defaults(
        config.decoding, ("coverage_penalty", "min_length_ratio", "repetition_penalty", "sample", "tag"), "transformers"
    )


def _their_tensors(bundle: Bundle) -> dict[str, Tensor]:
    order_D = residual_order(bundle.config.model.d_model).argsort()
    tensors = {BIAS: torch.zeros(1, bundle.config.tgt_vocab_size)}
    for name, tensor in weights_of(bundle.model).items():
        theirs, reordered = their_names(name), permuted(name, tensor.float(), order_D)
        for each, block in zip(theirs, reordered.chunk(len(theirs)), strict=True):
            tensors[each] = block[None].contiguous() if each == BIAS else block.contiguous()
    return tensors


def _refuse_what_marian_lacks(bundle: Bundle) -> None:
    model, tokenizer = bundle.config.model, bundle.tokenizer
    refuse_other_attention(model, "marian-hf")
    for key, values in (
        ("norm", ("post",)),
        ("activation", ("relu", "gelu", "silu")),
        ("tied_embeddings", ("all",)),
    ):
        if getattr(model, key) not in values:
            raise ConfigError(
                f'marian-hf has no models with {key} = "{getattr(model, key)}" (it has: {", ".join(values)}). '
                f"--format ctranslate2 has."
            )
    everything = range(bundle.config.tgt_vocab_size)
    if tokenizer.src_pieces(everything) != tokenizer.tgt_pieces(everything):
        raise ConfigError(
            "marian-hf has one vocabulary for both sides; source and target tokenizer of this model differ."
        )
