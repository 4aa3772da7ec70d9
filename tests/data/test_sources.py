"""Corpora of every kind: pairs in = pairs out, and a mistake names its file, line or column."""

import bz2
import gzip
import itertools
import json
import lzma
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from nmt.config import DataConfig
from nmt.data import sources
from nmt.data.sources import count_lines, describe, is_offline, read_chunks
from nmt.errors import DataError
from nmt.text.lines import MAX_LINE_BYTES, open_text, read_file, read_raw_lines

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


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
}


def write_odd(folder: Path, kind: str, pairs: list[tuple[str, str]], end: str = "\n", bom: str = "") -> Any:
    """A source of this kind that holds the pairs; its last line has no newline."""
    kind, dot, ending = kind.partition(".")
    compress = COMPRESS[dot + ending]
    records = [{"en": src, "de": tgt} for src, tgt in pairs]
    if kind == "text":
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{language}.{language}{dot}{ending}").write_bytes(compress((bom + end.join(side)).encode()))
        return {"src": f"en.en{dot}{ending}", "tgt": f"de.de{dot}{ending}"}
    if kind in ("tsv", "jsonl"):
        lines = map("\t".join, pairs) if kind == "tsv" else (json.dumps(r, ensure_ascii=False) for r in records)
        (folder / f"c.{kind}{dot}{ending}").write_bytes(compress((bom + end.join(lines)).encode()))
        return f"c.{kind}{dot}{ending}"
    if kind == "parquet":
        pa.parquet.write_table(pa.Table.from_pylist(records), folder / "c.parquet", row_group_size=7)
        return "c.parquet"
    write_hub_folder(folder / "d", records, name="data")
    return {"hf": str(folder / "d")}


KINDS = [f"{kind}{ending}" for kind in ("text", "tsv", "jsonl") for ending in COMPRESS] + ["parquet", "hf"]


def test_d3_odd_breaks_keep_pairs_aligned(tmp_path: Path, figure: Figure) -> None:
    """Eleven characters that end a line elsewhere, CRLF ends, a byte-order mark, no last newline; all kinds."""
    pairs = odd_pairs()
    written, read, misaligned = 0, 0, 0
    for kind in KINDS:
        ends = [(end, bom) for end in ("\n", "\r\n") for bom in ("", "\ufeff")]
        for end, bom in ends if kind not in ("parquet", "hf") else [("", "")]:
            got = pairs_of(config_of(tmp_path, write_odd(tmp_path, kind, pairs, end, bom)))
            numbers = [[side.split()[0] for side in pair] for pair in got]
            written, read = written + len(pairs), read + len(got)
            misaligned += sum(number != [str(i)] * 2 for i, number in enumerate(numbers))
            assert all(len(side.splitlines()) == 1 and side.isprintable() for side in itertools.chain(*got))
    # The negative control: Python's own idea of a line would have torn these files apart.
    cut = [len("\n".join(side).splitlines()) for side in zip(*pairs, strict=True)]
    assert cut[0] != cut[1] and min(cut) > len(pairs)
    value = f"{misaligned} of {read} pairs ({written} written, {len(KINDS)} kinds of source)"
    figure("d3_misaligned", value, "0, all read", read == written and not misaligned)


def test_line_break_inside_a_data_set_text_is_a_space(tmp_path: Path) -> None:
    write_hub_folder(tmp_path / "d", [{"en": "two\nlines", "de": "zwei\r\nZeilen"}], name="data")
    assert pairs_of(config_of(tmp_path, {"hf": str(tmp_path / "d")})) == [("two lines", "zwei  Zeilen")]


# Compressed text, JSON lines, parquet


def text_of(pairs: list[tuple[str, str]]) -> tuple[bytes, bytes]:
    src, tgt = ("".join(f"{line}\n" for line in side).encode() for side in zip(*pairs, strict=True))
    return src, tgt


PAIRS = [(f"source {i} ä", f"target {i} ß") for i in range(3000)]


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_prefix_finds_compressed_files(tmp_path: Path, ending: str) -> None:
    src, tgt = text_of(PAIRS)
    (tmp_path / "c.en").write_bytes(src)
    (tmp_path / f"c.de{ending}").write_bytes(COMPRESS[ending](tgt))
    config = config_of(tmp_path, "c")
    assert pairs_of(config) == PAIRS
    assert describe(config.train[0], config).endswith(f"c.de{ending}")
    assert count_lines(tmp_path / f"c.de{ending}") == len(PAIRS)


@pytest.mark.parametrize("ending", list(COMPRESS)[1:])
def test_damaged_and_odd_archives(tmp_path: Path, ending: str) -> None:
    path, text = tmp_path / f"a{ending}", text_of(PAIRS)[0]
    whole = COMPRESS[ending](text)

    def read(data: bytes) -> bytes:
        path.write_bytes(data)
        with open_text(path) as stream:
            return stream.read()

    assert read(whole * 2 + bytes(4)) == text * 2  # joined by cat; padded
    assert read(whole) == text
    path.rename(tmp_path / "other")
    assert read_file(tmp_path / "other") == [src for src, _ in PAIRS]  # known by its first bytes
    for broken, said in (
        (whole[: len(whole) // 2], f"{path} is cut short: its .* up to line"),
        (whole[:-1], "is cut short"),
        (whole + b"rubbish" * 9, r"is damaged .* up to line 3,001, byte"),
        (whole[:40] + bytes(60) + whole[100:], "is damaged"),
        (b"", "not compressed as its name says, it is empty"),
        (b"<html>404</html>", "not compressed as its name says"),
    ):
        with pytest.raises(DataError, match=said):
            read(broken)


def test_an_archive_bomb_streams(tmp_path: Path, full: bool, figure: Figure) -> None:
    """A line of a gigabyte of nothing (short form: 48 MB, two kinds) in few bytes: it is thrown away in pieces."""
    peaks = {}
    for ending in list(COMPRESS)[1:] if full else (".zst", ".bz2"):
        (tmp_path / "bomb").write_bytes(COMPRESS[ending](bytes(1 << 24)) * (64 if full else 3))  # members joined
        tracemalloc.start()
        with open_text(tmp_path / "bomb") as stream:
            assert [len(raw) for raw, _ in read_raw_lines(stream)] == [MAX_LINE_BYTES]
        peaks[ending] = tracemalloc.get_traced_memory()[1] >> 20
        tracemalloc.stop()
    with open_text(tmp_path / "bomb") as stream:
        assert len(stream.read(1 << 26)) >> 20 > 40  # the negative control: all at once
    figure("archive_bomb_mb", peaks, "<= 40 each", max(peaks.values()) <= 40)


def test_jsonl_fields(tmp_path: Path) -> None:
    records: list[Any] = [
        {"en": "one", "de": "eins", "n": 1}, {"translation": {"en": "two", "de": "zwei"}}, {"en": None, "de": "drei"},
        {"en": "a\nb\ud800", "de": "\u2028", "x": float("nan")},
    ]  # fmt: skip
    lines = [json.dumps(record) for record in records] + ["", '{"en": "no", "de": "", "en": "last"}']
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    expected = [("one", "eins"), ("two", "zwei"), ("", "drei"), ("a b\ufffd", ""), ("", ""), ("last", "")]
    assert pairs_of(config_of(tmp_path, "c.jsonl")) == expected
    (tmp_path / "d.jsonl").write_text('{"a": {"b": "one"}, "c": "eins"}\n')
    named = {"jsonl": "d.jsonl", "src_field": "a.b", "tgt_field": "c"}
    assert pairs_of(config_of(tmp_path, named)) == [("one", "eins")]


BAD_JSON = {
    "{": "no JSON", "[1]": "no JSON object", "7": "no JSON object", '{"de": "x"}': "no 'en' and no 'translation.en'",
    '{"en": 7, "de": "x"}': "en is 7 instead of text", "[" * 100_000: "nested too deep",
    '{"en": "a", "de": "b", "n": ' + "9" * 5000 + "}": "no JSON", '{"en": ["a"], "de": "b"}': "instead of text",
    '{"en": "a", "de": "b", "x": "' + "y" * 2**20 + '"}': "longer than",
    '{"x\x1b[31m": 1}': r"it has: x\\x1b\[31m\)",
}  # fmt: skip


@pytest.mark.parametrize("line", BAD_JSON, ids=lambda line: line[:30])
def test_bad_json_is_named_by_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "c.jsonl").write_text('{"en": "a", "de": "b"}\n' + line.replace("\x1b", "\\u001b") + "\n")
    with pytest.raises(DataError, match=rf"c\.jsonl, line 2: .*{BAD_JSON[line]}"):
        pairs_of(config_of(tmp_path, "c.jsonl"))


def test_tsv_columns(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("x\teins\tone\n")
    assert pairs_of(config_of(tmp_path, {"tsv": "c.tsv", "src_field": 3, "tgt_field": 2})) == [("one", "eins")]
    with pytest.raises(DataError, match=r"c\.tsv, line 1: 3 columns, but src_field or tgt_field is 4"):
        pairs_of(config_of(tmp_path, {"tsv": "c.tsv", "src_field": 4}))


def test_parquet_files(tmp_path: Path) -> None:
    pairs = PAIRS[:20]
    flat = pa.table({"en": [src for src, _ in pairs], "de": pa.array([t for _, t in pairs]).dictionary_encode()})
    nested = pa.table({"translation": [{"en": src, "de": tgt} for src, tgt in pairs] + [None], "id": range(21)})
    (tmp_path / "parts").mkdir()
    pa.parquet.write_table(flat, tmp_path / "parts" / "p-0.parquet", row_group_size=6)
    pa.parquet.write_table(nested, tmp_path / "parts" / "p-1.parquet")
    for source in ("parts", "parts/p-*.parquet", "parts/p-?.parquet"):
        assert pairs_of(config_of(tmp_path, {"parquet": source})) == pairs * 2 + [("", "")]
    one = {"parquet": "parts/p-0.parquet", "src_field": "de", "tgt_field": "en"}
    assert pairs_of(config_of(tmp_path, one)) == [(tgt, src) for src, tgt in pairs]
    for source, said in (
        ({"parquet": "none*.parquet"}, "no parquet file"),
        ({"parquet": "none.parquet"}, "Cannot read"),
        ({**one, "src_field": "fr"}, r"no column 'fr' \(it has: en, de\)"),
        ({"parquet": "parts/p-1.parquet", "src_field": "id"}, "column id, row 1: int instead of text"),
        ({"parquet": "parts/p-1.parquet", "src_field": "translation"}, "row 1: dict instead of text"),
    ):
        with pytest.raises(DataError, match=said):
            pairs_of(config_of(tmp_path, source))
    whole = (tmp_path / "parts" / "p-0.parquet").read_bytes()
    for data in (b"", b"rubbish" * 99, whole[: len(whole) // 2], whole[:8] + bytes(200) + whole[208:]):
        (tmp_path / "bad.parquet").write_bytes(data)
        with pytest.raises(DataError, match=r"bad\.parquet is no parquet file, or a damaged one"):
            pairs_of(config_of(tmp_path, "bad.parquet"))


def test_fields_that_do_not_fit_their_kind() -> None:
    for source, said in (
        ({"tsv": "a", "src_field": "en"}, "numbers of columns"),
        ({"tsv": "a", "src_field": 0}, "numbers of columns"),
        ({"jsonl": "a", "src_field": 1}, "names of fields"),
        ({"hf": "a", "src_field": "en"}, "go with tsv, jsonl and parquet"),
        ({"tsv": "a", "jsonl": "b"}, "give exactly one"),
    ):
        with pytest.raises(ValueError, match=said):
            config_of(Path("."), source)


def test_offline_is_told_to_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    assert not is_offline()
    with pytest.raises(DataError, match="--offline asks no network"):
        pairs_of(config_of(Path("."), {"hf": "no-such-owner/no-such-set"}, offline=True))
    assert is_offline() and os.environ == {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
