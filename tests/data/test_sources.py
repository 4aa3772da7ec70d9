"""Corpora of every kind: pairs in = pairs out, and a mistake names its file, line or column."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet
import pytest

from nmt.config import DataConfig
from nmt.data import sources
from nmt.data.sources import count_lines, describe, read_chunks
from nmt.errors import DataError

Figure = Callable[..., None]
# What other tools take for the end of a line; \n alone is one here.
ODD_BREAKS = ["\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\u2028", "\u2029", "\x00"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def config_of(folder: Path, source: Any, **options: Any) -> DataConfig:
    return DataConfig.model_validate({"dir": str(folder), "train": source, **options})


def pairs_of(config: DataConfig) -> list[tuple[str, str]]:
    pairs = []
    for src, tgt in read_chunks(config.train[0], config):
        pairs += zip(src, tgt, strict=True)
    return pairs


def write_pair(folder: Path, src: bytes, tgt: bytes) -> None:
    (folder / "c.en").write_bytes(src)
    (folder / "c.de").write_bytes(tgt)


def write_hub_folder(folder: Path, rows: list[Any], name: str = "de-en", split: str = "train") -> None:
    """One parquet file where the hub's WMT repositories have it."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    column = pa.array(rows, type=pa.struct([("de", pa.string()), ("en", pa.string())]))
    pa.parquet.write_table(pa.table({"translation": column}), folder / name / f"{split}-00000-of-00001.parquet")


CARD = """---
configs:
- config_name: de-en
  data_files:
  - split: train
    path: de-en/train-*
  - split: validation
    path: de-en/validation-*
---
"""


@pytest.mark.parametrize("source", ["c", {"prefix": "c"}, {"src": "c.en", "tgt": "c.de"}], ids=str)
def test_text_pairs(tmp_path: Path, source: Any) -> None:
    write_pair(tmp_path, b"one\ntwo\n\nfour", b"eins\nzwei\n\nvier\n")
    config = config_of(tmp_path, source)
    assert pairs_of(config) == [("one", "eins"), ("two", "zwei"), ("", ""), ("four", "vier")]
    assert describe(config.train[0], config) == f"{tmp_path / 'c.en'} + {tmp_path / 'c.de'}"


def test_languages_choose_the_files_of_a_prefix(tmp_path: Path) -> None:
    write_pair(tmp_path, b"one\n", b"eins\n")
    assert pairs_of(config_of(tmp_path, "c", src_lang="de", tgt_lang="en")) == [("eins", "one")]


def test_absolute_paths_ignore_dir(tmp_path: Path) -> None:
    write_pair(tmp_path, b"one\n", b"eins\n")
    assert pairs_of(config_of(Path("/nowhere"), str(tmp_path / "c"))) == [("one", "eins")]


def test_tsv(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_bytes("\ufeffone\teins\r\ntwo\tzwei\tmore\n\t\nfour\t".encode())
    config = config_of(tmp_path, "c.tsv")
    assert pairs_of(config) == [("one", "eins"), ("two", "zwei"), ("", ""), ("four", "")]
    assert describe(config.train[0], config) == str(tmp_path / "c.tsv")


def test_tsv_without_tab_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("one\teins\ntwo zwei\n")
    with pytest.raises(DataError, match=r"c\.tsv, line 2: no TAB"):
        pairs_of(config_of(tmp_path, "c.tsv"))


@pytest.mark.parametrize("card", [True, False])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_local_hub_folder(tmp_path: Path, card: bool, split: str) -> None:
    folder = tmp_path / "wmt"
    write_hub_folder(folder, [{"de": "eins", "en": "one"}, {"de": "zwei", "en": "two"}])
    write_hub_folder(folder, [{"de": "drei", "en": "three"}], split="validation")
    write_hub_folder(folder, [{"de": "un", "en": "one"}], name="fr-en")
    if card:
        (folder / "README.md").write_text(CARD)
    config = config_of(tmp_path, {"hf": str(folder), "name": "de-en", "split": split})
    expected = [("one", "eins"), ("two", "zwei")] if split == "train" else [("three", "drei")]
    assert pairs_of(config) == expected
    assert describe(config.train[0], config) == f"{folder} de-en {split}"


def test_hub_folder_of_one_configuration_and_a_slice(tmp_path: Path) -> None:
    write_hub_folder(tmp_path / "d", [{"de": str(i), "en": str(-i)} for i in range(10)], name="data")
    source = {"hf": str(tmp_path / "d")}
    assert len(pairs_of(config_of(tmp_path, source))) == 10
    assert pairs_of(config_of(tmp_path, {**source, "split": "train[8:]"})) == [("-8", "8"), ("-9", "9")]


def test_hub_nulls_are_empty_sides(tmp_path: Path) -> None:
    write_hub_folder(tmp_path / "d", [{"de": None, "en": "one"}, {"de": "zwei", "en": None}, None], name="data")
    assert pairs_of(config_of(tmp_path, {"hf": str(tmp_path / "d")})) == [("one", ""), ("", "zwei"), ("", "")]


def test_hub_missing_column_lists_those_there_are(tmp_path: Path) -> None:
    write_hub_folder(tmp_path / "d", [{"de": "a", "en": "b"}], name="data")
    with pytest.raises(DataError, match=r"no column 'text' \(it has: translation\)"):
        pairs_of(config_of(tmp_path, {"hf": str(tmp_path / "d"), "column": "text"}))


def test_hub_missing_language_is_named(tmp_path: Path) -> None:
    write_hub_folder(tmp_path / "d", [{"de": "a", "en": "b"}], name="data")
    with pytest.raises(DataError, match=r"no language 'fr'.*struct<de: string, en: string>"):
        pairs_of(config_of(tmp_path, {"hf": str(tmp_path / "d")}, tgt_lang="fr"))


def test_hub_column_without_languages(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    pa.parquet.write_table(pa.table({"translation": ["a", "b"]}), tmp_path / "d" / "train.parquet")
    with pytest.raises(DataError, match="no language 'en'"):
        pairs_of(config_of(tmp_path, {"hf": str(tmp_path / "d")}))


@pytest.mark.parametrize("source", [{"hf": "no-such-owner/no-such-set"}, {"hf": "EMPTY"}], ids=str)
def test_data_set_that_cannot_be_loaded_says_what_to_do(tmp_path: Path, source: dict[str, str]) -> None:
    (tmp_path / "EMPTY").mkdir()
    name = source["hf"].replace("EMPTY", str(tmp_path / "EMPTY"))
    with pytest.raises(DataError, match=r"Cannot load the data set.*local folder") as caught:
        pairs_of(config_of(tmp_path, {"hf": name}))
    assert name in str(caught.value)


@pytest.mark.parametrize(("src", "tgt"), [(3, 2), (0, 2), (12, 7), (7, 12), (4, 8)])
def test_unequal_counts_name_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, src: int, tgt: int) -> None:
    monkeypatch.setattr(sources, "CHUNK_PAIRS", 4)
    write_pair(tmp_path, b"x\n" * src, b"y\n" * tgt)
    with pytest.raises(DataError) as caught:
        pairs_of(config_of(tmp_path, "c"))
    assert f"{tmp_path / 'c.en'} has {src} lines but {tmp_path / 'c.de'} has {tgt}" in str(caught.value)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("source", ["c", "c.tsv"])
def test_chunks_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, source: str) -> None:
    monkeypatch.setattr(sources, "CHUNK_PAIRS", 4)
    write_pair(tmp_path, *("".join(f"{side}{i}\n" for i in range(count)).encode() for side in "st"))
    (tmp_path / "c.tsv").write_text("".join(f"s{i}\tt{i}\n" for i in range(count)))
    config = config_of(tmp_path, source)
    chunks = list(read_chunks(config.train[0], config))
    assert all(0 < len(src) <= 4 for src, _ in chunks)
    assert pairs_of(config) == [(f"s{i}", f"t{i}") for i in range(count)]


@pytest.mark.parametrize("source", ["none", "none.tsv", {"src": "c.en", "tgt": "none.de"}], ids=str)
def test_missing_file_is_named(tmp_path: Path, source: Any) -> None:
    (tmp_path / "c.en").write_text("x\n")
    with pytest.raises(DataError, match=f"Cannot read {tmp_path}/none.*: No such file"):
        pairs_of(config_of(tmp_path, source))


@pytest.mark.parametrize("source", ["c", "c.tsv"])
def test_mended_lines_are_told_once_with_their_numbers(tmp_path: Path, source: str) -> None:
    write_pair(tmp_path, b"ok\nbad \xff\n", b"gut\n" + b"x" * 70_000 + b"\n")
    (tmp_path / "c.tsv").write_bytes(b"ok\tgut\nbad \xff\tx\n")
    config = config_of(tmp_path, source)
    said: list[str] = []
    assert sum(len(src) for src, _ in read_chunks(config.train[0], config, said.append)) == 2
    bad = "c.tsv" if source == "c.tsv" else "c.en"
    assert said[0] == f"warning: {tmp_path / bad}: 1 line(s) (2) held invalid UTF-8, replaced by U+FFFD."
    cut = [f"warning: {tmp_path / 'c.de'}: 1 line(s) (2) were cut: longer than the line limit."]
    assert said[1:] == (cut if source == "c" else [])


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\nb", 2), (b"a\r\xe2\x80\xa8b\n", 1)])
def test_count_lines(tmp_path: Path, data: bytes, count: int) -> None:
    (tmp_path / "a").write_bytes(data)
    assert count_lines(tmp_path / "a") == count


def odd_pairs() -> list[tuple[str, str]]:
    """Each odd break on the source side, the target side, both, and at both ends; each pair is numbered."""
    texts = [
        pair
        for odd in ODD_BREAKS
        for pair in ((f"a{odd}b", "c"), ("a", f"c{odd}d"), (f"{odd}a{odd}", f"{odd}c{odd}"), (f"a{odd}{odd}b", odd))
    ]
    return [(f"{i} {src} .", f"{i} {tgt} .") for i, (src, tgt) in enumerate(texts)]


def write_odd(folder: Path, kind: str, pairs: list[tuple[str, str]], end: str, bom: str) -> Any:
    """A source of this kind that holds the pairs; its last line has no newline."""
    if kind == "text":
        write_pair(folder, *((bom + end.join(side)).encode() for side in zip(*pairs, strict=True)))
        return "c"
    if kind == "tsv":
        (folder / "c.tsv").write_bytes((bom + end.join(map("\t".join, pairs))).encode())
        return "c.tsv"
    write_hub_folder(folder / "d", [{"en": src, "de": tgt} for src, tgt in pairs], name="data")
    return {"hf": str(folder / "d")}


@pytest.mark.parametrize("kind", ["text", "tsv", "hf"])
def test_odd_breaks_keep_pairs_aligned(tmp_path: Path, kind: str, figure: Figure) -> None:
    pairs = odd_pairs()
    files = [(end, bom) for end in ("\n", "\r\n") for bom in ("", "\ufeff")] if kind != "hf" else [("", "")]
    read, misaligned = 0, 0
    for end, bom in files:
        got = pairs_of(config_of(tmp_path, write_odd(tmp_path, kind, pairs, end, bom)))
        numbers = [[side.split()[0] for side in pair] for pair in got]
        read += len(got)
        misaligned += sum(number != [str(i)] * 2 for i, number in enumerate(numbers))
        assert all(len(side.splitlines()) == 1 and side.isprintable() for side in itertools.chain(*got))
    # The negative control: Python's own idea of a line would have torn these files apart.
    cut = [len("\n".join(side).splitlines()) for side in zip(*pairs, strict=True)]
    assert cut[0] != cut[1] and min(cut) > len(pairs)
    written = len(pairs) * len(files)
    value = f"{read} pairs out of {written} in, {misaligned} misaligned"
    figure(f"pairs_{kind}", value, "all, 0", read == written and not misaligned)


def test_line_break_inside_a_data_set_text_is_a_space(tmp_path: Path) -> None:
    write_hub_folder(tmp_path / "d", [{"en": "two\nlines", "de": "zwei\r\nZeilen"}], name="data")
    assert pairs_of(config_of(tmp_path, {"hf": str(tmp_path / "d")})) == [("two lines", "zwei  Zeilen")]
