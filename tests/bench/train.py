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
from nmt.training.run import _computes_in_bf16, _open, _trainer

SIZES = {"tiny": (4, 4, 128, 256, 0.3), "base": (6, 8, 512, 2048, 0.1)}  # layers, heads, d_model, d_ff, dropout
ASKED = {"tiny": 2.5, "base": 3.0}
BF16 = _computes_in_bf16(torch.device("cpu"))
STEPS = {
    "tiny": {"ours": 60, "hf": 30, "hf-bf16": 30 if BF16 else 6, "eole": 25, "joeynmt": 15},
    "base": {"ours": 10, "hf": 6, **({"hf-bf16": 8} if BF16 else {}), "eole": 10, "joeynmt": 10},
}
AGAIN = ("hf-bf16" if BF16 else "hf", "eole")  # the fastest peers, which also run with the allocator's setting
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
    steps, peaks = STEPS[size], [_gemm_peaks()]
    ours = [_ours_in_a_process(size, steps["ours"])]
    rows: dict[str, tuple[float, float]] = {}
    for name in list(steps)[1:]:
        rows[name] = _peer(size, name, steps[name], {})
        if name in AGAIN:
            rows[f"{name}, pages kept"] = _peer(size, name, steps[name], KEEP_PAGES)
            # Between the fastest peers as well as before and after them: the machine drifts.
            ours.append(_ours_in_a_process(size, steps["ours"]))
    in_fp32 = _ours_in_a_process(size, steps["ours"], "fp32")
    peaks.append(_gemm_peaks())
    speed = statistics.mean(run["tokens/s"] for run in ours)
    memory = max(run["peak MB"] for run in ours)
    as_used = max((name for name in rows if name in steps), key=lambda name: rows[name][0])
    granted = max(rows, key=lambda name: rows[name][0])
    table = {
        f"nmt {ours[0]['precision']} (auto)": (speed, memory),
        "nmt fp32": (in_fp32["tokens/s"], in_fp32["peak MB"]),
        **rows,
    }
    print(f"{size}: target tokens/s, of the fastest peer, peak memory (MB)")
    for name, (tokens_s, megabytes) in table.items():
        print(f"  {name:20s} {tokens_s:8.0f} {tokens_s / rows[as_used][0]:6.2f} {megabytes:8.0f}")
    print("  nmt, each time:", ", ".join(f"{run['tokens/s']:.0f}" for run in ours))
    for dtype in peaks[0]:
        seen = [each[dtype] for each in peaks]
        share = {"nmt": in_fp32["tokens/s"] if dtype == "fp32" else speed, as_used: rows[as_used][0]}
        said = ", ".join(f"{who} {rate * ours[0]['flops a token'] / max(seen):.0%}" for who, rate in share.items())
        print(f"  {dtype} GEMM peak {' and '.join(f'{peak / 1e9:.0f}' for peak in seen)} GFLOP/s; of it, work of real "
              f"tokens alone: {said}")  # fmt: skip
    ratio, against_granted = speed / rows[as_used][0], speed / rows[granted][0]
    asked, lowest = ASKED[size], rows[as_used][1]
    print(figure_line(f"train_{size}_ratio", f"{ratio:.2f} of {as_used}", f">= {asked}", ratio >= asked))
    print(figure_line(f"train_{size}_ratio_pages_kept", f"{against_granted:.2f} of {granted}", f">= {asked}",
                      against_granted >= asked))  # fmt: skip
    if ratio < asked or against_granted < asked:
        dtype = "bf16" if BF16 else "fp32"
        needed = asked * rows[as_used][0] * ours[0]["flops a token"] / max(each[dtype] for each in peaks)
        print(f"  cause: {asked} times {as_used} is {needed:.0%} of this machine's {dtype} GEMM peak")
    print(figure_line(f"train_{size}_memory_mb", f"{memory:.0f} ({as_used} {lowest:.0f})", "<= the peer's",
                      memory <= lowest), flush=True)  # fmt: skip


def _gemm_peaks() -> dict[str, float]:
    """FLOP/s by dtype, of the fastest of some large products, each at its median."""
    return {name: _gemm_peak(dtype) for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16}.items()
            if dtype == torch.float32 or BF16}  # fmt: skip


def _gemm_peak(dtype: torch.dtype) -> float:
    speeds = []
    for size in (1024, 2048, 4096):
        a = torch.randn(size, size).to(dtype)
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


def _ours_in_a_process(size: str, steps: int, precision: str = "auto") -> dict[str, float]:
    """So that its peak memory is its own."""
    print("$ nmt", size, precision, file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--ours", size, str(steps), precision]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _ours(size: str, steps: int, precision: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        run, log, device = Path(name) / "run", TrainingLog(quiet=True), pick_device("cpu")
        run.mkdir()
        opened = _open(_config(size).replace(training={"precision": precision}), run, device, None, 0, log)
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
        _ours(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[1:] or list(SIZES))
