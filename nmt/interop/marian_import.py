"""MarianMT folders of Hugging Face transformers, as OPUS-MT's, into bundles; see `marian_layout`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nmt.bundle import Bundle, BundleConfig, fill
from nmt.config import DecodingConfig, ModelConfig
from nmt.errors import BundleError, ConfigError
from nmt.interop.defaults import NEVER
from nmt.interop.marian_layout import ACTIVATIONS, BIAS, EMBEDDING, REQUIRED, permuted, residual_order, their_names
from nmt.interop.renumber import FOREIGN_HIDDEN, FOREIGN_SHOWN, Pieces, renumber
from nmt.model.transformer import Transformer
from nmt.text.tokenizer import SpecialIds, Tokenizer

_TIED = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_COMPUTED = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_MAX_JSON_BYTES = 64 << 20
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
    tensors[EMBEDDING], tensors[BIAS] = _widened(folder, tensors, config["vocab_size"], len(extra), special.unk)
    generation = {**config, **_read_json(folder, "generation_config.json", needed=False)}
    bundle_config = _bundle_config(folder, config, generation, tensors, len(pieces), languages)
    bundle = Bundle(bundle_config, _model(folder, bundle_config, tensors), tokenizer)
    return bundle, [
        f"generation_config.json: {key} = {generation[key]!r} is not taken along"
        for key, neutral in _NOT_TAKEN_ALONG.items()
        if generation.get(key, neutral) not in (neutral, None)
    ]


def _read_json(folder: Path, name: str, *, needed: bool = True) -> dict[str, Any]:
    path = folder / name
    if not needed and not path.exists():
        return {}
    try:
        if path.exists() and (not path.is_file() or path.stat().st_size > _MAX_JSON_BYTES):
            raise BundleError(f"{path} is no regular file of at most {_MAX_JSON_BYTES:,} bytes.")
        table = json.loads(path.read_bytes())
        json.dumps(table, ensure_ascii=False).encode()  # no lone surrogates
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
    for key, (needed, silent) in REQUIRED.items():
        if config.get(key, silent) != needed:
            raise BundleError(
                f"{path}: {key} = {config.get(key, silent)!r} is not supported; models with {needed!r} can be imported."
            )
    for key in ("attention_heads", "ffn_dim"):
        if config.get(f"encoder_{key}") != config.get(f"decoder_{key}"):
            raise BundleError(f"{path}: encoder_{key} and decoder_{key} differ, which is not supported.")
    if config.get("decoder_vocab_size", config.get("vocab_size")) not in (None, config.get("vocab_size")):
        raise BundleError(f"{path}: decoder_vocab_size differs from vocab_size, which is not supported.")
    if config.get("activation_function") not in list(ACTIVATIONS):  # a list takes an unhashable value, too
        raise BundleError(
            f"{path}: activation_function = {config.get('activation_function')!r} is not supported; those of "
            f"{', '.join(ACTIVATIONS)} are."
        )


def _read_vocabulary(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The pieces of vocab.json in the order of their ids."""
    path = folder / "vocab.json"
    table = _read_json(folder, "vocab.json")
    pieces = {number: piece for piece, number in table.items() if type(number) is int}
    if (
        sorted(pieces) != list(range(len(table)))
        or len(table) != config.get("vocab_size")
        or type(config["vocab_size"]) is not int
    ):
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
    tied = [(name, tensors.pop(name)) for name in (EMBEDDING, *_TIED) if name in tensors]
    if not tied:
        raise BundleError(f"{path} has no tensor {EMBEDDING}.")
    for name, tensor in tied:
        if not torch.equal(tensor, tied[0][1]):
            raise BundleError(
                f"{path}: {name} differs from {tied[0][0]}; embeddings that are not tied are not supported."
            )
    tensors[EMBEDDING] = tied[0][1]
    return tensors


def _widened(
    folder: Path, tensors: Mapping[str, Tensor], vocab_size: int, extra: int, unk: int
) -> tuple[Tensor, Tensor]:
    """Embedding and output bias with `extra` more pieces: embedded as <unk>, never generated. Shapes: (V, D), (V,)."""
    embedding_VD, bias_V = tensors[EMBEDDING], tensors.get(BIAS, torch.zeros(vocab_size)).flatten()
    if embedding_VD.dim() != 2 or len(embedding_VD) != vocab_size or len(bias_V) != vocab_size:
        raise BundleError(f"{folder}: {EMBEDDING} or {BIAS} has another size than vocab.json.")
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
                activation=ACTIVATIONS[config["activation_function"]],  # type: ignore[arg-type]
                tied_embeddings="all",
                output_bias=bool(tensors[BIAS].any()),
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
        model = Transformer(config.model, config.src_vocab_size, config.tgt_vocab_size)
    order_D = residual_order(config.model.d_model)
    weights, used = {}, {BIAS}
    for name, parameter in model.named_parameters():
        theirs = their_names(name)
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
        weights[name] = permuted(name, joined, order_D)
    if tensors.keys() - used:
        raise BundleError(f"{folder}: tensor {min(tensors.keys() - used)} is of an architecture that is not supported.")
    fill(model, weights)
    return model.eval()
