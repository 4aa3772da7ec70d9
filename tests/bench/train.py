"""Training speed against the peers: complete steps, the same data and token budget, in one run and one table.

    python tests/bench/train.py [tiny] [base]

Ours is `nmt train`'s own trainer with its defaults, but for dropout in every place where the peers have it. The peers
run as `../shared/bench/train_speed.py` has them: as their users do, and once more with the C allocator's setting that
`nmt train` gives itself. A speed is the median over updates (of windows of five where a peer logs no more); engines
take turns, and only ratios within this run mean anything.
"""

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from figures import REAL_DATA, ROOT, figure_line
from flops import training_flops
from nmt.config import Config, parse_config
from nmt.decoding.translator import pick_device
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.run import _open, _trainer

SIZES = {"tiny": (4, 4, 128, 256, 0.3), "base": (6, 8, 512, 2048, 0.1)}  # layers, heads, d_model, d_ff, dropout
ASKED = {"tiny": 2.5, "base": 3.0}
STEPS = {"tiny": {"ours": 40, "hf": 30, "hf-bf16": 6, "eole": 25, "joeynmt": 15}}
STEPS["base"] = {"ours": 6, "hf": 6, "eole": 10, "joeynmt": 10}
AGAIN = ("hf", "eole")  # the fastest peers, which also run with the allocator's setting
PEERS, BENCH = ROOT / "peers", ROOT.parent / "shared" / "bench"
_MEASURED = """import resource, subprocess, sys
subprocess.run(sys.argv[1:])
print("PEAK", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_TOP_PAD_": str(2**26)}


def main(sizes: list[str]) -> None:
    """Print the table and the figures."""
    if not BENCH.is_dir() or not (REAL_DATA / "multi30k").is_dir():
        sys.exit("bench-train needs ../shared/bench and ../shared/data/multi30k")
    if not (PEERS / "joeynmt").is_dir():
        subprocess.run(["bash", BENCH / "setup_peers.sh", PEERS], check=True, stdout=sys.stderr)
    for size in sizes:
        _compare(size)


def _compare(size: str) -> None:
    steps, peak = STEPS[size], _gemm_peak()
    ours = [_ours_in_a_process(size, steps["ours"])]
    rows: dict[str, tuple[float, float]] = {}
    for name in list(steps)[1:]:
        rows[name] = _peer(size, name, steps[name], {})
        if name in AGAIN:
            rows[f"{name}, pages kept"] = _peer(size, name, steps[name], KEEP_PAGES)
    ours.append(_ours_in_a_process(size, steps["ours"]))  # before and after, should the machine drift
    peak = statistics.mean([peak, _gemm_peak()])
    speed = statistics.mean(run["tokens/s"] for run in ours)
    memory = max(run["peak MB"] for run in ours)
    as_used = max((name for name in rows if name in steps), key=lambda name: rows[name][0])
    granted = max(rows, key=lambda name: rows[name][0])
    print(f"{size}: target tokens/s, of the fastest peer, peak memory (MB)")
    for name, (tokens_s, megabytes) in {f"nmt {ours[0]['precision']}": (speed, memory), **rows}.items():
        print(f"  {name:18s} {tokens_s:8.0f} {tokens_s / rows[as_used][0]:6.2f} {megabytes:8.0f}")
    share = speed * ours[0]["flops a token"] / peak
    print(f"  fp32 GEMM peak {peak / 1e9:.0f} GFLOP/s; nmt at {share:.0%} of it, {as_used} at "
          f"{rows[as_used][0] * ours[0]['flops a token'] / peak:.0%} (work of real tokens alone)")  # fmt: skip
    ratio, against_granted = speed / rows[as_used][0], speed / rows[granted][0]
    asked, lowest = ASKED[size], rows[as_used][1]
    print(figure_line(f"train_{size}_ratio", f"{ratio:.2f} of {as_used}", f">= {asked}", ratio >= asked))
    if ratio < asked:
        needed = asked * rows[as_used][0] * ours[0]["flops a token"] / peak
        print(
            f"  cause: this CPU has no unit for bf16, and {asked} times would take {needed:.0%} of its fp32 GEMM peak"
        )
    print(figure_line(f"train_{size}_ratio_pages_kept", f"{against_granted:.2f} of {granted}", f">= {asked}",
                      against_granted >= asked))  # fmt: skip
    print(figure_line(f"train_{size}_memory_mb", f"{memory:.0f} ({as_used} {lowest:.0f})", "<= the peer's",
                      memory <= lowest), flush=True)  # fmt: skip


def _gemm_peak() -> float:
    """FLOP/s of the fastest of some large products in fp32, each at its median."""
    speeds = []
    for size in (1024, 2048, 4096):
        a = torch.randn(size, size)
        seconds = []
        for _ in range(7):
            began = time.perf_counter()
            a @ a
            seconds.append(time.perf_counter() - began)
        speeds.append(2 * size**3 / statistics.median(seconds))
    return max(speeds)


def _peer(size: str, name: str, steps: int, environment: dict[str, str]) -> tuple[float, float]:
    """Target tokens/s and peak MB of the largest process."""
    script = [sys.executable, "-c", _MEASURED, sys.executable, BENCH / "train_speed.py", PEERS, REAL_DATA]
    command = [*map(str, script), "--size", size, "--steps", str(steps), "--only", name]
    print("$", name, environment or "", file=sys.stderr, flush=True)
    out = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}).stdout
    speed = re.search(rf"^\s+{name}\s+(\d+)", out, re.MULTILINE)
    peak = re.search(r"PEAK (\d+)", out)
    if not speed or not peak:
        sys.exit(f"{name} failed: {out}")
    return float(speed[1]), int(peak[1]) / 1024


def _ours_in_a_process(size: str, steps: int) -> dict[str, float]:
    """So that its peak memory is its own."""
    print("$ nmt", size, file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, __file__, "--ours", size, str(steps)], check=True, capture_output=True, text=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _ours(size: str, steps: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        run, log, device = Path(name) / "run", TrainingLog(quiet=True), pick_device("cpu")
        run.mkdir()
        opened = _open(_config(size), run, device, None, 0, log)
        trainer = _trainer(opened, run, device, log, StopRequest(), Ranks())
        speeds = []
        for _ in range(steps):
            before, began = trainer.state.tokens, time.perf_counter()
            trainer.one_update()
            speeds.append((trainer.state.tokens - before) / (time.perf_counter() - began))
        cache, vocab_size = opened.prepared.train, trainer.bundle.config.tgt_vocab_size
        flops = training_flops(opened.config.model, vocab_size, cache.src_lengths, cache.tgt_lengths)
    facts = {
        "tokens/s": statistics.median(speeds[3:]),
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "precision": opened.config.training.precision,
        "flops a token": flops / float(cache.tgt_lengths.sum()),
    }
    print(json.dumps(facts))


def _config(size: str) -> Config:
    layers, heads, d_model, d_ff, dropout = SIZES[size]
    places = ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout")
    model = {"num_encoder_layers": layers, "num_decoder_layers": layers, "d_model": d_model, "num_heads": heads}
    tables = {
        "data": {"dir": str(REAL_DATA), "train": ["multi30k/train"], "valid": "multi30k/val"},
        "tokenizer": {"vocab_size": 10_000, "byte_fallback": False},
        "model": {**model, "d_ff": d_ff, **dict.fromkeys(places, dropout)},
        "training": {"tokens_per_batch": 4096, "max_updates": 1000, "learning_rate": 1e-4},
    }
    return parse_config(tables, where="bench-train")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        _ours(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1:] or list(SIZES))
