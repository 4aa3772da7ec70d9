"""F10: one bad row among 10,000 is named, by file and line, and ends the run with exit code 3; or it is counted."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import tiny
from faults.recipe import Recipe
from faults.warm import Result, Warm

ROWS, BAD = 10_000, 7_777  # counted from 1
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def train(warm: Warm, folder: Path, source: Any) -> Result:
    """Train on a source, as far as it goes."""
    config = tiny.write(folder / "recipe", pairs=1).config.replace(
        data={"dir": str(folder), "train": source}, training={"max_updates": 1}, validation={"every": 1}
    )
    (folder / "recipe.toml").write_text(config.to_toml())
    args = ["train", folder / "recipe.toml", "--out", folder / "run", "--device", "cpu", "--threads", 1]
    return warm.run(args, env={**OFFLINE, "HF_DATASETS_CACHE": str(folder / "hf")})


def write_tsv(folder: Path, src: list[str], tgt: list[str], bad: bool) -> str:
    lines = ["\t".join(pair) for pair in zip(src, tgt, strict=True)]
    if bad:
        lines[BAD - 1] = lines[BAD - 1].replace("\t", " ")
    (folder / "c.tsv").write_text("".join(f"{line}\n" for line in lines))
    return "c.tsv"


def write_jsonl(folder: Path, src: list[str], tgt: list[str], bad: bool) -> str:
    lines = [json.dumps({"en": s, "de": t}) for s, t in zip(src, tgt, strict=True)]
    if bad:
        lines[BAD - 1] = lines[BAD - 1][:-5]
    (folder / "c.jsonl.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return "c.jsonl.gz"


def write_columns(folder: Path, src: list[str], tgt: list[str], bad: bool) -> str:
    encoded = [b"\xff" if bad and number == BAD else line.encode() for number, line in enumerate(tgt, start=1)]
    columns = {"en": pa.array(src), "de": pa.array(encoded, type=pa.binary()).view(pa.string())}
    pa.parquet.write_table(pa.table(columns), folder / "c.parquet")
    return "c.parquet"


def write_cut(folder: Path, src: list[str], tgt: list[str], bad: bool) -> str:
    """A compressed file that ends too early."""
    write_files(folder, src, tgt, bad=False)
    whole = gzip.compress((folder / "c.de").read_bytes())
    (folder / "c.de").unlink()
    (folder / "c.de.gz").write_bytes(whole[: len(whole) // 2] if bad else whole)
    return "c"


def write_files(folder: Path, src: list[str], tgt: list[str], bad: bool) -> str:
    if bad:
        tgt = tgt[: BAD - 1] + tgt[BAD:]
    for language, lines in (("en", src), ("de", tgt)):
        (folder / f"c.{language}").write_text("".join(f"{line}\n" for line in lines))
    return "c"


def write_parquet(folder: Path, src: list[str], tgt: list[str], bad: bool) -> dict[str, str]:
    """The bad row has bytes that are no UTF-8, which Arrow does not look at."""
    encoded = [line.encode() for line in tgt]
    if bad:
        encoded[BAD - 1] = b"\xff\xfe"
    columns = [pa.array(src), pa.array(encoded, type=pa.binary()).view(pa.string())]
    return save_parquet(folder, pa.StructArray.from_arrays(columns, ["en", "de"]))


def write_null(folder: Path, src: list[str], tgt: list[str], bad: bool) -> dict[str, str]:
    sides = [None if bad and number == BAD else line for number, line in enumerate(tgt, start=1)]
    return save_parquet(folder, pa.StructArray.from_arrays([pa.array(src), pa.array(sides)], ["en", "de"]))


def write_numbers(folder: Path, src: list[str], tgt: list[str], bad: bool) -> dict[str, str]:
    """A column has one type: if one is a number, all are; the first that is neither null nor 0 is named."""
    numbers = pa.array([5 if number == BAD else None for number in range(1, ROWS + 1)], type=pa.int64())
    return save_parquet(
        folder, pa.StructArray.from_arrays([pa.array(src), numbers if bad else pa.array(tgt)], ["en", "de"])
    )


def write_json(folder: Path, src: list[str], tgt: list[str], bad: bool) -> dict[str, str]:
    lines = [json.dumps({"translation": {"en": s, "de": t}}) for s, t in zip(src, tgt, strict=True)]
    if bad:
        lines[BAD - 1] = lines[BAD - 1][:-5]
    (folder / "d").mkdir()
    (folder / "d" / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return {"hf": str(folder / "d")}


def save_parquet(folder: Path, column: pa.StructArray) -> dict[str, str]:
    (folder / "d").mkdir()
    pa.parquet.write_table(pa.table({"translation": column}), folder / "d" / "train.parquet")
    return {"hf": str(folder / "d")}


EXPECTED: dict[str, tuple[Callable[..., Any], str]] = {
    "tsv": (write_tsv, f"c.tsv, line {BAD}: no TAB"),
    "files": (write_files, "c.en has 10,000 lines but {folder}/c.de has 9,999"),
    "jsonl": (write_jsonl, f"c.jsonl.gz, line {BAD}: no JSON"),
    "columns, no UTF-8": (write_columns, f"c.parquet, column de, row {BAD}: invalid UTF-8"),
    "cut short": (write_cut, "c.de.gz is cut short: its gzip data can be read up to line "),
    "parquet, no UTF-8": (write_parquet, f"/d, split train, language de, row {BAD}: invalid UTF-8"),
    "parquet, a number": (write_numbers, f"/d, split train, language de, row {BAD}: int instead of text"),
    "json, torn": (write_json, "/d' (name None, split 'train'): JSON parse error: "),
}


def test_f10_bad_rows(warm: Warm, tmp_path: Path, figure: Callable[..., None]) -> None:
    src, tgt = tiny.sentences(ROWS)
    named, wrong = 0, []
    for kind, (write, message) in EXPECTED.items():
        folder = tmp_path / kind.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        result = train(warm, folder, write(folder, src, tgt, bad=True))
        if result.code == 3 and message.format(folder=folder) in result.stderr and "Traceback" not in result.stderr:
            named += 1
        else:
            wrong.append(f"{kind}: exit {result.code}: {result.stderr[-400:]}")
    figure("f10_bad_rows", f"{named} of {len(EXPECTED)} named {wrong or ''}".strip(), "all", not wrong)


def test_f10_a_null_is_counted_and_the_control(warm: Warm, tmp_path: Path, figure: Callable[..., None]) -> None:
    src, tgt = tiny.sentences(ROWS)
    said = []
    for bad in (True, False):
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        result = train(warm, tmp_path, write_null(tmp_path, src, tgt, bad))
        assert result.code == 0, result.stderr
        said.append("1 empty" in result.stderr)
        shutil.rmtree(tmp_path / "run")
    figure("f10_null", f"counted: {said[0]}; without it: {said[1]}", "True, False", said == [True, False])


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_f10_a_bad_id_in_memory(warm: Warm, recipe: Recipe, tmp_path: Path, side: str) -> None:
    result = warm.run(recipe.arguments(tmp_path / "run"), [("hooks:corrupt_pair", {"pair": 123, "side": side})])
    assert result.code == 3 and "Pair 123 of the token cache holds the piece id 60,000" in result.stderr
