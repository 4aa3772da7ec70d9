"""`nmt eval`."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli import options
from nmt.cli.eval_alignments import ChooseBy, Request, evaluate_alignments
from nmt.cli.streams import say
from nmt.errors import ConfigError
from nmt.text.lines import LineNotes, read_file


def evaluate(
    context: typer.Context,
    model: Annotated[list[Path] | None, typer.Option("-m", "--model", help=options.MODELS_HELP)] = None,
    src: Annotated[Path | None, typer.Option(help="Source text to translate.")] = None,
    ref: Annotated[list[Path] | None, typer.Option(help="Raw reference text; may be given several times.")] = None,
    hyp: Annotated[Path | None, typer.Option(help="Translations to score, instead of a model.")] = None,
    test_set: Annotated[str | None, typer.Option("-t", "--test-set", help="sacreBLEU's name, as wmt14/full.")] = None,
    langpair: Annotated[str | None, typer.Option("-l", "--langpair", help="Its languages, as en-de.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="bleu, chrf, ter; may be repeated. [all]")] = None,
    tokenize: Annotated[str | None, typer.Option(help="sacreBLEU's tokenizer. [by language]")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    tgt_lang: Annotated[str | None, typer.Option(help="Language of --hyp; chooses the tokenizer.")] = None,
    align: Annotated[
        Path | None, typer.Option(help='Word alignments by hand ("i-j" sure, "ipj" possible): compare links instead.')
    ] = None,
    tgt: Annotated[Path | None, typer.Option(help="With --align: the target text that is aligned with --src.")] = None,
    reverse_model: Annotated[
        Path | None, typer.Option(help="With --align: a model of the way back; both directions are joined.")
    ] = None,
    choose: Annotated[
        ChooseBy | None,
        typer.Option(help="Layer and head by the first half of --align (the other is scored), or by both models."),
    ] = None,
    by_head: Annotated[bool, typer.Option("--by-head", help="With --align: show every layer and head.")] = False,
    save_hyp: Annotated[Path | None, typer.Option(help="Write the translations there.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Scores as one JSON object.")] = False,
    beam_size: options.BeamSize = None,
    length_penalty: options.LengthPenalty = None,
    tag: options.SourceTag = None,
    split_sentences: options.SplitSentences = None,
    align_layer: options.AlignLayer = None,
    align_head: options.AlignHead = None,
    align_shift: options.AlignShift = None,
    align_threshold: options.AlignThreshold = None,
    precision: options.Precision = "auto",
    deterministic: options.Deterministic = False,
    num_workers: options.Workers = 0,
    offline: options.Offline = False,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    quiet: options.Quiet = False,
) -> None:
    """Score translations against raw references: BLEU, chrF and TER with sacreBLEU's signature.

    With --align word alignments are scored: those of --src and --tgt by a model, or those in --hyp, against links made
    by hand: alignment error rate, precision and recall, in percent. With --reverse-model each direction is, and what
    they give together (intersection, union, grow-diag, grow-diag-final, grow-diag-final-and).
    """
    if align is not None:
        _refuse_beside_align(model, hyp, ref or test_set or langpair or save_hyp)
        request = Request(align, src, tgt, hyp, reverse_model, by_head, choose)
        evaluate_alignments(context, request, partial(_read, quiet=quiet), as_json=json_, quiet=quiet)
        return
    if tgt or reverse_model or choose or by_head:
        raise ConfigError("--tgt, --reverse-model, --choose and --by-head go with --align GOLD.")
    from nmt.data.sources import go_offline
    from nmt.evaluation.metrics import METRICS, score, warn_if_tokenised
    from nmt.storage.atomic import replace_file

    if offline:
        go_offline()
    if (not model) == (hyp is None):
        raise ConfigError("Give either -m MODEL with --src FILE (or -t NAME), or --hyp FILE.")
    if hyp is not None and save_hyp is not None:
        raise ConfigError("--save-hyp saves what -m MODEL translates; --hyp is a file already.")
    sources, references = _texts(src, ref, test_set, langpair, needs_sources=hyp is None, quiet=quiet)
    language = tgt_lang or (langpair.partition("-")[2] if langpair else None)
    compute = partial(score, metrics=tuple(metric or METRICS), tokenize=tokenize, lowercase=lowercase)
    if hyp is not None:
        hypotheses = _read(hyp, quiet)
    else:
        assert model
        # What is wrong with options or counts shows here, not after everything is translated.
        compute(["a"] * len(sources), references, tgt_lang=language)
        translator = options.open_translator(context)
        languages = f"{translator.bundle.config.src_lang}-{translator.bundle.config.tgt_lang}"
        if langpair is not None and langpair != languages:
            raise ConfigError(f"The model translates {languages}, the test set is {langpair}.")
        language = language or translator.bundle.config.tgt_lang
        hypotheses = translator.translate(sources)
    warning = warn_if_tokenised(hypotheses)
    if warning and not quiet:
        say(f"warning: {warning}")
    if save_hyp is not None:
        replace_file(save_hyp, "".join(f"{line}\n" for line in hypotheses).encode())
    scores = compute(hypotheses, references, tgt_lang=language)
    if json_:
        found = {s.name: {"score": s.value, "signature": s.signature, "detail": s.detail} for s in scores}
        typer.echo(json.dumps(found))
        return
    for s in scores:
        typer.echo(f"{s.name} {s.value:.2f} {s.detail}".rstrip() + f"  {s.signature}")


def _refuse_beside_align(model: list[Path] | None, hyp: Path | None, others: object) -> None:
    """Raises: ConfigError."""
    if (not model) == (hyp is None):
        raise ConfigError("With --align GOLD give either -m MODEL with --src FILE and --tgt FILE, or --hyp LINKS.")
    if others:
        raise ConfigError("--align GOLD scores word alignments: leave out --ref, -t, -l and --save-hyp.")


def _texts(
    src: Path | None,
    ref: list[Path] | None,
    test_set: str | None,
    langpair: str | None,
    needs_sources: bool,
    quiet: bool,
) -> tuple[list[str], list[list[str]]]:
    """Source lines and reference streams, from files or from a test set of sacreBLEU's."""
    from nmt.evaluation.metrics import load_test_set

    if test_set is not None:
        if langpair is None or src or ref:
            raise ConfigError("-t NAME goes with -l SRC-TGT, and without --src and --ref.")
        loaded = load_test_set(test_set, langpair)
        return loaded.sources, loaded.references
    if not ref or (needs_sources and src is None):
        raise ConfigError("Give --ref FILE (and --src FILE with a model), or -t NAME -l SRC-TGT.")
    return _read(src, quiet) if src else [], [_read(path, quiet) for path in ref]


def _read(path: Path, quiet: bool) -> list[str]:
    """All lines of a file; what had to be mended is told."""
    notes = LineNotes()
    lines = read_file(path, notes)
    for warning in [] if quiet else notes.warnings(str(path)):
        say(f"warning: {warning}")
    return lines
