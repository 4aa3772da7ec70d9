"""`attention.py`: what it says follows from its rows, and it goes all the way through on a few pairs."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import tiny
from attention import ROWS, Result, decoding_memory, figures, main, orders, table
from nmt.config import ModelConfig
from nmt.data.toy import write_toy
from nmt.model.build import build_model

SCRIPT = Path(__file__).with_name("attention.py")


def results(*bleu: float, growth: int = 4096) -> list[Result]:
    return [Result("", 400, each, 2000.0, 900.0, growth, 0, 1_800_000, 5.0) for each in bleu]


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ((34.1, 34.3), (33.0, 33.2), "rope > shaw: 34.1 / 34.3 vs 33.0 / 33.2"),
        ((33.0, 33.2), (34.1, 34.3), "shaw > rope: 34.1 / 34.3 vs 33.0 / 33.2"),
        ((34.1, 33.1), (33.0, 33.2), None),  # the seeds disagree
        ((34.0, 36.0), (33.0, 34.0), None),  # they agree, but lie further apart than the rows
        ((34.1,), (33.0,), None),  # one seed says nothing
        ((34.1, 34.3), (), None),
    ],
)
def test_an_order_needs_seeds_that_agree_and_a_gap_beyond_their_spread(
    one: tuple[float, ...], other: tuple[float, ...], said: str | None
) -> None:
    seeds = max(len(one), len(other))
    lines = orders({"rope": results(*one), "shaw": results(*other)}, seeds)
    assert [line for line in lines if ">" in line] == ([said] if said else [])
    assert any(line.startswith("no order") for line in lines) == (said is None and seeds > 1 and bool(other))


def test_figures_say_what_is_missing_and_what_is_wrong() -> None:
    good = {"sinusoidal": results(20, 21), "kv-2": results(19, 20, growth=2048), "kv-1": results(18, 19, growth=1024)}
    assert [line.rpartition(" ")[2] for line in figures(good, 2)] == ["ok"] * 4
    bad = {"sinusoidal": results(20), "kv-2": results(19, 0.5, growth=2040), "kv-1": [], "rope": results(20, 21)}
    lines = figures(bad, 2)
    assert [line.rpartition(" ")[2] for line in lines] == ["short"] * 3
    assert "= 2 of 4 " in lines[0] and "= 0.5 (kv-2) " in lines[2]
    assert "| kv-1 | `num_kv_heads=1` | not run |" in table(bad)[4]
    assert "| 20.0 / 21.0 | 2,000 | 900 | 4,096 | 1,800,000 | 5.0 |" in table(good)[2]


@pytest.mark.parametrize("heads", [1, 2])
def test_cache_bytes_are_those_of_keys_and_values(heads: int) -> None:
    model = build_model(ModelConfig(**tiny.SHAPE | {"num_decoder_layers": 2, "num_kv_heads": heads}), 60, 60).eval()
    width = model.output.in_features
    assert decoding_memory(model) == (2 * 2 * heads * (width // 2) * 4, 0)  # keys and values, layers, fp32


def test_state_bytes_of_a_recurrent_model() -> None:
    model = build_model(ModelConfig(**tiny.SHAPE | {"type": "rnn", "num_decoder_layers": 2}), 60, 60).eval()
    width = model.output.in_features
    growth, state_bytes = decoding_memory(model)
    assert growth == 0
    assert state_bytes >= 2 * 2 * width * 4  # cell and output of two layers


def test_the_table_is_printed_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["attention.py", "--table", "--out", str(tmp_path), "--updates", "400"])
    kept = tmp_path / "sinusoidal-1" / "row.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps(asdict(results(21.5)[0])))
    main()
    printed = capsys.readouterr().out
    assert printed.count("not run") == len(ROWS) - 1
    assert "| sinusoidal | as it stands | 21.5 |" in printed
    kept.write_text(json.dumps(asdict(replace(results(21.5)[0], updates=399))))  # made with other settings
    main()
    assert capsys.readouterr().out.count("not run") == len(ROWS)
    monkeypatch.setattr(sys, "argv", ["attention.py", "--rows", "rope,nothing"])
    with pytest.raises(SystemExit):
        main()
    assert "no row nothing; there are sinusoidal, " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_bench_on_a_few_pairs(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy")
    for split, source, pairs in [("train", "train", 300), ("val", "valid", 20)]:
        for language in ("en", "de"):
            lines = (tmp_path / "toy" / f"{source}.{language}").read_text().splitlines(keepends=True)
            (tmp_path / f"{split}.{language}").write_text("".join(lines[:pairs]))

    def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
        where = ("--data", str(tmp_path), "--out", str(tmp_path / "runs"), "--updates", "2", "--seeds", "1")
        return subprocess.run(
            [sys.executable, str(SCRIPT), *where, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])},
        )

    rows = "sinusoidal,kv-2,bahdanau"
    done = bench("--rows", rows)
    assert done.returncode == 0, done.stderr
    assert "FIGURE attention_rows = 3 of 3 " in done.stdout
    assert "FIGURE attention_kv-2_cache = 0.5 of 4 heads' (asked 0.5) ok" in done.stdout
    row = json.loads((tmp_path / "runs" / "kv-2-1" / "row.json").read_text())
    assert row["parameters"] > 5e5 and row["peak_mb"] > 100 and np.isfinite(row["bleu"])
    again = bench("--rows", rows)
    assert (again.stdout, again.stderr) == (done.stdout, "")  # nothing is trained again
