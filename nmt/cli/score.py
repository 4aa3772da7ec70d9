"""`nmt score`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli import options, streams
from nmt.cli.options import Format
from nmt.cli.turns import Turns
from nmt.errors import ConfigError
from nmt.text.lines import MAX_LINE_BYTES, is_blank

if TYPE_CHECKING:
    from nmt.decoding.search import Hypothesis
    from nmt.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Pair:
    """A line and its translation; `error` says why there is no such pair."""

    src: str = ""
    tgt: str = ""
    error: str = ""


def score(
    context: typer.Context,
    model: options.Models,
    src: Annotated[Path | None, typer.Option(help="Source text. [with --tgt; else pairs from stdin]")] = None,
    tgt: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    output: options.Output = None,
    format: Annotated[
        Format, typer.Option(help="text: score TAB log_prob; jsonl: objects with those of each piece, too.")
    ] = Format.text,
    length_penalty: options.LengthPenalty = None,
    length_penalty_type: options.LengthPenaltyType = None,
    repetition_penalty: options.RepetitionPenalty = None,
    tag: options.SourceTag = None,
    precision: options.Precision = "auto",
    deterministic: options.Deterministic = False,
    num_workers: options.Workers = 0,
    batch_rows: options.BatchRows = None,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    strict: options.Strict = False,
    quiet: options.Quiet = False,
) -> None:
    """How probable the model finds given translations: one line for each pair.

    Pairs are line k of --src and line k of --tgt, or lines of stdin, source TAB target. A line of text is the score
    (the log-probability, normalised for length as the search does, without a coverage penalty), a TAB, and the natural
    log-probability, end included. With --format jsonl it is an object: score, log_prob, tokens (the last is the end),
    token_log_probs, src, tgt. Where either side is blank the line is blank, or the numbers are null.
    """
    if (src is None) != (tgt is None):
        raise ConfigError("Give both --src FILE and --tgt FILE, or neither: then stdin has source TAB target.")
    sources = [streams.Source(path, MAX_LINE_BYTES) for path in ([src, tgt] if src else [None])]
    pairs = (_Pair(*pair) for pair in streams.in_step(*sources)) if src else map(_split, sources[0].lines)
    turns = Turns(any(each.live for each in sources))
    quiet = quiet or not turns.first
    bad, overflows = streams.BadLines(sources[0].name, quiet), streams.Overflows()
    with streams.results_to(turns.output(output)) as out:
        translator = options.open_translator(context)

        def answer(pair: _Pair, hypothesis: "Hypothesis | None") -> str:
            overflows.look([hypothesis] if hypothesis else [])
            return _answer(pair, hypothesis, translator.bundle.tokenizer, format)

        def find(window: list[_Pair]) -> "list[Hypothesis | None]":
            texts = [("", "") if pair.error else (pair.src, pair.tgt) for pair in window]
            return translator.score([src for src, _ in texts], [tgt for _, tgt in texts])

        if translator.has_limit:
            pairs = (p if p.error else replace(p, error=translator.too_long(p.src, p.tgt)) for p in pairs)
        streams.answer(
            pairs,
            out,
            bad,
            find,
            answer,
            turns,
        )
    for source in sources:
        source.warn(quiet)
    overflows.check()
    bad.check()
    for source in sources:
        source.check(strict)


def _split(line: str) -> _Pair:
    """Source TAB target; further columns are not looked at, as in the TSV files of training."""
    if "\t" not in line:
        return _Pair(error="" if is_blank(line) else "no TAB between source and target")
    return _Pair(*line.split("\t")[:2])


def _answer(pair: _Pair, hypothesis: "Hypothesis | None", tokenizer: "Tokenizer", format: Format) -> str:
    """The line that answers a pair."""
    if format is Format.text:
        return "" if hypothesis is None else f"{hypothesis.score:.6f}\t{hypothesis.log_prob:.6f}"
    if pair.error:
        return streams.to_json({"error": pair.error})
    src, tgt = pair.src, pair.tgt
    return streams.to_json({**streams.facts(hypothesis, tokenizer), "src": src, "tgt": tgt})
