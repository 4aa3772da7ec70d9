"""MarianMT folders in and out, against what transformers made of the same model (see make_marian.py)."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tiny
from nmt.bundle import Bundle
from nmt.decoding.translator import Translator
from nmt.errors import BundleError, ConfigError, NmtError
from nmt.interop import marian_import
from nmt.interop.defaults import NEVER
from nmt.interop.marian_export import export_marian
from nmt.interop.marian_import import import_marian
from nmt.training.run import train

Figure = Callable[..., None]
FOLDER = Path(__file__).parent / "marian"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
LINES: list[str] = EXPECTED["lines"]
VOCABULARY: dict[str, int] = json.loads((FOLDER / "vocab.json").read_text())
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam4": {"beam_size": 4, "length_penalty": 0.0},
    "beam4_power": {},  # the model's own defaults
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def imported() -> Bundle:
    bundle, warnings = import_marian(FOLDER)
    assert warnings == []
    return bundle


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the folder, to be changed."""
    return shutil.copytree(FOLDER, tmp_path / "copy")


def change(path: Path, **keys: object) -> None:
    """Set keys of a JSON file; None deletes one."""
    table = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({key: value for key, value in table.items() if value is not None}))


def change_tensors(folder: Path, **tensors: Tensor | None) -> None:
    path = folder / "model.safetensors"
    found = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, path)


# In


@pytest.mark.parametrize("search", SEARCHES)
def test_translates_as_transformers_does(imported: Bundle, figure: Figure, search: str) -> None:
    found = Translator(imported, decoding=SEARCHES[search]).translations(LINES)
    same = sum(list(t.hypotheses[0].ids) == ids for t, ids in zip(found, EXPECTED[search]["ids"], strict=True))
    assert [t.text for t in found] == EXPECTED[search]["texts"] or same < len(LINES)
    others = [key for key in SEARCHES if key != search]
    for other in others:  # the control: the searches find different translations
        assert EXPECTED[other]["ids"] != EXPECTED[search]["ids"]
    figure(f"import_marian_{search}", f"{same} of {len(LINES)} lines as transformers", "50", same == len(LINES) == 50)


def worst_logit(bundle: Bundle) -> float:
    """The largest difference at the first and the last position of some lines, over their pieces."""
    worst = 0.0
    for line, ids, expected in zip(LINES, EXPECTED["greedy"]["ids"], EXPECTED["logits"], strict=False):
        [src] = bundle.tokenizer.encode_src([line])
        with torch.inference_mode():
            logits = bundle.model(torch.tensor([src]), torch.tensor([[bundle.tokenizer.special.bos, *ids]]))
        worst = max(worst, float((logits[0, [0, -1], : len(VOCABULARY)] - torch.tensor(expected)).abs().max()))
    return worst


def test_logits_are_those_of_transformers(imported: Bundle, figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    worst = worst_logit(imported)
    figure("import_marian_logits", f"{worst:.1e} apart at most", "<= 1e-4", worst <= 1e-4)
    monkeypatch.setattr(marian_import, "residual_order", torch.arange)  # the control: positions are not as theirs
    unpermuted, _ = import_marian(FOLDER)
    assert worst_logit(unpermuted) > 0.1
    translations = Translator(unpermuted, decoding={"beam_size": 1}).translate(LINES)
    assert sum(a == b for a, b in zip(translations, EXPECTED["greedy"]["texts"], strict=True)) < 40


def test_pieces_and_special_ids_are_theirs(imported: Bundle) -> None:
    tokenizer, pad = imported.tokenizer, VOCABULARY["<pad>"]
    special = tokenizer.special
    assert (special.pad, special.unk, special.bos, special.eos) == (pad, 1, pad, 0)
    pieces = [*VOCABULARY, "▁not"]  # the last one is of source.spm alone
    assert tokenizer.tgt_pieces(range(len(pieces))) == tokenizer.src_pieces(range(len(pieces))) == pieces
    known = [[number if number < len(VOCABULARY) else 1 for number in ids] for ids in tokenizer.encode_src(LINES)]
    assert known == EXPECTED["src_ids"]
    assert tokenizer.encode_src(LINES) != EXPECTED["src_ids"]  # the control: ▁not occurs
    embedding, bias = imported.model.src_embedding.weight, imported.model.output.bias
    assert torch.equal(embedding[-1], embedding[1]) and bias[-1] == NEVER
    assert not {len(VOCABULARY), 1} & {
        number for ids in tokenizer.encode_tgt(["der hund", "mann not"]) for number in ids[:2]
    }
    assert tokenizer.decode([VOCABULARY["▁dog"], VOCABULARY["▁hund"], pad, 0]) == "dog hund"


def test_decode_defaults_are_theirs(imported: Bundle, copy: Path) -> None:
    rules = imported.config.decoding
    assert (rules.beam_size, rules.length_penalty, rules.length_penalty_type) == (4, 1.0, "power")
    assert (rules.max_length, rules.min_length) == (62, 0)  # theirs is 64, with start and end
    change(copy / "generation_config.json", num_beams=6, min_length=3, no_repeat_ngram_size=2, repetition_penalty=1.5)
    bundle, warnings = import_marian(copy)
    rules = bundle.config.decoding
    assert (rules.beam_size, rules.min_length, rules.no_repeat_ngram) == (6, 2, 2)
    assert warnings == ["generation_config.json: repetition_penalty = 1.5 is not taken along"]
    (copy / "generation_config.json").unlink()
    assert import_marian(copy, "en", "fr")[0].config.decoding.beam_size == 1
    assert import_marian(copy, "en", "fr")[0].config.tgt_lang == "fr"


def test_an_import_is_fine_tuned(imported: Bundle, tmp_path: Path, figure: Figure) -> None:
    """Two updates, through tokenizer, cache and loss, from the logits of the import."""
    bundle = tiny.save(imported, tmp_path / "bundle")
    corpus = tiny.write(tmp_path / "data", 100, training={"max_updates": 2, "init_from": str(bundle)})
    tables = corpus.config.model_dump(exclude_none=True, exclude_unset=True)
    del tables["model"]
    config = tiny.parse_config(tables, where="fine-tuning")
    train(config, tmp_path / "run", device="cpu", cache=corpus.cache, quiet=True)
    tuned = Bundle.load(tmp_path / "run")
    assert tuned.config.model.output_bias and tuned.config.model.activation == "silu"
    before, after = dict(imported.model.named_parameters()), dict(tuned.model.named_parameters())
    unchanged = [name for name in before if torch.equal(before[name], after[name])]
    figure("fine_tune_marian", f"{len(before) - len(unchanged)} of {len(before)} tensors learn", "all", not unchanged)


def refused(folder: Path, *said: str, error: type[NmtError] = BundleError) -> None:
    with pytest.raises(error) as caught:
        import_marian(folder)
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "bart"),
        ("scale_embedding", False),
        ("static_position_embeddings", False),
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("share_encoder_decoder_embeddings", False),
        ("tie_word_embeddings", False),
        ("activation_function", "gelu_new"),
        ("activation_function", []),
        ("decoder_ffn_dim", 64),
        ("decoder_attention_heads", 2),
        ("decoder_vocab_size", 64),
        ("vocab_size", 64),
        ("vocab_size", float(len(VOCABULARY))),
        ("d_model", 34),
        ("encoder_layers", 3),
        ("encoder_layers", 1),
        ("encoder_layers", "two"),
        ("decoder_start_token_id", 0),
        ("decoder_start_token_id", 99),
        ("eos_token_id", 5),
    ],
)
def test_other_architectures_are_refused(copy: Path, key: str, value: object) -> None:
    change(copy / "config.json", **{key: value})
    named = {"d_model": "d_model", "encoder_layers": "layer"}.get(key, key)
    refused(copy, str(copy), "5 in config.json" if key == "eos_token_id" else named)


def test_broken_folders_are_refused(copy: Path, tmp_path: Path) -> None:
    refused(tmp_path, "config.json", "cannot be read")
    for name in ("source.spm", "target.spm", "vocab.json"):
        (copy / name).rename(copy / "away")
        refused(copy, name)
        (copy / name).write_bytes(b"\x0a\xff not it")
        refused(copy, name)
        (copy / "away").rename(copy / name)
    (copy / "tokenizer_config.json").unlink()
    refused(copy, "--src-lang", error=ConfigError)
    change(copy / "vocab.json", **{">>fr<<": len(VOCABULARY)})
    change(copy / "config.json", vocab_size=len(VOCABULARY) + 1, decoder_vocab_size=len(VOCABULARY) + 1)
    (copy / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    refused(copy, "language codes", ">>fr<<")


def test_hostile_folders_are_refused(copy: Path, figure: Figure) -> None:
    """A pickle is not opened, a pipe not waited for, a gigabyte not read; a vocabulary must be one."""
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    pickled = pickle.dumps(Path("x"))

    def sparse(path: Path) -> None:
        path.touch()
        os.truncate(path, 1 << 30)

    attacks: dict[str, tuple[str, Callable[[Path], object]]] = {
        "a pickle for the weights": ("model.safetensors", lambda path: path.write_bytes(pickled)),
        "a pickle alone": ("model.safetensors", lambda path: (path.parent / "pytorch_model.bin").write_bytes(pickled)),
        "a pickle for the pieces": ("source.spm", lambda path: path.write_bytes(pickled)),
        "a pipe for the pieces": ("target.spm", os.mkfifo),
        "a pipe for the vocabulary": ("vocab.json", os.mkfifo),
        "a gigabyte of vocabulary": ("vocab.json", sparse),
        "a gigabyte of pieces": ("source.spm", sparse),
        "a link to a device": ("config.json", lambda path: path.symlink_to("/dev/zero")),
        "a vocabulary too deep": ("vocab.json", lambda path: path.write_text('{"a":' * 100_000)),
        "a vocabulary of floats": ("vocab.json", lambda path: path.write_text('{"</s>": 0.0, "<unk>": 1.0}')),
        "a vocabulary with a gap": ("vocab.json", lambda path: path.write_text('{"</s>": 0, "<unk>": 2}')),
        "a vocabulary of one number": ("vocab.json", lambda path: path.write_text('{"</s>": 0, "<unk>": 0}')),
        "a vocabulary of half a character": ("vocab.json", lambda path: path.write_text('{"\\ud800": 0}')),
    }
    clean = []
    for attack, (name, make) in attacks.items():
        (copy / name).unlink()
        make(copy / name)
        with pytest.raises(BundleError) as caught:
            import_marian(copy)
        clean += [attack] if name in str(caught.value) else []
        for path in copy.iterdir():
            path.unlink()
        for other, content in before.items():
            (copy / other).write_bytes(content)
    assert isinstance(import_marian(copy)[0], Bundle)  # the control
    figure("hostile_marian", f"{len(clean)} of {len(attacks)} refused by name", "all", len(clean) == len(attacks))


def test_broken_weights_are_refused(copy: Path) -> None:
    shared = load_file(copy / "model.safetensors")["model.shared.weight"]
    change_tensors(copy, lm_head__weight=shared.clone())
    assert isinstance(import_marian(copy)[0], Bundle)  # tied: it may be there
    change_tensors(copy, lm_head__weight=shared + 1)
    refused(copy, "lm_head.weight", "not tied")
    change_tensors(copy, lm_head__weight=None, odd__weight=shared.clone())
    refused(copy, "odd.weight")
    change_tensors(copy, odd__weight=None, model__encoder__layers__0__fc1__weight=torch.full((48, 32), torch.nan))
    refused(copy, "fc1.weight", "NaN")
    change_tensors(copy, model__encoder__layers__0__fc1__weight=torch.zeros(48, 31))
    refused(copy, "fc1.weight", "shape")
    change_tensors(copy, model__encoder__layers__0__fc1__weight=None)
    refused(copy, "no tensor model.encoder.layers.0.fc1.weight")
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    refused(copy, "no model.safetensors", "pytorch_model.bin", "save_pretrained")


# Out


def test_out_and_in_again(imported: Bundle, tmp_path: Path, figure: Figure) -> None:
    warnings = export_marian(imported, tmp_path)
    assert warnings == []
    theirs, ours = load_file(FOLDER / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    known = len(VOCABULARY)  # ours has one piece more
    ours["model.shared.weight"] = ours["model.shared.weight"][:known]
    ours["final_logits_bias"] = ours["final_logits_bias"][:, :known]
    assert ours.keys() == theirs.keys()
    worst = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    figure("export_of_import", f"{worst:.0e} between {len(theirs)} tensors at most", "<= 1e-6", worst <= 1e-6)
    again, _ = import_marian(tmp_path)
    assert again.config == imported.config.model_copy(update={"max_length": again.config.max_length})
    assert Translator(again).translate(LINES) == EXPECTED["beam4_power"]["texts"]


def test_what_marian_lacks_is_refused_by_name(tmp_path: Path) -> None:
    for said, bundle in {
        'norm = "pre"': tiny.random_bundle(norm="pre"),
        'activation = "swiglu"': tiny.random_bundle(norm="post", activation="swiglu"),
        'tied_embeddings = "none"': tiny.random_bundle(norm="post", tied_embeddings="none"),
        'tied_embeddings = "decoder"': tiny.random_bundle(norm="post", joint=False),
    }.items():
        with pytest.raises(ConfigError, match=said):
            export_marian(bundle, tmp_path)
    assert list(tmp_path.iterdir()) == []
    bundle = tiny.random_bundle(norm="post", decoding={"coverage_penalty": 0.2})
    warnings = export_marian(bundle, tmp_path)
    assert [warning.split(" ")[0] for warning in warnings] == ["decoding.coverage_penalty", "decoding.length_penalty"]
    again, _ = import_marian(tmp_path)
    assert Translator(again, decoding=bundle.config.decoding.model_dump()).translate(LINES) == Translator(
        bundle
    ).translate(LINES)


def test_a_character_that_only_the_vocabulary_has(imported: Bundle) -> None:
    """As MarianTokenizer of transformers numbers it: source.spm has no v, vocab.json has one of the target's."""
    assert imported.tokenizer.encode_src(["the v man"]) == [[8, 38, 61, 9, 0]]
