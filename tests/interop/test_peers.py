"""Exports, loaded by the programs that they are for: `nmt model export --check` run by a python that has them.

That python lacks tomli_w, which it borrows from this one. Without peers/hf (see `make bench-train`) the tests skip.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import tiny
from figures import ROOT
from nmt.bundle import Bundle
from nmt.interop.marian_import import import_marian

PYTHON = ROOT / "peers" / "hf" / "bin" / "python"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON.exists(), reason="peers/hf is not here")]
RATES = re.compile(r"beam (\d): ([\d.]+)% of (\d+) lines translated alike")


def random_bundle(**model: Any) -> Bundle:
    """Random, but for what training would teach any model: <pad>, <s> and <unk> never come, </s> comes at some time."""
    rules = {"max_length_extra": 200, "length_penalty": 1.0, "length_penalty_type": "power"}
    shape = {"num_encoder_layers": 2, "num_decoder_layers": 2, "output_bias": True, **model}
    bundle = tiny.random_bundle(decoding=rules, **shape)
    special, bias = bundle.tokenizer.special, bundle.model.output.bias
    with torch.no_grad():
        bias.copy_(torch.randn(len(bias)))
        bias[[special.pad, special.bos, special.unk]] = -50.0
        bias[special.eos] = 8.0
    return bundle


def export(bundle: Bundle, format: str, folder: Path, lines: list[str], code: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of an export that is checked; `code` runs first."""
    tiny.save(bundle, folder / "bundle")
    (folder / "lines").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "borrowed").mkdir()
    (folder / "borrowed" / "tomli_w").symlink_to(Path(tomli_w.__file__).parent)
    options = ["--format", format, "--out", folder / "out", "--check", folder / "lines", "--quiet"]
    command = f"{code}\nimport sys\nfrom nmt.cli import main\nsys.argv[0] = 'nmt'\nmain()"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder / 'borrowed'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [PYTHON, "-c", command, "model", "export", folder / "bundle", *options],
        env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


POST: list[dict[str, Any]] = [{"norm": "post", "activation": name} for name in ("relu", "gelu", "silu")]
PRE: list[dict[str, Any]] = [{"norm": "pre", "activation": name} for name in ("relu", "gelu", "silu", "swiglu")]
CASES = [("marian-hf", model) for model in POST] + [("ctranslate2", model) for model in [*POST, *PRE]]


@pytest.mark.parametrize(("format", "model"), CASES, ids=[f"{f}-{m['norm']}-{m['activation']}" for f, m in CASES])
def test_exports_translate_alike(
    tmp_path: Path, figure: Callable[..., None], format: str, model: dict[str, Any]
) -> None:
    lines, _ = tiny.sentences(50, seed=7)
    code, out, err = export(random_bundle(**model), format, tmp_path, lines)
    assert (code, err) == (0, ""), (code, out, err)
    rates = {beam: float(rate) for beam, rate, _ in RATES.findall(out)}
    name = f"export_{format}_{model['norm']}_{model['activation']}"
    figure(name, " ".join(f"beam{b}: {r}%" for b, r in rates.items()), ">= 98 %", min(rates.values()) >= 98.0)
    assert rates.keys() == {"1", "4"}


@pytest.mark.parametrize("format", ["marian-hf", "ctranslate2"])
def test_an_import_goes_out_again(tmp_path: Path, figure: Callable[..., None], format: str) -> None:
    lines, _ = tiny.sentences(50, seed=8)
    code, out, err = export(import_marian(Path(__file__).parent / "marian")[0], format, tmp_path, lines)
    assert (code, err) == (0, ""), (code, out, err)
    rates = {beam: float(rate) for beam, rate, _ in RATES.findall(out)}
    figure(
        f"export_import_{format}",
        " ".join(f"beam{b}: {r}%" for b, r in rates.items()),
        "100 %",
        min(rates.values()) == 100,
    )


@pytest.mark.parametrize("format", ["marian-hf", "ctranslate2"])
def test_a_wrong_export_is_found(tmp_path: Path, format: str) -> None:
    """The control: positions as the other program has them by itself, on weights that are not permuted."""
    wrong = {
        "marian-hf": "import torch, nmt.interop.marian_export as m; m.residual_order = torch.arange",
        "ctranslate2": "import nmt.interop.ctranslate2 as m, torch; m.sinusoidal = lambda n, d: torch.zeros(n, d)",
    }
    lines, _ = tiny.sentences(50, seed=7)
    code, out, err = export(random_bundle(norm="post"), format, tmp_path, lines, wrong[format])
    assert code == 5 and "does not translate as the one it was made of" in err, (out, err)
    assert not (tmp_path / "out").exists() and sys.executable != str(PYTHON)
