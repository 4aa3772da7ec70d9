"""MarianMT models of Hugging Face transformers, as OPUS-MT's, into a bundle and out of one.

The same post-norm Transformer, written down in other ways:

- Positions. There a position is [all sines | all cosines], here sine and cosine alternate. Embeddings, norms and the
  sides of matrices that face the residual stream are permuted to match, which changes no number that comes out.
- Projections of queries, keys and values are three matrices there; here they are one.
- Piece ids are those of vocab.json; the SentencePiece models are numbered anew (`nmt.interop.renumber`).
- There is no BOS. The decoder starts with `decoder_start_token_id`, which is <pad>: it is BOS here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nmt.bundle import Bundle, BundleConfig, load_weights, weights_of, write_tensors
from nmt.config import DecodingConfig, ModelConfig
from nmt.errors import BundleError, ConfigError
from nmt.interop.renumber import FOREIGN_HIDDEN, FOREIGN_SHOWN, Pieces, renumber, without_foreign
from nmt.model.transformer import Transformer
from nmt.storage.atomic import write_file
from nmt.text.tokenizer import SpecialIds, Tokenizer

NEVER = -1e4  # as a bias: no such token is ever generated, and its probability is 0 in any precision

# Ours to theirs. Several names: rows of ours, block by block.
_MODULES = {
    "self_attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.out": ("self_attn.out_proj",),
    "self_attention_norm": ("self_attn_layer_norm",),
    "cross_attention.q": ("encoder_attn.q_proj",),
    "cross_attention.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.out": ("encoder_attn.out_proj",),
    "cross_attention_norm": ("encoder_attn_layer_norm",),
    "feed_forward.up": ("fc1",),
    "feed_forward.down": ("fc2",),
    "feed_forward_norm": ("final_layer_norm",),
}
_EMBEDDING, _BIAS = "model.shared.weight", "final_logits_bias"
_TIED = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_COMPUTED = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
# What a config may say, where another value (or, for the first, none) is another architecture.
_REQUIRED: dict[str, tuple[Any, Any]] = {  # key: the value needed, the value meant by silence
    "model_type": ("marian", None),
    "scale_embedding": (True, False),
    "static_position_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
    "add_bias_logits": (False, False),
    "extra_pos_embeddings": (0, 0),
    "share_encoder_decoder_embeddings": (True, True),
    "tie_word_embeddings": (True, True),
}
# Of generation_config.json, and the values that do nothing.
_NOT_TAKEN_ALONG = {
    "do_sample": False,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "forced_bos_token_id": None,
    "force_words_ids": None,
}


def import_marian(folder: Path, src_lang: str | None = None, tgt_lang: str | None = None) -> tuple[Bundle, list[str]]:
    """Read a local Hugging Face folder (config.json, model.safetensors, source.spm, target.spm, vocab.json).

    A piece of source.spm that vocab.json lacks means <unk> there: it gets a number of its own past the vocabulary, with
    the embedding of <unk>, and is never generated. One of target.spm alone is dropped: text is split into others.

    Args:
        src_lang, tgt_lang: default to those of tokenizer_config.json.
    Returns: the bundle, and warnings about decode defaults that it cannot hold.
    Raises: BundleError, ConfigError (no languages).
    """
    config = _read_json(folder, "config.json")
    _refuse_other_architectures(folder / "config.json", config)
    names = _read_json(folder, "tokenizer_config.json", needed=False)
    languages = {"src": src_lang or names.get("source_lang"), "tgt": tgt_lang or names.get("target_lang")}
    for side, language in languages.items():
        if not isinstance(language, str):
            raise ConfigError(f"{folder} does not name its languages: give --{side}-lang.")
    vocabulary = _read_vocabulary(folder, config)
    special = _special_ids(folder, config, names, vocabulary)
    source, target = Pieces.read(folder / "source.spm"), Pieces.read(folder / "target.spm")
    extra = [piece for piece in source.known if piece not in set(vocabulary)]
    pieces = vocabulary + extra
    tokenizer = Tokenizer(
        renumber(source, pieces, special, foreign=FOREIGN_HIDDEN),
        renumber(_without(target, extra), pieces, special, foreign=FOREIGN_SHOWN),
    )
    tensors = _read_tensors(folder)
    tensors[_EMBEDDING], tensors[_BIAS] = _widened(folder, tensors, config["vocab_size"], len(extra), special.unk)
    generation = {**config, **_read_json(folder, "generation_config.json", needed=False)}
    bundle_config = _bundle_config(folder, config, generation, tensors, len(pieces), languages)
    bundle = Bundle(bundle_config, _model(folder, bundle_config, tensors), tokenizer)
    return bundle, [
        f"generation_config.json: {key} = {generation[key]!r} is not taken along"
        for key, neutral in _NOT_TAKEN_ALONG.items()
        if generation.get(key, neutral) not in (neutral, None)
    ]


def export_marian(bundle: Bundle, folder: Path) -> list[str]:
    """Write what transformers loads as MarianMTModel and MarianTokenizer into an existing folder.

    Returns: warnings, about decode defaults that mean something else there.
    Raises: ConfigError (a model that is no MarianMTModel), StorageError, OSError.
    """
    config, tokenizer, special = bundle.config, bundle.tokenizer, bundle.tokenizer.special
    _refuse_what_marian_lacks(bundle)
    pieces = tokenizer.tgt_pieces(range(config.tgt_vocab_size))
    longest = most_pieces(config, config.max_length) + 2  # there start and end count too
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
            **{key: needed for key, (needed, _) in _REQUIRED.items() if key != "model_type"},
        },
    }
    for name, table in tables.items():
        write_file(folder / name, json.dumps(table, indent=2, ensure_ascii=False).encode())
    return lost_defaults(
        config.decoding, ("coverage_penalty", "min_length_ratio", "repetition_penalty", "sample"), "transformers"
    )


def most_pieces(config: BundleConfig, src_pieces: int) -> int:
    """The most target pieces, without EOS, that decoding gives a source of so many, with EOS."""
    rules = config.decoding
    return min(rules.max_length, int(src_pieces * rules.max_length_ratio) + rules.max_length_extra - 1)


def lost_defaults(decoding: DecodingConfig, keys: Sequence[str], program: str) -> list[str]:
    """Warnings about decode defaults that another program does not have, `keys` or GNMT's length penalty."""
    lost = [key for key in keys if getattr(decoding, key) != DecodingConfig.model_fields[key].default]
    warnings = [f"decoding.{key} = {getattr(decoding, key)!r} is not taken along to {program}" for key in lost]
    if decoding.length_penalty_type == "gnmt" and decoding.length_penalty:
        warnings.append(
            f"decoding.length_penalty = {decoding.length_penalty} is GNMT's, ((5 + length) / 6) ^ alpha; {program} has "
            f"length ^ alpha: with the same alpha its beam search finds longer translations"
        )
    return warnings


def _read_json(folder: Path, name: str, *, needed: bool = True) -> dict[str, Any]:
    path = folder / name
    if not needed and not path.exists():
        return {}
    try:
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(
            f"{folder} is no MarianMT folder: {name} cannot be read ({error.strerror}). It needs config.json, "
            f"model.safetensors, source.spm, target.spm and vocab.json."
        ) from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON.") from error
    if not isinstance(table, dict):
        raise BundleError(f"{path} is no JSON object.")
    return table


def _refuse_other_architectures(path: Path, config: Mapping[str, Any]) -> None:
    for key, (needed, silent) in _REQUIRED.items():
        if config.get(key, silent) != needed:
            raise BundleError(
                f"{path}: {key} = {config.get(key, silent)!r} is not supported; models with {needed!r} can be imported."
            )
    for key in ("attention_heads", "ffn_dim"):
        if config.get(f"encoder_{key}") != config.get(f"decoder_{key}"):
            raise BundleError(f"{path}: encoder_{key} and decoder_{key} differ, which is not supported.")
    if config.get("decoder_vocab_size", config.get("vocab_size")) not in (None, config.get("vocab_size")):
        raise BundleError(f"{path}: decoder_vocab_size differs from vocab_size, which is not supported.")
    if config.get("activation_function") not in _ACTIVATIONS:
        raise BundleError(
            f"{path}: activation_function = {config.get('activation_function')!r} is not supported; those of "
            f"{', '.join(_ACTIVATIONS)} are."
        )


def _read_vocabulary(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The pieces of vocab.json in the order of their ids."""
    path = folder / "vocab.json"
    table = _read_json(folder, "vocab.json")
    pieces = {number: piece for piece, number in table.items() if type(number) is int}
    if sorted(pieces) != list(range(len(table))) or len(table) != config.get("vocab_size"):
        raise BundleError(
            f"{path} does not number its {len(table):,} pieces from 0 to {len(table) - 1:,}, or config.json has "
            f"another vocab_size ({config.get('vocab_size')})."
        )
    codes = [piece for piece in table if piece.startswith(">>") and piece.endswith("<<")]
    if codes:
        raise BundleError(
            f"{path} holds language codes ({', '.join(codes[:3])}{', …' if codes[3:] else ''}): the model has several "
            f"languages, which is not supported."
        )
    return [pieces[number] for number in range(len(pieces))]


def _special_ids(
    folder: Path, config: Mapping[str, Any], names: Mapping[str, Any], vocabulary: list[str]
) -> SpecialIds:
    """The special ids of config.json, held against the names in vocab.json."""
    found = {}
    for name, piece in (("pad", "<pad>"), ("unk", "<unk>"), ("eos", "</s>")):
        said = names.get(f"{name}_token", piece)
        piece = said.get("content", piece) if isinstance(said, dict) else said
        if piece not in vocabulary:
            raise BundleError(f"{folder / 'vocab.json'} has no {piece}.")
        found[name] = vocabulary.index(piece)
        number = config.get(f"{name}_token_id", found[name])
        if number != found[name]:
            raise BundleError(f"{folder}: {piece} is {found[name]} in vocab.json and {number} in config.json.")
    start = config.get("decoder_start_token_id")
    if type(start) is not int or not 0 <= start < len(vocabulary) or start in (found["eos"], found["unk"]):
        raise BundleError(
            f"{folder / 'config.json'}: decoder_start_token_id = {start!r} is not supported; it must be a piece of "
            f"vocab.json that is never generated, as <pad>."
        )
    return SpecialIds(bos=start, **found)


def _without(model: Pieces, unwanted: Iterable[str]) -> Pieces:
    return Pieces(model.proto, {p: known for p, known in model.known.items() if p not in set(unwanted)})


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    if not path.is_file():
        others = [
            p.name for p in (folder / "pytorch_model.bin", folder / "model.safetensors.index.json") if p.is_file()
        ]
        hint = (
            f" {others[0]} is not read: convert it with transformers, "
            f"MarianMTModel.from_pretrained(…).save_pretrained(…), which writes one model.safetensors."
            if others
            else ""
        )
        raise BundleError(f"{folder} has no model.safetensors.{hint}")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path} is no safetensors file: {error}.") from error
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not torch.isfinite(tensor.float()).all():
            raise BundleError(f"{path}: tensor {name} holds NaN, infinity or no floating-point numbers.")
    tensors = {name: tensor.float() for name, tensor in tensors.items() if name not in _COMPUTED}
    tied = [(name, tensors.pop(name)) for name in (_EMBEDDING, *_TIED) if name in tensors]
    if not tied:
        raise BundleError(f"{path} has no tensor {_EMBEDDING}.")
    for name, tensor in tied:
        if not torch.equal(tensor, tied[0][1]):
            raise BundleError(
                f"{path}: {name} differs from {tied[0][0]}; embeddings that are not tied are not supported."
            )
    tensors[_EMBEDDING] = tied[0][1]
    return tensors


def _widened(
    folder: Path, tensors: Mapping[str, Tensor], vocab_size: int, extra: int, unk: int
) -> tuple[Tensor, Tensor]:
    """Embedding and output bias with `extra` more pieces: embedded as <unk>, never generated. Shapes: (V, D), (V,)."""
    embedding_VD, bias_V = tensors[_EMBEDDING], tensors.get(_BIAS, torch.zeros(vocab_size)).flatten()
    if embedding_VD.dim() != 2 or len(embedding_VD) != vocab_size or len(bias_V) != vocab_size:
        raise BundleError(f"{folder}: {_EMBEDDING} or {_BIAS} has another size than vocab.json.")
    rows_ED = embedding_VD[unk].expand(extra, -1)
    return torch.cat([embedding_VD, rows_ED]), torch.cat([bias_V, torch.full((extra,), NEVER)])


def _bundle_config(
    folder: Path,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    vocab_size: int,
    languages: Mapping[str, str | None],
) -> BundleConfig:
    longest = generation.get("max_length") or config.get("max_position_embeddings", 512)
    try:
        return BundleConfig(
            src_lang=languages["src"] or "",
            tgt_lang=languages["tgt"] or "",
            src_vocab_size=vocab_size,
            tgt_vocab_size=vocab_size,
            max_length=config.get("max_position_embeddings", 512),
            model=ModelConfig(
                num_encoder_layers=config.get("encoder_layers", 0),
                num_decoder_layers=config.get("decoder_layers", 0),
                d_model=config.get("d_model", 0),
                num_heads=config.get("encoder_attention_heads", 0),
                d_ff=config.get("encoder_ffn_dim", 0),
                norm="post",
                activation=_ACTIVATIONS[config["activation_function"]],  # type: ignore[arg-type]
                tied_embeddings="all",
                output_bias=bool(tensors[_BIAS].any()),
                dropout=config.get("dropout", 0.1),
                embedding_dropout=config.get("dropout", 0.1),
                attention_dropout=config.get("attention_dropout", 0.0),
                activation_dropout=config.get("activation_dropout", 0.0),
            ),
            decoding=DecodingConfig(
                beam_size=generation.get("num_beams") or 1,
                length_penalty=float(generation.get("length_penalty", 1.0)),
                length_penalty_type="power",
                # Their limits are the same for all sentences, and count the start, the longest the end too.
                max_length=longest - 2,
                max_length_ratio=100.0,
                max_length_extra=10_000,
                min_length=max(0, (generation.get("min_length") or 0) - 1),
                no_repeat_ngram=generation.get("no_repeat_ngram_size") or 0,
            ),
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise BundleError(
            f"{folder}: its config.json or generation_config.json is unusual: {key}: {first['msg']}."
        ) from None
    except (TypeError, ValueError) as error:
        raise BundleError(f"{folder}: its config.json or generation_config.json is unusual: {error}.") from None


def _model(folder: Path, config: BundleConfig, tensors: Mapping[str, Tensor]) -> Transformer:
    """Our model with their weights."""
    with torch.device("meta"):
        wanted = Transformer(config.model, config.src_vocab_size, config.tgt_vocab_size)
    order_D = _order(config.model.d_model)
    weights, used = {}, {_BIAS}
    for name, parameter in wanted.named_parameters():
        theirs = _their_names(name)
        missing = [each for each in theirs if each not in tensors]
        if missing:
            raise BundleError(f"{folder}: model.safetensors has no tensor {missing[0]}.")
        used |= set(theirs)
        try:
            joined = torch.cat([tensors[each] for each in theirs])
        except RuntimeError:
            raise BundleError(f"{folder}: the shapes of {', '.join(theirs)} do not go together.") from None
        if joined.shape != parameter.shape:
            raise BundleError(
                f"{folder}: tensor {theirs[0]} has another shape than config.json asks for ({list(joined.shape)}, "
                f"{list(parameter.shape)})."
            )
        weights[name] = _permuted(name, joined, order_D)
    if tensors.keys() - used:
        raise BundleError(f"{folder}: tensor {min(tensors.keys() - used)} is of an architecture that is not supported.")
    model = Transformer(config.model, config.src_vocab_size, config.tgt_vocab_size)
    load_weights(model, weights)
    return model.eval()


def _their_tensors(bundle: Bundle) -> dict[str, Tensor]:
    order_D = _order(bundle.config.model.d_model).argsort()
    tensors = {_BIAS: torch.zeros(1, bundle.config.tgt_vocab_size)}
    for name, tensor in weights_of(bundle.model).items():
        theirs, permuted = _their_names(name), _permuted(name, tensor.float(), order_D)
        for each, block in zip(theirs, permuted.chunk(len(theirs)), strict=True):
            tensors[each] = block[None].contiguous() if each == _BIAS else block.contiguous()
    return tensors


def _their_names(name: str) -> tuple[str, ...]:
    """Theirs of one of our tensors."""
    if name == "src_embedding.weight":
        return (_EMBEDDING,)
    if name == "output.bias":
        return (_BIAS,)
    stack, layer, rest = name.split(".", 2)
    module, kind = rest.rsplit(".", 1)
    return tuple(f"model.{stack}.layers.{layer}.{each}.{kind}" for each in _MODULES[module])


def _order(d_model: int) -> Tensor:
    """Which of their residual dimensions each of ours is: sine 0, cosine 0, sine 1, … Shape: (D,)."""
    return torch.arange(d_model).view(2, -1).t().flatten()


def _permuted(name: str, tensor: Tensor, order_D: Tensor) -> Tensor:
    """One of our tensors with its residual dimensions in another order."""
    module, kind = name.rsplit(".", 1)
    if module.endswith(("norm", ".out", ".down")):  # what a layer adds to the residual stream
        return tensor[order_D]
    if kind == "weight":  # embeddings, and what reads the residual stream
        return tensor[:, order_D]
    return tensor


def _refuse_what_marian_lacks(bundle: Bundle) -> None:
    model, tokenizer = bundle.config.model, bundle.tokenizer
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
