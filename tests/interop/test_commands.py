"""`nmt model import` and `nmt model export` on the command line."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import test_cli
import tiny
from test_cli import Nmt, refused

run = test_cli.run
MARIAN = Path(__file__).parent / "marian"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with tiny.one_thread():
        yield


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
    refused(run("model", "export", bundle, "--format", "onnx", "--out", out), 2, "marian-hf and ctranslate2 can")
    refused(run("model", "export", bundle, "--format", "marian-hf", "--out", out), 2, "pre")
    refused(run("model", "export", bundle, "--format", "marian-hf", "--out", bundle), 2, "exists")
    torn = shutil.copytree(MARIAN, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((MARIAN / "model.safetensors").read_bytes()[:-9])
    refused(run("model", "import", torn, "--format", "marian-hf", "--out", out), 5, "model.safetensors")
    assert not out.exists()
