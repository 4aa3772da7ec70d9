"""`nmt model info|check|import|export`."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import HELP_OPTIONS, Model, Quiet, Threads, use_threads
from nmt.cli.streams import say
from nmt.errors import BundleError, ConfigError, DataError

if TYPE_CHECKING:
    from nmt.bundle import Bundle
    from nmt.interop.parity import Translate

_MAX_SHEET_BYTES = 1 << 20

app = typer.Typer(help="Trained models.", no_args_is_help=True, rich_markup_mode=None, context_settings=HELP_OPTIONS)


@app.command()
def info(
    model: Model,
    json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw how the run went instead: BLEU and loss by minutes; .png, .svg or .pdf.")
    ] = None,
    beside: Annotated[list[Path] | None, typer.Option(help="Another run in the same picture; may be repeated.")] = None,
) -> None:
    """Show what a model is: languages, shape, size, decode defaults. Loading it verifies it."""
    if (beside and plot is None) or (json_ and plot is not None):
        raise ConfigError("--beside goes with --plot, and --json does not.")
    if plot is not None:
        from nmt.training.curves import plot_curves, read_curve

        _warn(plot_curves([read_curve(run) for run in [model, *(beside or [])]], plot), quiet=False)
        return
    from nmt.bundle import Bundle, find_bundle

    bundle = Bundle.load(model)
    config = bundle.config
    facts: dict[str, object] = {
        "folder": str(find_bundle(model)),
        "languages": f"{config.src_lang} -> {config.tgt_lang}",
        "parameters": bundle.model.num_parameters(),
        "vocabulary": {"source": config.src_vocab_size, "target": config.tgt_vocab_size},
        "trained on source pieces": config.max_length,
        "training lines of one sentence": config.one_sentence_share,
        "model": {key: value for key, value in config.model.used().items() if value is not None},
        "tags": " ".join(config.tags) or "none",
        "decoding": config.decoding.model_dump(),
    }
    if json_:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else f"{value}"
        typer.echo(f"{name}: {shown}")


@app.command()
def check(
    config: Annotated[Path | None, typer.Argument(help="A TOML recipe: a fresh model of its shape is checked.")] = None,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="Bundle folder, or run folder of nmt train, instead of CONFIG.")
    ] = None,
    src: Annotated[
        Path | None, typer.Option(help="Source text that MODEL translates, 100 lines. [its validation text]")
    ] = None,
    tgt: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the config.")] = None,
    length: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Pieces of a sentence, of which memory is told. [128]")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=1_000_000, help="Sentences at a time, likewise.")] = 32,
    json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    threads: Threads = 0,
    quiet: Quiet = False,
) -> int:
    """Look for what is wrong with a model: masks, positions, scale, cache, gradients, learning, its translations.

    A line each: ok, suspicious, broken, or skipped where a check does not apply, with the likely cause and what to do.
    Exit code 5 if something is broken, else 0.
    """
    if config is not None and model is None and src is not None:
        raise ConfigError("--src is text for a trained model to translate: it goes with -m MODEL, not with a CONFIG.")
    if (config is None) == (model is None) or (model is not None and set_):
        raise ConfigError("Give either a CONFIG (with --set, if you like), or -m MODEL (with --src and --tgt).")
    if tgt is not None and src is None:
        raise ConfigError("--tgt goes with --src.")
    from nmt.bundle import Bundle
    from nmt.config import load_config
    from nmt.diagnosis.check import check_model, check_text
    from nmt.diagnosis.findings import as_lines, as_records, is_broken
    from nmt.diagnosis.memory import as_bytes, bytes_to_check, memory, usual_length
    from nmt.diagnosis.outputs import read_text, validation_text
    from nmt.diagnosis.subject import Subject

    use_threads(threads)
    with _checking(quiet) as progress:

        def refuse_too_large(parameters: int) -> None:
            needed = as_bytes(bytes_to_check(parameters))
            progress(f"{parameters:,} parameters, which needs {needed} of memory at least")

        bundle = None if model is None else Bundle.load(model)
        if bundle is not None:
            refuse_too_large(bundle.model.num_parameters())
            subject = Subject(bundle.model, bundle.config.model, bundle.tokenizer.special, fresh=False)
            decoding = bundle.config.decoding
        else:
            assert config is not None
            recipe = load_config(config, set_ or [], trains=False)
            refuse_too_large(Subject.parameters_of(recipe))  # before they are there
            subject, decoding = Subject.from_config(recipe), recipe.decoding
        length = usual_length(subject.model, length)
        progress("memory")
        findings = {"memory": memory(subject, length, batch, decoding.beam_size)}
        findings |= check_model(subject, say=progress)
        if bundle is not None:
            sources, references = validation_text(bundle.config) if src is None else read_text(src, tgt)
            findings |= check_text(bundle, sources, references, progress)
    if json_:
        typer.echo(json.dumps({"broken": is_broken(findings), "findings": as_records(findings)}, ensure_ascii=False))
    else:
        for line in as_lines(findings):
            typer.echo(line)
    return BundleError.exit_code if is_broken(findings) else 0


@contextmanager
def _checking(quiet: bool) -> Iterator[Callable[[str], None]]:
    """What is told of each check as it begins: on a terminal in one line that changes, in a log a line each."""
    if quiet:
        yield lambda what: None
        return
    if not sys.stderr.isatty():
        yield lambda what: say(f"checking: {what} …")
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda what: status.update(f"checking: {escape(what)} …")


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the other program's model.")],
    out: Annotated[Path, typer.Option(help="Bundle folder to write.")],
    format: Annotated[
        str, typer.Option(help="marian-hf: MarianMT of Hugging Face transformers, as OPUS-MT.")
    ] = "marian-hf",
    src_lang: Annotated[str | None, typer.Option(help="[the model's]")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="[the model's]")] = None,
    quiet: Quiet = False,
) -> None:
    """Make a bundle of another program's model: it translates, plots and fine-tunes like one trained here."""
    from nmt.interop.marian_import import import_marian
    from nmt.storage.atomic import atomic_folder

    if format != "marian-hf":
        raise ConfigError(f"--format {format} cannot be imported; marian-hf can.")
    _refuse_existing(out)
    bundle, warnings = import_marian(folder, src_lang, tgt_lang)
    with atomic_folder(out) as temporary:
        bundle.write_into(temporary)
    _warn(warnings, quiet)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Bundle folder, or run folder of nmt train.")],
    format: Annotated[
        str,
        typer.Option(
            help="marian-hf (Hugging Face transformers), ctranslate2, or nmt-fp16: a bundle of half the size."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    check: Annotated[
        Path | None, typer.Option(help="Source lines: translate 50 with both programs; fail if they differ.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a model for another program, or in half precision; its sheet, README.md, goes with it."""
    from nmt.bundle import Bundle, find_bundle
    from nmt.interop import parity
    from nmt.interop.ctranslate2 import export_ctranslate2
    from nmt.interop.half import export_half
    from nmt.interop.marian_export import export_marian
    from nmt.storage.atomic import atomic_folder, write_file
    from nmt.storage.manifest import README

    formats = {
        "marian-hf": (export_marian, parity.transformers_translations),
        "ctranslate2": (export_ctranslate2, parity.ctranslate2_translations),
        "nmt-fp16": (export_half, lambda folder: _translations(Bundle.load(folder))),
    }
    if format not in formats:
        raise ConfigError(f"--format {format} cannot be exported; {', '.join(formats)} can.")
    _refuse_existing(out)
    lines = [] if check is None else _first_lines(check)
    bundle, sheet = Bundle.load(model), find_bundle(model) / README
    write, translations = formats[format]
    with atomic_folder(out) as temporary:
        warnings = write(bundle, temporary)
        # The one file that no checksum covers: a link may lead to anything.
        if sheet.is_file() and not sheet.is_symlink() and sheet.stat().st_size <= _MAX_SHEET_BYTES:
            write_file(temporary / README, sheet.read_bytes())
        if lines:  # before the folder has its name: an export that translates otherwise is not kept
            shares = parity.parity(_translations(bundle), translations(temporary), lines, _limits(bundle, lines))
            for beam, share in shares.items():
                typer.echo(f"beam {beam}: {share:.1%} of {len(lines)} lines translated alike")
            parity.refuse_too_few(shares, out)
    _warn(warnings, quiet)


def _translations(bundle: "Bundle") -> "Translate":
    """Ours, as the parity check wants them: of whole lines, however long, as the other program translates them."""
    from nmt.bundle import Bundle
    from nmt.decoding.translator import Translator
    from nmt.interop.parity import DECODING

    unlimited = Bundle(bundle.config.model_copy(update={"max_length": sys.maxsize}), bundle.model, bundle.tokenizer)

    def translate(lines: Sequence[str], limits: Sequence[int], beam: int) -> list[str]:
        return Translator(unlimited, decoding={**DECODING, "beam_size": beam}).translate(lines)

    return translate


def _limits(bundle: "Bundle", lines: Sequence[str]) -> list[int]:
    """The most pieces that our Translator gives each line."""
    most_pieces = bundle.config.decoding.most_pieces
    return [most_pieces(len(ids)) for ids in bundle.tokenizer.encode_src(lines)]


def _first_lines(path: Path) -> list[str]:
    from itertools import islice

    from nmt.interop.parity import LINES
    from nmt.text.lines import clean, open_text, read_lines

    with open_text(path) as stream:
        lines = list(islice(filter(None, map(clean, read_lines(stream))), LINES))
    if not lines:
        raise DataError(f"There is no text in {path}.")
    return lines


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise ConfigError(f"{out} exists. Give another --out, or delete it.")


def _warn(warnings: Sequence[str], quiet: bool) -> None:
    if not quiet:
        for warning in warnings:
            say(f"warning: {warning}")
