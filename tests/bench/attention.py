"""Every attention mechanism on the same task: one row a mechanism, equal updates, several seeds.

    python tests/bench/attention.py [--rows NAME,NAME] [--seeds 1,2] [--updates N] [--table]

A run is `nmt train configs/multi30k-en-de.toml` with the keys of its row, and for all of them two layers a side, so
that an hour is enough, and a schedule that is linear down to 0 at the last update, so that no checkpoints are averaged.
It lies in runs/attention/ROW-SEED, is resumed if it was stopped, and its results are kept there in row.json, so that
nothing is done twice and the table is there at once. Two runs at a time, one thread each: what a run loses to its
neighbour, all lose alike. No test set is touched.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from figures import REAL_DATA, ROOT, figure_line
from nmt.bundle import Bundle

RECIPE = ROOT / "configs" / "multi30k-en-de.toml"
BASE = "sinusoidal"  # the recipe as it stands: 4 heads, each with its own keys and values
ROWS = {  # what a row sets in [model]
    BASE: "",
    "learned": 'positions="learned"',
    "rope": 'positions="rope"',
    "relative": 'positions="relative"',
    "shaw": 'positions="shaw"',
    "kv-2": "num_kv_heads=2",
    "kv-1": "num_kv_heads=1",
    "qk-norm": "qk_norm=true",
    "bahdanau": 'type="rnn" attention="bahdanau"',
    "luong-dot": 'type="rnn" attention="luong_dot"',
    "luong-general": 'type="rnn" attention="luong_general"',
    "luong-concat": 'type="rnn" attention="luong_concat"',
}
COMPARED = (
    (BASE, "learned", "rope", "relative", "shaw"),
    (BASE, "kv-2", "kv-1"),
    (BASE, "qk-norm"),
    ("bahdanau", "luong-dot", "luong-general", "luong-concat"),
)
UPDATES = 600
FLOOR = 15.0  # BLEU; with weights that are all equal in cross-attention a model gets 11.6 after 550 updates


@dataclass(frozen=True)
class Result:
    """What is known of a run that has ended. Its settings are those it was made with.

    Attributes:
        bleu: of val, lower-cased and tokenised as the text is, beam 5.
        tokens_per_s: target tokens of training; the median of the log's rates.
        peak_mb: of the training process, resident.
        bytes_per_token: by which one more target token lets a prefix' cache grow; state_bytes: what stays constant.
        minutes: of training, with the validation at its end.
    """

    sets: str
    updates: int
    bleu: float
    tokens_per_s: float
    peak_mb: float
    bytes_per_token: int
    state_bytes: int
    parameters: int
    minutes: float


@dataclass(frozen=True)
class Bench:
    """Where runs lie, and how long they train."""

    data: Path
    out: Path
    updates: int

    def folder(self, row: str, seed: int) -> Path:
        """The run folder."""
        return self.out / f"{row}-{seed}"

    def result(self, row: str, seed: int) -> Result | None:
        """What an ended run with these settings came to."""
        file = self.folder(row, seed) / "row.json"
        if not file.is_file():
            return None
        found = Result(**json.loads(file.read_text()))
        return found if (found.sets, found.updates) == (ROWS[row], self.updates) else None

    def run(self, row: str, seed: int) -> None:
        """Train and score one run. Raises: CalledProcessError."""
        folder, log = self.folder(row, seed), self.out / f"{row}-{seed}.log"
        settings = [*(f"model.{key}" for key in ROWS[row].split()), f"training.seed={seed}", *self._for_all()]
        options = [each for setting in settings for each in ("--set", setting)]
        peak = self.out / f"{row}-{seed}.peak"  # the largest of all attempts
        data = ("--data", self.data, "--cache", self.out / "cache")
        peak_mb = _nmt(log, "train", RECIPE, *data, "--out", folder, *options)
        peak_mb = max(peak_mb, float(peak.read_text()) if peak.is_file() else 0.0)
        peak.write_text(f"{peak_mb}")
        scores = folder / "val.json"
        val = ("--src", self.data / "val.en", "--ref", self.data / "val.de")
        how = ("--metric", "bleu", "--tokenize", "none", "--lowercase", "--beam-size", 5, "--json")
        _nmt(log, "eval", "-m", folder, *val, *how, stdout=scores)
        records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        model = Bundle.load(folder).model
        growth, state_bytes = decoding_memory(model)
        result = Result(
            sets=ROWS[row],
            updates=self.updates,
            bleu=json.loads(scores.read_text())["BLEU"]["score"],
            tokens_per_s=statistics.median(each["tokens/s"] for each in records if each["kind"] == "update"),
            peak_mb=peak_mb,
            bytes_per_token=growth,
            state_bytes=state_bytes,
            parameters=model.num_parameters(),
            minutes=records[-1]["minutes"],
        )
        (folder / "row.json").write_text(json.dumps(asdict(result)))

    def prepare(self) -> None:
        """Make the tokenizer and the token caches that all runs share."""
        self.out.mkdir(parents=True, exist_ok=True)
        _nmt(self.out / "prepare.log", "data", "prepare", RECIPE, "--data", self.data, "--out", self.out / "cache")

    def _for_all(self) -> list[str]:
        return [
            "model.num_encoder_layers=2",
            "model.num_decoder_layers=2",
            f"training.max_updates={self.updates}",
            "training.max_minutes=100000",
            'training.schedule="linear"',
            f"training.warmup_updates={self.updates // 4}",
            f"training.log_every={max(1, self.updates // 20)}",
            "training.keep_last=1",
            "training.average_count=1",
            f"training.checkpoint_every={max(1, self.updates // 4)}",
            f"validation.every={self.updates}",
        ]


def main() -> None:
    """Run what is missing, then print the table, the orders and the figures."""
    arguments = _arguments()
    rows, seeds = arguments.rows, arguments.seeds
    bench = Bench(arguments.data, arguments.out, arguments.updates)
    missing = [(row, seed) for seed in seeds for row in rows if bench.result(row, seed) is None]
    if missing and not arguments.table:
        if not (bench.data / "train.en").is_file():
            sys.exit(f"this bench needs {bench.data}")
        bench.prepare()
        _run_all(bench, missing, arguments.jobs)
    found = {row: [result for seed in seeds if (result := bench.result(row, seed)) is not None] for row in rows}
    print(f"{bench.updates} updates, seeds {', '.join(map(str, seeds))}\n")
    print("\n".join([*table(found), "", *orders(found, len(seeds)), "", *figures(found, len(seeds))]))


def table(found: dict[str, list[Result]]) -> list[str]:
    """The lines of a Markdown table; BLEU by seed, the mean of speeds and minutes, the most memory."""
    lines = [
        "| row | `[model]` | val BLEU | target tokens/s | peak MB | cache, bytes/token | parameters | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, results in found.items():
        if not results:
            lines.append(f"| {row} | {_keys(row)} | not run | | | | | |")
            continue
        first = results[0]
        growth = f"{first.bytes_per_token:,}" if first.bytes_per_token else f"0 (state {first.state_bytes:,})"
        speed, minutes = (statistics.mean(getattr(r, what) for r in results) for what in ("tokens_per_s", "minutes"))
        peak_mb = max(result.peak_mb for result in results)
        lines.append(
            f"| {row} | {_keys(row)} | {_bleu(results)} | {speed:,.0f} | {peak_mb:,.0f} | {growth} "
            f"| {first.parameters:,} | {minutes:.1f} |"
        )
    return lines


def orders(found: dict[str, list[Result]], seeds: int) -> list[str]:
    """What the runs say about which row is better, for the rows that are compared, pair by pair.

    A row is above another if it is so with every seed and the gap of the means exceeds the spread over seeds of both.
    One seed has no spread and orders nothing.
    """
    lines = []
    for group in COMPARED:
        complete = [row for row in group if len(found.get(row, [])) == seeds > 1]
        unordered = []
        for pair in combinations(complete, 2):
            (low, below), (high, above) = sorted(((row, found[row]) for row in pair), key=lambda each: _mean(each[1]))
            spread = max(max(r.bleu for r in results) - min(r.bleu for r in results) for results in (below, above))
            agreed = all(a.bleu > b.bleu for a, b in zip(above, below, strict=True))
            if agreed and _mean(above) - _mean(below) > spread:
                lines.append(f"{high} > {low}: {_bleu(above)} vs {_bleu(below)}")
            else:
                unordered.append(f"{high}, {low}")
        lines += [f"no order: {'; '.join(unordered)}"] if unordered else []
    return lines


def figures(found: dict[str, list[Result]], seeds: int) -> list[str]:
    """The FIGURE lines; what was not run is short, but a ratio of caches needs both its rows."""
    complete, rows = sum(len(results) == seeds for results in found.values()), len(found)
    lines = [figure_line("attention_rows", f"{complete} of {rows}", "all rows, all seeds", complete == rows)]
    for row, share in (("kv-2", 0.5), ("kv-1", 0.25)):
        if found.get(row) and found.get(BASE):
            ratio = found[row][0].bytes_per_token / found[BASE][0].bytes_per_token
            lines.append(figure_line(f"attention_{row}_cache", f"{ratio:g} of 4 heads'", f"{share}", ratio == share))
    worst = min(((r.bleu, row) for row, results in found.items() for r in results), default=None)
    if worst is not None:
        bleu, row = worst
        lines.append(figure_line("attention_least_bleu", f"{bleu:.1f} ({row})", f"> {FLOOR:g}", bleu > FLOOR))
    return lines


def _run_all(bench: Bench, runs: Sequence[tuple[str, int]], jobs: int) -> None:
    """Do runs, some at a time. One that fails leaves its row open and the others alone."""
    began, done = time.monotonic(), 0

    def one(run: tuple[str, int]) -> None:
        nonlocal done
        name = "{}-{}".format(*run)
        try:
            bench.run(*run)
            done += 1
            minutes = (time.monotonic() - began) / 60
            left = minutes / done * (len(runs) - done)
            print(f"{name} ended; {done} of {len(runs)} after {minutes:.1f} min, {left:.0f} left", file=sys.stderr)
        except subprocess.CalledProcessError as error:
            print(f"{name} failed with {error.returncode}: see {bench.out / name}.log", file=sys.stderr)

    executor = ThreadPoolExecutor(jobs)
    try:
        list(executor.map(one, runs))
    finally:
        executor.shutdown(cancel_futures=True)  # Ctrl-C: those that run save and end by themselves, no more begin


def _nmt(log: Path, *arguments: object, stdout: Path | None = None) -> float:
    """`nmt` on one thread; what it says goes to `log`. Returns: its peak memory in MB. Raises: CalledProcessError."""
    command = [sys.executable, "-m", "nmt", *map(str, arguments)]
    if arguments[0] != "data":
        command += ["--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with log.open("a") as told, (stdout or Path(os.devnull)).open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=told, cwd=ROOT, env=environment)
        _, status, used = os.wait4(process.pid, 0)  # of this process alone, as RUSAGE_CHILDREN is not
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_maxrss / 1024


def decoding_memory(model: Any) -> tuple[int, int]:
    """Bytes by which the state of decoding one prefix grows with a target token, and bytes that stay the same, in fp32.

    What is kept of the source is not counted: a state is taken for linear in both lengths, and measured at four.
    """
    growth = (_state_bytes(model, 1, _GROWN) - _state_bytes(model, 1, 1)) // (_GROWN_TO - _FIRST_CAPACITY)
    of_a_source_token = _state_bytes(model, 2, 1) - _state_bytes(model, 1, 1)
    return growth, _state_bytes(model, 1, 1) - of_a_source_token - _FIRST_CAPACITY * growth


_FIRST_CAPACITY, _GROWN, _GROWN_TO = 32, 33, 64  # positions a cache has room for; a step that makes it grow; room then


def _state_bytes(model: Any, source: int, steps: int) -> int:
    with torch.inference_mode():
        state = model.prefill(torch.ones(1, source, dtype=torch.long))
        for _ in range(steps):
            model.decode_step(torch.ones(1, 1, dtype=torch.long), state)
    return sum(tensor.nbytes for tensor in _numbers(state))


def _numbers(held: object) -> Iterator[torch.Tensor]:
    """The floating-point tensors in an object's attributes, lists and tuples."""
    if isinstance(held, torch.Tensor):
        yield from [held] if held.is_floating_point() else []
        return
    parts = held if isinstance(held, (list, tuple)) else vars(held).values() if hasattr(held, "__dict__") else ()
    for part in parts:
        yield from _numbers(part)


def _mean(results: Sequence[Result]) -> float:
    return statistics.mean(result.bleu for result in results)


def _bleu(results: Sequence[Result]) -> str:
    return " / ".join(f"{result.bleu:.1f}" for result in results)


def _keys(row: str) -> str:
    return f"`{ROWS[row]}`" if ROWS[row] else "as it stands"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=_some_rows, default=list(ROWS), help="names, or all")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2])
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--table", action="store_true", help="train nothing, print what is there")
    parser.add_argument("--data", type=Path, default=REAL_DATA / "multi30k_tok", help="train and val, .en and .de")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "attention")
    return parser.parse_args()


def _some_rows(text: str) -> list[str]:
    rows = list(ROWS) if text in ("", "all") else text.split(",")
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return rows


if __name__ == "__main__":
    main()
