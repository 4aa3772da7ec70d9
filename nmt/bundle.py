"""The bundle: a folder with all that translating needs, and how a MODEL argument finds one.

`config.json` (languages, shapes, decode defaults, the recipe), `model.safetensors`, `tokenizer.model` or
`tokenizer.src.model` + `tokenizer.tgt.model`, `manifest.json`. A checkpoint of a run is a bundle with training state
beside it. Opening a bundle runs no code from it and trusts nothing in it: checked are, one after the other, its files'
names, kinds and sizes, the sums of the manifest, config, tokenizer, names and shapes of tensors, and their numbers.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as deserialize_tensors
from safetensors.torch import save_file
from torch import Tensor

from nmt.config import DecodingConfig, ModelConfig, Section
from nmt.errors import BundleError, ConfigError, StorageError
from nmt.model.build import build_model
from nmt.model.seq2seq import Seq2Seq
from nmt.storage.atomic import write_file
from nmt.storage.manifest import MANIFEST, README, damage
from nmt.text.spm_model import MAX_MODEL_BYTES
from nmt.text.tokenizer import Tokenizer

FORMAT_VERSION = 1
# All that may lie in the folder of a bundle or a checkpoint, and the most bytes of what is read whole.
_MOST_BYTES = {
    "config.json": 1 << 20,
    "tokenizer.model": MAX_MODEL_BYTES,
    "tokenizer.src.model": MAX_MODEL_BYTES,
    "tokenizer.tgt.model": MAX_MODEL_BYTES,
    "state.json": 16 << 20,
    **dict.fromkeys((MANIFEST, README, "model.safetensors", "optimizer.safetensors"), 1 << 60),
}
_MAX_HEADER_BYTES = 4 << 20  # of a safetensors file
_MOST_CHOICES = 5  # of a checkpoint of a run that is being trained
_DTYPES = ("F32", "F16", "BF16")


class BundleConfig(Section):
    """`config.json`."""

    format_version: int = FORMAT_VERSION
    src_lang: str
    tgt_lang: str
    src_vocab_size: int = Field(ge=1, le=10_000_000)
    tgt_vocab_size: int = Field(ge=1, le=10_000_000)
    max_length: int = Field(ge=1, le=1_000_000)  # pieces of the longest source in training, EOS included
    one_sentence_share: float | None = Field(default=None, ge=0.0, le=1.0)  # of its source lines; None: not known
    model: ModelConfig
    decoding: DecodingConfig
    recipe: dict[str, Any] = Field(default_factory=dict)  # the resolved training config, for the reader
    tags: list[str] = Field(default_factory=list)  # of the corpora it was trained on


@dataclass
class Bundle:
    """A model ready to translate: its config, weights and tokenizer."""

    config: BundleConfig
    model: Seq2Seq
    tokenizer: Tokenizer

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> "Bundle":
        """Load a MODEL: a bundle, or a run folder (see `find_bundle`).

        The config is checked before anything is allocated, tensor names and shapes before they are read.
        Raises: BundleError.
        """
        for _ in range(_MOST_CHOICES):
            folder = find_bundle(Path(path))
            try:
                return cls._load_folder(folder, device)
            except (BundleError, OSError):
                if folder.exists():
                    raise
            # else: a checkpoint that the run being trained has just deleted; another one is the best now
        raise BundleError(f"The checkpoints of {path} are deleted faster than they can be read.")

    @classmethod
    def _load_folder(cls, folder: Path, device: str | torch.device) -> "Bundle":
        _check_files(folder)
        problem = damage(folder)
        if problem:
            raise BundleError(f"The model {folder} is damaged: {problem}.")
        config = _read_config(folder)
        tokenizer = _checked_tokenizer(folder, config)
        _check_size(folder / "model.safetensors", config.model)
        with torch.device("meta"):
            model = build_model(config.model, config.src_vocab_size, config.tgt_vocab_size)
        _check_tensors(folder / "model.safetensors", model)
        fill(model, _read_tensors(folder / "model.safetensors"))
        return cls(config, model.to(device).eval(), tokenizer)

    def write_into(self, folder: Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write the bundle's files (but the manifest) into an existing folder.

        Args:
            weights: as `weights_of` gives them; those of the model by default.
        Raises: StorageError, OSError.
        """
        config = self.config.model_dump(exclude_none=True)
        write_file(folder / "config.json", json.dumps(config, indent=1, ensure_ascii=False).encode())
        write_tensors(folder / "model.safetensors", weights_of(self.model) if weights is None else weights)
        if self.tokenizer.joint:
            write_file(folder / "tokenizer.model", self.tokenizer.src_model)
        else:
            write_file(folder / "tokenizer.src.model", self.tokenizer.src_model)
            write_file(folder / "tokenizer.tgt.model", self.tokenizer.tgt_model)


def weights_of(model: Seq2Seq, *, copy: bool = False) -> dict[str, Tensor]:
    """The model's parameters on the CPU, tied ones once. Without `copy` they may share its memory."""
    return {name: p.detach().to("cpu", copy=copy).contiguous() for name, p in model.named_parameters()}


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file without a copy in memory; the caller syncs it. Raises: StorageError."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(tensors, path, metadata)
        path.chmod(mode)  # safetensors lets nobody else read it
    except SafetensorError as error:
        size = sum(tensor.nbytes for tensor in tensors.values())
        raise StorageError(
            f"Cannot write {path} ({size:,} bytes): {error}. Nothing that was there before is lost; free space or "
            f"permissions, then run the same command again."
        ) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises: BundleError."""
    try:
        tensors: dict[str, Tensor] = deserialize_tensors(path.read_bytes())
    except SafetensorError as error:
        raise BundleError(f"{path} is no safetensors file: {error}.") from error
    return tensors


def load_weights(model: Seq2Seq, weights: Mapping[str, Tensor]) -> None:
    """Copy the tensors of `weights_of` into a model of the same shape; tied ones follow. Raises: BundleError."""
    different = weights.keys() ^ dict(model.named_parameters()).keys()
    if different:
        raise BundleError(f"These weights are of another model: they differ in {', '.join(sorted(different)[:5])}.")
    try:
        model.load_state_dict(weights, strict=False)  # not strict: names of tied parameters are absent
    except RuntimeError as error:
        raise BundleError(f"These weights are of another model: {error}") from error


def fill(model: Seq2Seq, weights: Mapping[str, Tensor]) -> None:
    """Give a model on the meta device its weights, checked by the caller, in fp32; tied ones follow."""
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=False, assign=True)
    model.tie_output()


def find_bundle(path: Path) -> Path:
    """The bundle folder that MODEL means.

    A bundle is itself; of a run folder it is `bundle/` if the run has ended, else the best checkpoint so far.
    Raises: BundleError.
    """
    if (path / "config.json").is_file():
        return path
    if (path / "bundle" / "config.json").is_file():
        return path / "bundle"
    checkpoints = [c for c in list_checkpoints(path) if damage(c, hashes=False) is None]
    if checkpoints:
        _check_files(checkpoints[-1])
        try:
            best = int(json.loads((checkpoints[-1] / "state.json").read_bytes())["best_update"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BundleError(f"The checkpoint {checkpoints[-1]} is damaged: state.json cannot be read.") from error
        return next((c for c in checkpoints if c.name == checkpoint_name(best)), checkpoints[-1])
    if (path / "config.toml").is_file():
        raise BundleError(f"The run {path} has not saved a checkpoint yet: the first comes with its first validation.")
    what = "does not exist" if not path.exists() else "has no config.json and is no run folder"
    raise BundleError(
        f"{path} is no model: it {what}. Give a bundle folder (config.json, model.safetensors, tokenizer.model) or the "
        f"run folder of nmt train."
    )


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a bundle folder. Raises: BundleError."""
    joint, src, tgt = (folder / f"tokenizer.{part}model" for part in ("", "src.", "tgt."))
    try:
        return Tokenizer.from_files(joint) if joint.is_file() else Tokenizer.from_files(src, tgt)
    except ConfigError as error:
        raise BundleError(f"The model {folder} has no tokenizer. {error}") from error
    except BundleError as error:
        raise BundleError(f"The model {folder}: {error}") from error


def checkpoint_name(update: int) -> str:
    """The folder name of a checkpoint."""
    return f"ckpt-{update:06d}"


def list_checkpoints(run: Path) -> list[Path]:
    """The committed checkpoints of a run folder, oldest first."""
    found = [p for p in (run / "checkpoints").glob("ckpt-*") if p.name.removeprefix("ckpt-").isdecimal()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("ckpt-")))


def _check_files(folder: Path) -> None:
    """Refuse what is no file of a bundle before any is opened; a link to one is one. Raises: BundleError."""
    for path in sorted(folder.iterdir()):
        if path.name not in _MOST_BYTES:
            raise BundleError(f"{folder} holds {path.name}, which is no file of a model of nmt: move it elsewhere.")
        if not path.is_file():
            raise BundleError(f"{path} is no regular file, so no file of a model.")
        if path.stat().st_size > (most := _MOST_BYTES[path.name]):
            raise BundleError(f"{path} is larger than {most:,} bytes: it is no {path.name} of nmt.")


def _parse_json(text: bytes) -> Any:
    """JSON without a key that is there twice, of which every reader takes another. Raises: ValueError."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(keys := dict(pairs)) < len(pairs):
            raise ValueError("a key is there twice")
        return keys

    return json.loads(text, object_pairs_hook=table)


def _read_config(folder: Path) -> BundleConfig:
    path = folder / "config.json"
    try:
        tables = _parse_json(path.read_bytes())
        json.dumps(tables, ensure_ascii=False).encode()  # no lone surrogates
        version = tables.get("format_version") if isinstance(tables, dict) else None
        if version != FORMAT_VERSION:
            raise BundleError(
                f"{path} has format_version {version!r}; this nmt reads {FORMAT_VERSION}. Use the nmt that wrote it."
            )
        config = BundleConfig.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise BundleError(f"{path} is not a valid model config: {key}: {first['msg']}.") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}.") from error
    if config.model.tied_embeddings == "all" and config.src_vocab_size != config.tgt_vocab_size:
        raise BundleError(
            f'{path} is not a valid model config: tied_embeddings = "all" with {config.src_vocab_size:,} source and '
            f"{config.tgt_vocab_size:,} target pieces."
        )
    return config


def _checked_tokenizer(folder: Path, config: BundleConfig) -> Tokenizer:
    tokenizer = read_tokenizer(folder)
    sizes = (tokenizer.src_vocab_size, tokenizer.tgt_vocab_size)
    if sizes != (config.src_vocab_size, config.tgt_vocab_size):
        raise BundleError(
            f"The tokenizer of {folder} has {sizes[0]:,} source and {sizes[1]:,} target pieces, its config.json says "
            f"{config.src_vocab_size:,} and {config.tgt_vocab_size:,}: they are not of one model."
        )
    return tokenizer


def _check_size(path: Path, shape: ModelConfig) -> None:
    """Refuse a config of many more weights than there are bytes, without building its layers, which takes seconds."""
    layers, width = shape.num_encoder_layers + shape.num_decoder_layers, shape.d_model
    # Of a layer: attention and the feed-forward part, or the cells of both directions.
    attention = 2 * width + 2 * shape.kv_heads * shape.head_dim
    fewest = 2 * layers * width * (3 * width if shape.type == "rnn" else attention + 2 * shape.d_ff)  # in 16 bits
    if not path.is_file() or path.stat().st_size < fewest:
        raise BundleError(f"{path} is no safetensors file of the {fewest:,} bytes that config.json asks for at least.")


def _check_tensors(path: Path, model: Seq2Seq) -> None:
    """Compare names and shapes with those that the config asks for, reading the header alone."""
    wanted = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _MAX_HEADER_BYTES:
                raise ValueError(f"its header is longer than {_MAX_HEADER_BYTES:,} bytes")
            _parse_json(file.read(size))
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 # no mapping
            found = {name: tensor.get_shape() for name, tensor in slices.items()}
            dtypes = {name: tensor.get_dtype() for name, tensor in slices.items()}
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} is no safetensors file: {error}.") from error
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise BundleError(
                f"{path}: tensor {name} has shape {found.get(name, 'none')}, config.json asks for "
                f"{wanted.get(name, 'none')}."
            )
        if dtypes[name] not in _DTYPES:
            raise BundleError(f"{path}: tensor {name} has dtype {dtypes[name]}; weights are {', '.join(_DTYPES)}.")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 # no mapping
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise BundleError(f"{path}: tensor {name} holds NaN or infinity.")
    return tensors
