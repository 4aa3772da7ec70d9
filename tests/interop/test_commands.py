"""`nmt model import` and `nmt model export` on the command line."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import test_cli
import tiny
from nmt.bundle import Bundle
from nmt.config import DecodingConfig
from nmt.interop.ctranslate2 import _arguments
from nmt.interop.defaults import lost_defaults
from nmt.storage.manifest import damage
from test_cli import Nmt, refused

run = test_cli.run
MARIAN = Path(__file__).parent / "marian"


pytestmark = pytest.mark.usefixtures("one_thread")


def test_there_and_back(run: Nmt, tmp_path: Path) -> None:
    expected = json.loads((MARIAN / "expected.json").read_text())
    assert run("model", "import", MARIAN, "--format", "marian-hf", "--out", tmp_path / "a", "--quiet") == (0, "", "")
    assert run("model", "export", tmp_path / "a", "--format", "marian-hf", "--out", tmp_path / "hf", "-q")[0] == 0
    assert run("model", "import", tmp_path / "hf", "--format", "marian-hf", "--out", tmp_path / "b", "-q")[0] == 0
    lines = "".join(f"{line}\n" for line in expected["lines"]).encode()
    found = [run("translate", "-m", tmp_path / name, "-b", 1, "-q", stdin=lines) for name in "ab"]
    assert found[0] == found[1] and found[0][0] == 0
    assert found[0][1].splitlines() == expected["greedy"]["texts"]


def test_refusals(run: Nmt, tmp_path: Path) -> None:
    bundle = tiny.save(tiny.random_bundle(), tmp_path / "bundle")  # pre-norm
    out = tmp_path / "out"
    refused(run("model", "import", MARIAN, "--format", "fairseq", "--out", out), 2, "marian-hf can")
    refused(run("model", "import", tmp_path / "none", "--format", "marian-hf", "--out", out), 5, "none")
    refused(run("model", "export", bundle, "--format", "onnx", "--out", out), 2, "marian-hf, ctranslate2, nmt-fp16 can")
    refused(run("model", "export", bundle, "--format", "marian-hf", "--out", out), 2, "pre")
    refused(run("model", "export", bundle, "--format", "marian-hf", "--out", bundle), 2, "exists")
    torn = shutil.copytree(MARIAN, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((MARIAN / "model.safetensors").read_bytes()[:-9])
    refused(run("model", "import", torn, "--format", "marian-hf", "--out", out), 5, "model.safetensors")
    assert not out.exists()


def test_half_precision(run: Nmt, tmp_path: Path) -> None:
    bundle = tiny.random_bundle()
    model, out, text = tiny.save(bundle, tmp_path / "bundle"), tmp_path / "half", tmp_path / "text"
    (model / "README.md").write_text("A sheet.")
    text.write_text("the dog\na cat sees the man\n")
    code, said, _ = run("model", "export", model, "--format", "nmt-fp16", "--out", out, "--check", text)
    assert code == 0 and said.count("100.0% of 2 lines translated alike") == 2
    whole, half = ((folder / "model.safetensors").stat().st_size for folder in (model, out))
    assert half < 0.6 * whole and damage(out) is None and (out / "README.md").read_text() == "A sheet."
    pairs = zip(bundle.model.parameters(), Bundle.load(out).model.parameters(), strict=True)
    assert all(torch.equal(theirs, ours.half().float()) for ours, theirs in pairs)
    (model / "README.md").unlink()
    (model / "README.md").symlink_to(text)  # which may lead to anything, and no checksum covers it
    assert run("model", "export", model, "--format", "nmt-fp16", "--out", tmp_path / "again")[0] == 0
    assert not (tmp_path / "again" / "README.md").exists()
    with torch.no_grad():
        bundle.model.decoder_norm.weight.fill_(1e5)
    large = tiny.save(bundle, tmp_path / "large")
    command = ("model", "export", large, "--format", "nmt-fp16", "--out", tmp_path / "none")
    refused(run(*command), 5, "decoder_norm.weight go beyond 65,504, the most")
    assert not (tmp_path / "none").exists()


def test_ctranslate2_is_told_of_all_decode_defaults() -> None:
    assert _arguments(DecodingConfig()) == ["beam_size=4", "length_penalty=0.6"]
    keys = {"coverage_penalty": 0.2, "n_best": 2, "min_length": 3, "no_repeat_ngram": 4, "repetition_penalty": 1.5}
    theirs = ["coverage_penalty=0.2", "num_hypotheses=2", "min_decoding_length=3", "no_repeat_ngram_size=4"]
    assert _arguments(DecodingConfig(**keys))[2:] == [*theirs, "repetition_penalty=1.5"]
    lost = lost_defaults(DecodingConfig(sample=True, min_length_ratio=0.5), ("min_length_ratio", "sample"), "X")
    assert [warning.split(" ")[0] for warning in lost[:2]] == ["decoding.min_length_ratio", "decoding.sample"]
