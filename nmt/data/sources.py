"""Corpora: text file pairs, TSV files and Hugging Face data sets, all read as chunks of sentence pairs.

A chunk is `(src_lines, tgt_lines)`, two lists of equal length, cleaned by the line contract of `nmt.text.lines`.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmt.config import DataConfig, Source
from nmt.errors import DataError
from nmt.text.lines import LineNotes, clean, open_text, read_lines, read_raw_lines

Chunk = tuple[list[str], list[str]]
Say = Callable[[str], None]
CHUNK_PAIRS = 10_000


def read_chunks(source: Source, config: DataConfig, say: Say = lambda text: None) -> Iterator[Chunk]:
    """Yield the pairs of one source, in order.

    Args:
        say: told at the end which lines had to be mended.
    Raises: DataError (missing, unequal counts, no such column), StorageError.
    """
    if source.hf is not None:
        return _read_dataset(source, config)
    if source.tsv is not None:
        return _read_tsv(Path(config.dir) / source.tsv, say)
    return _read_text_pair(*text_paths(source, config), say)


def text_paths(source: Source, config: DataConfig) -> tuple[Path, Path]:
    """The two files of a text source."""
    folder = Path(config.dir)
    if source.prefix is not None:
        return folder / f"{source.prefix}.{config.src_lang}", folder / f"{source.prefix}.{config.tgt_lang}"
    assert source.src is not None and source.tgt is not None  # Source allows nothing else
    return folder / source.src, folder / source.tgt


def count_lines(path: Path) -> int:
    """Lines of a text file, the last one counted without its newline too. Raises: DataError."""
    with _open(path) as stream:
        return sum(1 for _ in read_raw_lines(stream))


def describe(source: Source, config: DataConfig) -> str:
    """A source's name in messages."""
    if source.hf is not None:
        return f"{source.hf} {source.name or ''} {source.split}".replace("  ", " ")
    if source.tsv is not None:
        return str(Path(config.dir) / source.tsv)
    return " + ".join(map(str, text_paths(source, config)))


def _read_text_pair(src_path: Path, tgt_path: Path, say: Say) -> Iterator[Chunk]:
    src_notes, tgt_notes = LineNotes(), LineNotes()
    with _open(src_path) as src_stream, _open(tgt_path) as tgt_stream:
        src_lines, tgt_lines = read_lines(src_stream, src_notes), read_lines(tgt_stream, tgt_notes)
        total = 0
        while True:
            src = [clean(line) for line in itertools.islice(src_lines, CHUNK_PAIRS)]
            tgt = [clean(line) for line in itertools.islice(tgt_lines, CHUNK_PAIRS)]
            if len(src) != len(tgt):
                num_src = total + len(src) + sum(1 for _ in src_lines)
                num_tgt = total + len(tgt) + sum(1 for _ in tgt_lines)
                raise DataError(
                    f"{src_path} has {num_src:,} lines but {tgt_path} has {num_tgt:,}: line k of one must be the "
                    f"translation of line k of the other. Lines are separated by \\n alone; look for the first "
                    f"line that is no longer the other's translation: there one was split or lost."
                )
            if not src:
                break
            total += len(src)
            yield src, tgt
    for warning in (*src_notes.warnings(str(src_path)), *tgt_notes.warnings(str(tgt_path))):
        say(f"warning: {warning}")


def _read_tsv(path: Path, say: Say) -> Iterator[Chunk]:
    notes = LineNotes()
    with _open(path) as stream:
        lines = enumerate(read_lines(stream, notes), start=1)
        while block := list(itertools.islice(lines, CHUNK_PAIRS)):
            src: list[str] = []
            tgt: list[str] = []
            for number, line in block:
                fields = line.split("\t")
                if len(fields) < 2:
                    raise DataError(f"{path}, line {number}: no TAB. A TSV line is source TAB target.")
                src.append(clean(fields[0]))
                tgt.append(clean(fields[1]))
            yield src, tgt
    for warning in notes.warnings(str(path)):
        say(f"warning: {warning}")


def _read_dataset(source: Source, config: DataConfig) -> Iterator[Chunk]:
    dataset = _load_dataset(source, Path(config.dir))
    if source.column not in dataset.column_names:
        raise DataError(
            f"The data set {source.hf} has no column {source.column!r} (it has: {', '.join(dataset.column_names)}). "
            f"Name the one that holds {{language: text}} with column = …"
        )
    total = 0
    for table in dataset.with_format("arrow").iter(batch_size=CHUNK_PAIRS):
        column = table[source.column].combine_chunks()
        sides = []
        for language in (config.src_lang, config.tgt_lang):
            try:
                texts = column.field(language)
            except (KeyError, AttributeError) as error:
                raise DataError(
                    f"The column {source.column!r} of {source.hf} has no language {language!r}: {column.type}. "
                    f"Set data.src_lang and data.tgt_lang to those it has."
                ) from error
            sides.append(_strings(texts, f"{source.hf}, split {source.split}, language {language}", total))
        total += len(column)
        yield sides[0], sides[1]


def _strings(texts: Any, where: str, rows_before: int) -> list[str]:
    """An Arrow array as cleaned lines; null is an empty one. Raises: DataError (a row that is no text)."""
    try:
        return [clean("" if text is None else text) for text in texts.to_pylist()]
    except (AttributeError, UnicodeDecodeError):
        for number, text in enumerate(texts, start=rows_before + 1):
            try:
                clean(text.as_py() if text.is_valid else "")
            except AttributeError as error:
                problem = f"{type(text.as_py()).__name__} instead of text"
                raise DataError(f"{where}, row {number}: {problem}. Each row must be {{language: text}}.") from error
            except UnicodeDecodeError as error:
                raise DataError(f"{where}, row {number}: invalid UTF-8. Mend or drop that row.") from error
        raise


def _load_dataset(source: Source, folder: Path) -> Any:
    """`load_dataset` on a hub id or on a local folder laid out like a hub repository."""
    import datasets

    assert source.hf is not None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    local = folder / source.hf
    options: dict[str, str | None] = {"name": source.name}
    if local.is_dir() and source.name and not (local / "README.md").is_file():
        options = {"data_dir": source.name}  # without the repository's card, its folders name the configurations
    try:
        return datasets.load_dataset(str(local) if local.is_dir() else source.hf, split=source.split, **options)
    except Exception as error:  # the library raises dozens of kinds, network ones among them
        cause = error.__cause__ or error  # which names the row, where its wrapper says only that there was an error
        raise DataError(
            f"Cannot load the data set {source.hf!r} (name {source.name!r}, split {source.split!r}): "
            f"{str(cause).splitlines()[0] if str(cause) else type(cause).__name__} "
            f"Without a network, give a local folder laid out like the hub's repository as hf = …, or text files as "
            f"src = … and tgt = …"
        ) from error


def _open(path: Path) -> BinaryIO:
    try:
        return open_text(path)
    except DataError as error:
        raise DataError(
            f"{error} Relative paths are resolved against [data] dir (or --data), and the ending of a prefix is "
            f"data.src_lang or data.tgt_lang."
        ) from error
