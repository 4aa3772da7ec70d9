"""`nmt eval`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import BeamSize, Device, LengthPenalty, Quiet, Threads, use_threads
from nmt.errors import ConfigError


def evaluate(
    model: Annotated[Path | None, typer.Option("-m", "--model", help="Bundle or run folder that translates.")] = None,
    src: Annotated[Path | None, typer.Option(help="Source text to translate.")] = None,
    ref: Annotated[list[Path] | None, typer.Option(help="Raw reference text; may be given several times.")] = None,
    hyp: Annotated[Path | None, typer.Option(help="Translations to score, instead of a model.")] = None,
    test_set: Annotated[str | None, typer.Option("-t", "--test-set", help="sacreBLEU's name, as wmt14/full.")] = None,
    langpair: Annotated[str | None, typer.Option("-l", "--langpair", help="Its languages, as en-de.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="bleu, chrf, ter; may be repeated. [all]")] = None,
    tokenize: Annotated[str | None, typer.Option(help="sacreBLEU's tokenizer. [by language]")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    tgt_lang: Annotated[str | None, typer.Option(help="Language of --hyp; chooses the tokenizer.")] = None,
    save_hyp: Annotated[Path | None, typer.Option(help="Write the translations there.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Scores as one JSON object.")] = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    device: Device = "auto",
    threads: Threads = 0,
    quiet: Quiet = False,
) -> None:
    """Score translations against raw references: BLEU, chrF and TER with sacreBLEU's signature."""
    from nmt.evaluation.metrics import METRICS, load_test_set, score, warn_if_tokenised
    from nmt.storage.atomic import replace_file
    from nmt.text.lines import read_file

    if test_set is not None:
        if langpair is None or src or ref:
            raise ConfigError("-t NAME goes with -l SRC-TGT, and without --src and --ref.")
        loaded = load_test_set(test_set, langpair)
        sources, references, tgt_lang = loaded.sources, loaded.references, tgt_lang or langpair.partition("-")[2]
    elif ref:
        sources, references = read_file(src) if src else [], [read_file(path) for path in ref]
    else:
        raise ConfigError("Give --ref FILE, or -t NAME -l SRC-TGT.")

    if hyp is not None:
        hypotheses = read_file(hyp)
    elif model is not None and (src is not None or test_set is not None):
        from nmt.decoding.translator import Translator

        use_threads(threads)
        translator = Translator(model, device=device, beam_size=beam_size, length_penalty=length_penalty)
        hypotheses = translator.translate(sources)
        tgt_lang = tgt_lang or translator.bundle.config.tgt_lang
    else:
        raise ConfigError("Give --hyp FILE, or -m MODEL with --src FILE (or -t NAME).")

    warning = warn_if_tokenised(hypotheses)
    if warning and not quiet:
        typer.echo(f"warning: {warning}", err=True)
    if save_hyp is not None:
        replace_file(save_hyp, "".join(f"{line}\n" for line in hypotheses).encode())
    scores = score(
        hypotheses,
        references,
        metrics=tuple(metric or METRICS),
        tgt_lang=tgt_lang,
        tokenize=tokenize,
        lowercase=lowercase,
    )
    if json_:
        typer.echo(
            json.dumps({s.name: {"score": s.value, "signature": s.signature, "detail": s.detail} for s in scores})
        )
    else:
        for s in scores:
            typer.echo(f"{s.name} {s.value:.2f} {s.detail}".rstrip() + f"  {s.signature}")
