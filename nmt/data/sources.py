"""Corpora: text file pairs, TSV, JSON lines, parquet and Hugging Face data sets, read as chunks of sentence pairs.

A chunk is `(src_lines, tgt_lines)`, two lists of equal length, cleaned by the line contract of `nmt.text.lines`.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmt.config import DataConfig, Source
from nmt.data.domains import OfDomains
from nmt.data.misfit import misfit
from nmt.errors import ConfigError, DataError
from nmt.text.archives import existing
from nmt.text.lines import MAX_LINE_BYTES, LineNotes, clean, open_text, read_lines, read_raw_lines

Chunk = tuple[list[str], list[str]]
Pair = tuple[str, str]
Say = Callable[[str], None]
CHUNK_PAIRS = 10_000
_MAX_JSON_BYTES = 16 * MAX_LINE_BYTES  # of a line with all its fields
_PARQUET_BUFFER_BYTES = 1 << 20  # read ahead a column, instead of a whole row group
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")  # which the libraries look at when they are imported


def read_chunks(source: Source, config: DataConfig, say: Say = lambda text: None) -> Iterator[Chunk]:
    """Yield the pairs of one source, in order.

    Args:
        say: told at the end which lines had to be mended.
    Raises: DataError (missing, unequal counts, no such column or domain), StorageError.
    """
    if isinstance(source, OfDomains):
        return _of_domains(source, config, say)
    return _read_whole(source, config, say)


def _read_whole(source: Source, config: DataConfig, say: Say = lambda text: None) -> Iterator[Chunk]:
    if source.hf is not None:
        return _read_dataset(source, config)
    if source.tsv is not None:
        return _read_tsv(source, config, say)
    if source.jsonl is not None:
        return _read_jsonl(source, config, say)
    if source.parquet is not None:
        return _read_parquet(source, config)
    return _read_text_pair(*text_paths(source, config), say)


def _of_domains(source: OfDomains, config: DataConfig, say: Say) -> Iterator[Chunk]:
    """The pairs whose line in the file of domains says so; mended lines are told once, though all are read for each."""
    path = Path(config.dir) / source.file
    wanted, found, pairs = set(source.domains), set[str](), 0
    with _open(path) as stream:
        lines = read_lines(stream)
        for src, tgt in _read_whole(source, config, say if source.others else lambda text: None):
            domains = [clean(line).strip() for line in itertools.islice(lines, len(src))]
            pairs += len(src)
            if len(domains) < len(src):
                raise _unlike(path, pairs - len(src) + len(domains), source, config)
            found.update(domains)
            taken = [place for place, domain in enumerate(domains) if (domain in wanted) != source.others]
            yield [src[place] for place in taken], [tgt[place] for place in taken]
        if more := sum(1 for _ in lines):
            raise _unlike(path, pairs + more, source, config)
    if missing := wanted - found:
        known = _shown(", ".join(map(repr, sorted(found))), 300)
        raise DataError(
            f"{path} has no line {min(missing)!r}, a domain of data.domain_weights. It has: {known}. Mend one of them."
        )


def _unlike(path: Path, lines: int, source: Source, config: DataConfig) -> DataError:
    pairs = sum(len(src) for src, _ in _read_whole(source, config))
    return DataError(
        f"{path} has {lines:,} lines but {describe(source, config)} has {pairs:,} pairs: line k must be the domain of "
        f"pair k."
    )


def text_paths(source: Source, config: DataConfig) -> tuple[Path, Path]:
    """The two files of a text source; those of a prefix may be there in a compressed form."""
    folder = Path(config.dir)
    if source.prefix is not None:
        src, tgt = (folder / f"{source.prefix}.{language}" for language in (config.src_lang, config.tgt_lang))
        return existing(src), existing(tgt)
    assert source.src is not None and source.tgt is not None  # Source allows nothing else
    return folder / source.src, folder / source.tgt


def files_of(source: Source, config: DataConfig) -> list[Path]:
    """The files that a source is read from; none of a data set of Hugging Face."""
    folder = Path(config.dir)
    if source.hf is not None:
        return []
    if source.parquet is not None:
        return _parquet_files(folder / source.parquet)
    file = source.tsv or source.jsonl
    return list(text_paths(source, config)) if file is None else [folder / file]


def refuse_to_overwrite(outputs: Iterable[Path], config: DataConfig) -> None:
    """Raises: ConfigError, if one of the outputs is a file that text is read from."""
    sources = [*config.train, *([config.valid] if config.valid else [])]
    texts = [path for source in sources for path in files_of(source, config)]
    domains = [] if config.train_domain is None else [Path(config.dir) / config.train_domain]
    read = {os.path.realpath(path) for path in (*texts, *domains)}
    for path in outputs:
        if os.path.realpath(path) in read:
            raise ConfigError(f"{path} is text that is read: give another name for what is to be written.")


def count_lines(path: Path) -> int:
    """Lines of a text file, the last one counted without its newline too. Raises: DataError."""
    with _open(path) as stream:
        return sum(1 for _ in read_raw_lines(stream))


def describe(source: Source, config: DataConfig) -> str:
    """A source's name in messages."""
    if source.hf is not None:
        return f"{source.hf} {source.name or ''} {source.split}".replace("  ", " ")
    file = source.tsv or source.jsonl or source.parquet
    if file is not None:
        return str(Path(config.dir) / file)
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
                    f"translation of line k of the other. Lines are separated by \\n alone; "
                    f"{_place_of_misfit(src_path, tgt_path)}"
                )
            if not src:
                break
            total += len(src)
            yield src, tgt
    for warning in (*src_notes.warnings(str(src_path)), *tgt_notes.warnings(str(tgt_path))):
        say(f"warning: {warning}")


def _place_of_misfit(src_path: Path, tgt_path: Path) -> str:
    """Where to look for the line that makes the difference."""
    with _open(src_path) as src_stream, _open(tgt_path) as tgt_stream:
        place = misfit(read_lines(src_stream), read_lines(tgt_stream))
    if place is None:
        return "look for the first line that is no longer the other's translation: there one was split or lost."
    return f"by their lengths, one was split or lost between lines {place[0]:,} and {place[1]:,}."


def _read_tsv(source: Source, config: DataConfig, say: Say) -> Iterator[Chunk]:
    assert source.tsv is not None
    path = Path(config.dir) / source.tsv
    columns = int(source.src_field or 1), int(source.tgt_field or 2)

    def pair(line: str) -> Pair:
        fields = line.split("\t")
        if len(fields) < 2:
            raise ValueError("no TAB. A TSV line is source TAB target.")
        if len(fields) < max(columns):
            raise ValueError(f"{len(fields)} columns, but src_field or tgt_field is {max(columns)}.")
        return fields[columns[0] - 1], fields[columns[1] - 1]

    return _read_pairs(path, pair, say, MAX_LINE_BYTES)


def _read_jsonl(source: Source, config: DataConfig, say: Say) -> Iterator[Chunk]:
    assert source.jsonl is not None
    path = Path(config.dir) / source.jsonl
    src_names, tgt_names = _field_names(source, config)

    def pair(line: str) -> Pair:
        if len(line.encode()) >= _MAX_JSON_BYTES - 3:  # which may have been cut there, at a character
            raise ValueError(f"longer than {_MAX_JSON_BYTES:,} bytes. Leave out fields that are no text.")
        if not line.strip():
            return "", ""
        try:
            record = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deep. Leave out fields that are no text.") from None
        except ValueError as error:
            raise ValueError(f"no JSON ({error}). Mend or drop that line.") from None
        if not isinstance(record, dict):
            raise ValueError('no JSON object. Each line must be one, as {"en": …, "de": …}.')
        return _json_text(record, src_names), _json_text(record, tgt_names)

    return _read_pairs(path, pair, say, _MAX_JSON_BYTES)


def _read_pairs(path: Path, pair: Callable[[str], Pair], say: Say, max_line_bytes: int) -> Iterator[Chunk]:
    """A file that has a pair in each line; `pair` finds it there, or raises a ValueError that says what is wrong."""
    notes = LineNotes()
    with _open(path) as stream:
        lines = enumerate(read_lines(stream, notes, max_line_bytes), start=1)
        while block := list(itertools.islice(lines, CHUNK_PAIRS)):
            src: list[str] = []
            tgt: list[str] = []
            for number, line in block:
                try:
                    src_text, tgt_text = pair(line)
                except ValueError as error:
                    raise DataError(f"{path}, line {number}: {error}") from error
                src.append(clean(src_text))
                tgt.append(clean(tgt_text))
            yield src, tgt
    for warning in notes.warnings(str(path)):
        say(f"warning: {warning}")


def _field_names(source: Source, config: DataConfig) -> list[list[str]]:
    """By what names each side's text may go in JSON lines and parquet; the first that is there is it."""
    sides = (source.src_field, config.src_lang), (source.tgt_field, config.tgt_lang)
    return [[lang, f"translation.{lang}"] if field is None else [str(field)] for field, lang in sides]


def _json_text(record: dict[str, Any], names: list[str]) -> str:
    """The text of the first of these fields that is there; null is an empty one. Raises: ValueError."""
    for name in names:
        value: Any = record
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} is {_shown(value)} instead of text.")
            return value or ""
    raise ValueError(
        f"no {' and no '.join(map(repr, names))} (it has: {_shown(', '.join(record))}). Name the fields that hold the "
        f"texts with src_field = … and tgt_field = …"
    )


def _read_parquet(source: Source, config: DataConfig) -> Iterator[Chunk]:
    assert source.parquet is not None
    for path in _parquet_files(Path(config.dir) / source.parquet):
        yield from _read_parquet_file(path, _field_names(source, config))


def _parquet_files(path: Path) -> list[Path]:
    """The file, or those of a folder or a pattern, by name."""
    found = [path]
    if path.is_dir():
        found = sorted(path.glob("*.parquet"))
    elif any(sign in path.name for sign in "*?[") and not path.exists():
        found = sorted(path.parent.glob(path.name))
    if not found:
        raise DataError(f"There is no parquet file {path}{'/*.parquet' if path.is_dir() else ''}.")
    return found


def _read_parquet_file(path: Path, names: list[list[str]]) -> Iterator[Chunk]:
    import pyarrow as pa
    import pyarrow.parquet

    total = 0
    with _open(path) as stream:
        try:
            file = pa.parquet.ParquetFile(stream, buffer_size=_PARQUET_BUFFER_BYTES)
            chosen = [_parquet_column(path, file.schema_arrow, of_side) for of_side in names]
            for batch in file.iter_batches(CHUNK_PAIRS, columns=chosen):
                sides = []
                for name in chosen:
                    first, *inner = name.split(".")
                    column = batch.column(first)
                    for key in inner:
                        column = column.field(key)
                    sides.append(_strings(column, f"{path}, column {name}", total))
                total += len(batch)
                yield sides[0], sides[1]
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path} is no parquet file, or a damaged one; {total:,} rows could be read: {_shown(str(error), 300)}"
            ) from error


def _parquet_column(path: Path, schema: Any, names: list[str]) -> str:
    """The first of these columns that is there. Raises: DataError."""
    for name in names:
        first, *inner = name.split(".")
        kind: Any = schema.field(first).type if schema.names.count(first) == 1 else None
        for key in inner:
            kind = kind.field(key).type if getattr(kind, "names", None) and key in kind.names else None
        if kind is not None:
            return name
    raise DataError(
        f"{path} has no column {' and no '.join(map(repr, names))} (it has: {_shown(', '.join(schema.names))}). Name "
        f"those that hold the texts with src_field = … and tgt_field = …"
    )


def _read_dataset(source: Source, config: DataConfig) -> Iterator[Chunk]:
    dataset = _load_dataset(source, config)
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


def go_offline() -> None:
    """Never ask the network for data from here on. To be called before the libraries of Hugging Face are imported."""
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))


def is_offline() -> bool:
    """Whether the network is not to be asked, by `go_offline` or by whoever set these variables."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _OFFLINE)


def _load_dataset(source: Source, config: DataConfig) -> Any:
    """`load_dataset` on a hub id or on a local folder laid out like a hub repository."""
    if config.offline:
        go_offline()
    import datasets

    folder = Path(config.dir)
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
            f"{_shown(str(cause).partition(chr(10))[0] or type(cause).__name__, 300).rstrip('.')}. "
            f"Without a network, give a local folder laid out like the hub's repository as hf = …, or text files as "
            f"src = … and tgt = …; --offline asks no network at all."
        ) from error


def _shown(value: object, most: int = 80) -> str:
    """Data in a message: short, and without what could drive a terminal."""
    text = repr(value) if not isinstance(value, str) else repr(value)[1:-1]
    return text if len(text) <= most else f"{text[:most]}…"


def _open(path: Path) -> BinaryIO:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"{path} is no file: a corpus is read several times, so write it to one first.")
    try:
        return open_text(path)
    except DataError as error:
        raise DataError(
            f"{error} Relative paths are resolved against [data] dir (or --data), and the ending of a prefix is "
            f"data.src_lang or data.tgt_lang."
        ) from error
