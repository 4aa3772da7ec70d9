"""`nmt data check|prepare|toy`."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import HELP_OPTIONS, Offline, Quiet, Threads
from nmt.cli.streams import interruptible
from nmt.cli.tokenizer import load_tokenizer
from nmt.errors import ConfigError
from nmt.text.archives import ENDINGS

if TYPE_CHECKING:
    from nmt.config import Config, Source
    from nmt.data.check import Progress

_BETWEEN_LINES_S = 10.0

app = typer.Typer(help="Corpora.", no_args_is_help=True, rich_markup_mode=None, context_settings=HELP_OPTIONS)


@app.command()
def toy(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("data/toy"),
    seed: Annotated[int, typer.Option(help="Of the grammar's choices.")] = 1,
) -> None:
    """Write the built-in English-German toy corpus: text and gold word alignments by split."""
    from nmt.data.toy import write_toy

    for split, pairs in write_toy(out, seed).items():
        typer.echo(f"{split}: {pairs:,} pairs")


@app.command()
def prepare(
    config: Annotated[Path, typer.Argument(help="A TOML recipe.")],
    out: Annotated[Path, typer.Option(help="Folder for tokenizer and token cache; give it to train as --cache.")],
    data: Annotated[str | None, typer.Option(help="Folder of the config's text files.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the config.")] = None,
    text_out: Annotated[
        Path | None,
        typer.Option(help="Write the pairs that are kept as text too: PREFIX.<language>.", metavar="PREFIX"),
    ] = None,
    offline: Offline = False,
) -> None:
    """Do what `nmt train` does before training: clean, train the tokenizer, build the token caches."""
    from nmt.config import load_config
    from nmt.data.prepare import prepare as prepare_data
    from nmt.data.sources import go_offline

    if offline:
        go_offline()
    recipe = load_config(config, set_ or [], trains=False)
    if data is not None:
        recipe = recipe.replace(data={"dir": data})
    with interruptible():
        prepared = prepare_data(recipe, out, say=lambda text: typer.echo(text, err=True), text_out=text_out)
    for split, counts in prepared.counts.items():
        typer.echo(f"{split}: " + ", ".join(f"{number:,} {rule}" for rule, number in counts.items()))


@app.command()
def check(
    config: Annotated[Path | None, typer.Argument(help="A TOML recipe, whose [data] is checked.")] = None,
    src: Annotated[Path | None, typer.Option(help="Source text, instead of CONFIG.")] = None,
    tgt: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    valid_src: Annotated[Path | None, typer.Option(help="Validation text, to look for in the training text.")] = None,
    valid_tgt: Annotated[Path | None, typer.Option(help="Its translation.")] = None,
    test_src: Annotated[Path | None, typer.Option(help="Test text, to look for in the training text.")] = None,
    test_tgt: Annotated[Path | None, typer.Option(help="Its translation.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder of the config's text files.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the config.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="SentencePiece file, bundle or run folder: how well it covers the text.")
    ] = None,
    langid: Annotated[bool, typer.Option("--langid", help="Identify languages too; needs py3langid.")] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the report there as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write it there as one page with plots.")] = None,
    write_bad: Annotated[
        Path | None,
        typer.Option(help="Write every line found there, as TSV: corpus, line, severity, rule, source, target."),
    ] = None,
    threads: Threads = 0,
    quiet: Quiet = False,
) -> int:
    """Report what is wrong with a corpus.

    Exit code 3 if training would refuse it, or the text as a whole can hardly be what it is called; else 0.
    """
    from rich.console import Console

    from nmt.data import report
    from nmt.data.check import check as check_data
    from nmt.data.sources import refuse_to_overwrite
    from nmt.storage.atomic import atomic_stream, replace_file

    text = _corpus(config, src, tgt, (valid_src, valid_tgt), data, set_ or []).data
    test = _file_pair(test_src, test_tgt, "test")
    refuse_to_overwrite([path for path in (json_, html, write_bad) if path], text)
    with (
        interruptible(),
        atomic_stream(write_bad) if write_bad else nullcontext(None) as bad,
        _progress(quiet) as progress,
    ):
        found = check_data(
            text,
            test=test,
            langid=langid,
            tokenizer=load_tokenizer(tokenizer) if tokenizer else None,
            workers=threads or os.cpu_count() or 1,
            bad=None if bad is None else lambda line: bad.write(line.encode("utf-8", "replace")),
            progress=progress,
        )
    if json_ is not None:
        replace_file(json_, report.as_json(found).encode("utf-8", "replace"))
    if html is not None:
        replace_file(html, report.as_html(found).encode("utf-8", "replace"))
    report.show(found, Console(highlight=False, width=None if sys.stdout.isatty() else 120))
    return 3 if found.refusals or found.doubts else 0


def _corpus(
    config: Path | None,
    src: Path | None,
    tgt: Path | None,
    valid: tuple[Path | None, Path | None],
    data: str | None,
    overrides: list[str],
) -> "Config":
    """The config to check, or one made for the files given."""
    from nmt.config import apply_overrides, load_config, parse_config

    valid_source = _file_pair(*valid, "valid")
    if config is not None and src is None and tgt is None:
        recipe = load_config(config, overrides, trains=False)
        if data is not None:
            recipe = recipe.replace(data={"dir": data})
        return recipe if valid_source is None else recipe.replace(data={"valid": valid_source.model_dump()})
    if config is not None or src is None or tgt is None or data is not None:
        raise ConfigError("Give either a CONFIG (with --data DIR, if you like), or --src FILE with --tgt FILE.")
    tables: dict[str, dict[str, object]] = {
        "data": {
            "src_lang": _language(src, "src"),
            "tgt_lang": _language(tgt, "tgt"),
            "train": {"src": str(src), "tgt": str(tgt)},
        },
        "training": {"max_updates": 1},
    }
    if valid_source is not None:
        tables["data"]["valid"] = valid_source.model_dump(exclude_none=True)
    apply_overrides(tables, overrides)
    return parse_config(tables, where="the files given")


def _file_pair(src: Path | None, tgt: Path | None, name: str) -> "Source | None":
    from nmt.config import Source

    if (src is None) != (tgt is None):
        raise ConfigError(f"--{name}-src goes with --{name}-tgt.")
    return None if src is None else Source(src=str(src.absolute()), tgt=str(tgt and tgt.absolute()))


def _language(path: Path, default: str) -> str:
    """The language that a file's ending names, as train.de or train.de.gz; where none does, its script is learnt."""
    endings = [ending[1:] for ending in path.suffixes if ending not in (*ENDINGS, ".txt")]
    return endings[-1] if endings and 2 <= len(endings[-1]) <= 3 and endings[-1].isalpha() else default


@contextmanager
def _progress(quiet: bool) -> "Iterator[Progress]":
    """A bar on a terminal, a line every ten seconds in a log."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    if not quiet and sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda what, done, total: bar.update(
                task, description=f"{what}, {done:,} pairs", completed=done, total=total or None
            )
        return
    last = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        if not quiet and time.monotonic() - last > _BETWEEN_LINES_S:
            last = time.monotonic()
            typer.echo(f"{what}: {done:,} pairs" + (f" of {total:,}" if total else ""), err=True)

    yield show
