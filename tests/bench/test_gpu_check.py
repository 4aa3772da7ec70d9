"""`gpu_check.py` on a machine without a GPU: it says so, and its dry run goes all the way through."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("gpu_check.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=SCRIPT.parents[2])


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_prints_no_figure() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (0, "There is no GPU here: nothing was checked.\n")


@pytest.mark.slow
def test_the_dry_run() -> None:
    done = run("--dry-run")
    assert done.returncode == 0, done.stderr
    figures = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FIGURE")]
    assert all(name.startswith("dry_run_") for name in figures)
    names = {name.removeprefix("dry_run_") for name in figures}
    for model in ("base", "big"):
        parts = ("target_tokens_per_s", "mfu_percent", "recompiles_after_warmup", "loader_percent", "flash")
        assert {f"{model}_{part}" for part in (*parts, "attention_kernels", "host_syncs_per_update")} <= names
    assert {"tests", "gemm_peak_tflops", "translate_beam_1_sentences_per_s", "bleu", "check_seconds"} <= names
    assert "(asked nothing) ok" in done.stdout and "short" not in done.stdout
