"""The WMT path, offline: 4.5 million made-up pairs in the hub's layout, to update 200 of a tiny model.

Cleaning, tokenizer, token cache and training are those of configs/wmt14-en-de-base.toml; the model is tiny and the
batch fits a CPU. Private memory is RssAnon + RssShmem, summed over all processes of the run and sampled twice a second.
"""

import os
import shutil
import subprocess
import sys
import time

from figures import ROOT, figure_line, private_memory

WORK = ROOT / "runs" / "wmt-bench"
CORPUS = WORK / "corpus"
SETTINGS = [
    f'data.train={{hf="{CORPUS}", name="de-en", split="train"}}',
    f'data.valid={{hf="{CORPUS}", name="de-en", split="validation"}}',
    "model.num_encoder_layers=4",
    "model.num_decoder_layers=4",
    "model.d_model=128",
    "model.num_heads=4",
    "model.d_ff=256",
    "training.tokens_per_batch=2048",
    "training.accumulation=1",
    "training.max_updates=200",
    "training.average_count=1",
    "training.log_every=20",
    "validation.every=200",
    "validation.max_sentences=50",
]


def main() -> None:
    """Generate the corpus if it is not there, run, print."""
    if not (CORPUS / "README.md").is_file():
        subprocess.run([sys.executable, ROOT / "tests/bench/generate_wmt.py", CORPUS], check=True)
    run = WORK / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree(WORK / "hub-cache", ignore_errors=True)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(WORK / "hub-cache")}
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "nmt", "train", "configs/wmt14-en-de-base.toml", "--out", run, *settings]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    with private_memory(process.pid, every_s=0.5) as peak_mb:
        code = process.wait()
    if code:
        sys.exit(f"nmt train ended with {code}")
    minutes = (time.monotonic() - began) / 60
    print(figure_line("wmt_path_minutes", f"{minutes:.1f}", "<= 40", minutes <= 40))
    print(figure_line("wmt_path_private_gb", f"{peak_mb[0] / 1024:.2f}", "<= 4", peak_mb[0] <= 4096))


main()
