"""The bundle: a round trip that is bit-equal, every damaged or mismatched thing refused, and how MODEL is found."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from nmt.bundle import Bundle, find_bundle, list_checkpoints, weights_of
from nmt.config import TrainingConfig
from nmt.errors import BundleError
from nmt.storage.manifest import MANIFEST, manifest_of
from nmt.training.checkpoint import Snapshot, TrainState, save_checkpoint
from nmt.training.optim import make_optimizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.save(tiny.random_bundle(), tmp_path / "bundle")


def sign(folder: Path) -> None:
    """Write the manifest anew, as one who tampers would."""
    (folder / MANIFEST).write_bytes(manifest_of(folder))


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    tables = json.loads(path.read_bytes())
    change(tables)
    path.write_text(json.dumps(tables))
    sign(folder)


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    sign(folder)


def logits(bundle: Bundle) -> torch.Tensor:
    src = torch.tensor([[4, 9, 5, 3], [7, 3, 0, 0]])
    with torch.inference_mode():
        result: torch.Tensor = bundle.model(src, torch.tensor([[2, 6, 8], [2, 5, 5]]), src != 0)
    return result


# Round trip


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_round_trip_is_bit_equal(tmp_path: Path, joint: bool, norm: str) -> None:
    bundle = tiny.random_bundle(3, joint, norm=norm, activation="swiglu")
    loaded = Bundle.load(tiny.save(bundle, tmp_path / "b"))
    assert loaded.config == bundle.config and not loaded.model.training
    assert loaded.tokenizer.sha256 == bundle.tokenizer.sha256 and loaded.tokenizer.joint == joint
    assert torch.equal(logits(loaded), logits(bundle))
    assert not torch.equal(logits(tiny.random_bundle(4, joint, norm=norm, activation="swiglu")), logits(bundle))
    names = {path.name for path in (tmp_path / "b").iterdir()}
    tokenizers = {"tokenizer.model"} if joint else {"tokenizer.src.model", "tokenizer.tgt.model"}
    assert names == {"config.json", "manifest.json", "model.safetensors"} | tokenizers


def test_separate_tokenizers_may_differ_in_size(tmp_path: Path) -> None:
    loaded = Bundle.load(tiny.save(tiny.random_bundle(joint=False), tmp_path / "b"))
    assert loaded.tokenizer.src_vocab_size != loaded.tokenizer.tgt_vocab_size == loaded.model.output.weight.shape[0]


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_tied_weights_stay_tied(tmp_path: Path, tied: str) -> None:
    model = Bundle.load(tiny.save(tiny.random_bundle(tied_embeddings=tied), tmp_path / "b")).model
    assert (model.output.weight is model.tgt_embedding.weight) == (tied != "none")
    assert (model.src_embedding.weight is model.tgt_embedding.weight) == (tied == "all")
    stored = load_file(tmp_path / "b" / "model.safetensors")
    assert ("output.weight" in stored) == (tied == "none") and stored.keys() == weights_of(model).keys()


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (tiny.save(tiny.random_bundle(1), tmp_path / name) for name in "ab")
    assert all((two / path.name).read_bytes() == path.read_bytes() for path in one.iterdir())


def test_language_names_and_recipe_may_hold_any_text(tmp_path: Path) -> None:
    bundle = tiny.random_bundle()
    bundle.config = bundle.config.model_copy(update={"recipe": {"data": {"dir": "/tmp/Bücher „x“"}}})
    assert Bundle.load(tiny.save(bundle, tmp_path / "b")).config.recipe["data"]["dir"] == "/tmp/Bücher „x“"


# Damage


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model"])
def test_a_flipped_byte(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(BundleError, match=rf"{folder} is damaged: {name} was changed"):
        Bundle.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.model", "manifest.json"])
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(BundleError, match=rf"damaged: {name} is missing"):
        Bundle.load(folder)


@pytest.mark.parametrize(
    ("name", "said"), [("model.safetensors", "no safetensors"), ("tokenizer.model", "no tokenizer")]
)
def test_a_missing_file_that_no_manifest_names(folder: Path, name: str, said: str) -> None:
    (folder / name).unlink()
    sign(folder)
    with pytest.raises(BundleError, match=said):
        Bundle.load(folder)


def test_a_truncated_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BundleError, match="its manifest says"):
        Bundle.load(folder)
    sign(folder)
    with pytest.raises(BundleError, match="no safetensors file"):
        Bundle.load(folder)


# What a manifest that was signed again does not hide


@pytest.mark.parametrize("version", [2, 0, "1", None, True])
def test_another_format_version(folder: Path, version: object) -> None:
    edit_config(folder, lambda tables: tables.update(format_version=version))
    with pytest.raises(BundleError, match="format_version"):
        Bundle.load(folder)


def test_no_format_version(folder: Path) -> None:
    edit_config(folder, lambda tables: tables.pop("format_version"))
    with pytest.raises(BundleError, match="format_version None; this nmt reads 1"):
        Bundle.load(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(colour="red"), "colour: Extra inputs"),
        (lambda t: t["model"].update(depth=3), r"model\.depth: Extra inputs"),
        (lambda t: t.pop("src_lang"), "src_lang: Field required"),
        (lambda t: t["model"].update(d_model="16"), r"model\.d_model: "),
        (lambda t: t["model"].update(d_model=10**9), r"model\.d_model: "),
        (lambda t: t["model"].update(num_heads=3), r"model: .*not divisible"),
        (lambda t: t.update(src_vocab_size=-1), "src_vocab_size: "),
        (lambda t: t.update(model=[]), "model: "),
    ],
)
def test_a_config_of_another_shape(folder: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    edit_config(folder, change)
    with pytest.raises(BundleError, match=said) as caught:
        Bundle.load(folder)
    assert str(folder / "config.json") in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff\xfe", "[" * 100_000, '{"format_version": 1e400}'])
def test_a_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    sign(folder)
    with pytest.raises(BundleError, match=r"config\.json"):
        Bundle.load(folder)


def test_a_config_that_is_too_long(folder: Path) -> None:
    edit_config(folder, lambda tables: tables.update(recipe={"x": "y" * (1 << 20)}))
    with pytest.raises(BundleError, match="larger than 1,048,576 bytes"):
        Bundle.load(folder)


def test_a_huge_model_is_refused_before_it_is_allocated(folder: Path) -> None:
    """8192 wide, 65536 inside, 128 + 128 layers: 400 billion parameters, which would not fit this machine."""
    huge = {"d_model": 8192, "d_ff": 65536, "num_encoder_layers": 128, "num_decoder_layers": 128}
    edit_config(folder, lambda tables: tables["model"].update(huge))
    with pytest.raises(BundleError, match=r"model\.safetensors is no .* of the 687,194,767,360 bytes that config"):
        Bundle.load(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update({"encoder_norm.bias": torch.zeros(17)}), r"encoder_norm.bias has shape \[17\].*\[16\]"),
        (lambda t: t.update({"encoder_norm.bias": torch.zeros(16, 1)}), r"has shape \[16, 1\]"),
        (lambda t: t.pop("encoder_norm.bias"), "encoder_norm.bias has shape none"),
        (lambda t: t.update(extra=torch.zeros(2)), r"extra has shape \[2\], config.json asks for none"),
        (lambda t: t["encoder_norm.bias"].fill_(torch.nan), "encoder_norm.bias holds NaN or infinity"),
        (lambda t: t["encoder_norm.bias"][3:4].fill_(-torch.inf), "encoder_norm.bias holds NaN or infinity"),
        (lambda t: t.clear(), "bytes that config.json asks for at least"),
    ],
)
def test_tensors_of_another_model(folder: Path, change: Callable[[dict[str, torch.Tensor]], object], said: str) -> None:
    edit_tensors(folder, change)
    with pytest.raises(BundleError, match=said):
        Bundle.load(folder)


def test_a_tokenizer_of_another_size(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.model").write_bytes(tiny.tokenizer(joint=False).tgt_model)
    sign(folder)
    with pytest.raises(BundleError, match="they are not of one model"):
        Bundle.load(folder)


@pytest.mark.parametrize("data", [b"", b"not a tokenizer", b"\x00" * 100])
def test_a_tokenizer_that_is_none(folder: Path, data: bytes) -> None:
    (folder / "tokenizer.model").write_bytes(data)
    sign(folder)
    with pytest.raises(BundleError, match="tokenizer"):
        Bundle.load(folder)


def test_all_tied_with_two_vocabularies(tmp_path: Path) -> None:
    folder = tiny.save(tiny.random_bundle(joint=False), tmp_path / "b")
    edit_config(folder, lambda tables: tables["model"].update(tied_embeddings="all"))
    with pytest.raises(BundleError, match="tied_embeddings"):
        Bundle.load(folder)


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_not_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (folder / "model.safetensors").write_bytes(pickle.dumps(_Bomb(mark)))
    sign(folder)
    with pytest.raises(BundleError, match="no safetensors file"):
        Bundle.load(folder)
    assert not mark.exists()
    pickle.loads((folder / "model.safetensors").read_bytes())  # noqa: S301 # the control: it would have done harm
    assert mark.exists()


# Where MODEL is


def checkpoints(run: Path, scores: dict[int, float]) -> None:
    bundle, state = tiny.random_bundle(), TrainState()
    optimizer = make_optimizer(bundle.model, TrainingConfig(max_updates=1))
    for update, score in scores.items():
        state.update = update
        state.add_score(score)
        save_checkpoint(run, Snapshot.take(bundle, optimizer, state))


def test_a_bundle_is_itself_and_a_run_with_one_is_that(tmp_path: Path) -> None:
    bundle = tiny.save(tiny.random_bundle(), tmp_path / "run" / "bundle")
    checkpoints(tmp_path / "run", {5: 1.0})
    assert find_bundle(bundle) == bundle == find_bundle(tmp_path / "run")


def test_a_run_with_checkpoints_is_its_best(tmp_path: Path) -> None:
    checkpoints(tmp_path, {5: 1.0, 10: 3.0, 15: 2.0})
    assert find_bundle(tmp_path).name == "ckpt-000010"
    assert Bundle.load(tmp_path).config.src_lang == "en"
    (tmp_path / "checkpoints" / "ckpt-000010" / "model.safetensors").unlink()
    assert find_bundle(tmp_path).name == "ckpt-000015"  # the best is damaged: the newest whole one


def test_a_state_that_cannot_be_read(tmp_path: Path) -> None:
    checkpoints(tmp_path, {5: 1.0})
    state = list_checkpoints(tmp_path)[0] / "state.json"
    state.write_bytes(b"x" * state.stat().st_size)
    with pytest.raises(BundleError, match="damaged"):
        Bundle.load(tmp_path)


@pytest.mark.parametrize(("name", "said"), [("nowhere", "does not exist"), (".", "and is no run folder")])
def test_no_model(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(BundleError, match=said) as caught:
        find_bundle(tmp_path / name)
    assert caught.value.exit_code == 5


def test_who_may_read_the_config_may_read_the_weights(tmp_path: Path) -> None:
    folder = tiny.save(tiny.random_bundle(), tmp_path / "bundle")
    assert len({(folder / name).stat().st_mode for name in ("config.json", "model.safetensors")}) == 1
