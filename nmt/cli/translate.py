"""`nmt translate`."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

import typer

from nmt.cli import options, streams
from nmt.cli.options import Format
from nmt.cli.turns import Turns
from nmt.errors import ConfigError
from nmt.text.lines import MAX_LINE_BYTES, Numbers, is_blank

if TYPE_CHECKING:
    from nmt.decoding.translator import Translation, Translator

_MAX_JSON_BYTES = 16 * MAX_LINE_BYTES  # of a line with all its fields


@dataclass(frozen=True)
class _Request:
    """What a line asks for.

    Attributes:
        prefix: what the translation must begin with.
        fields: of a line of JSON; None of any other, and of a blank one.
        error: why the line cannot be translated.
        number: of the line, from 1.
    """

    text: str = ""
    prefix: str = ""
    fields: dict[str, Any] | None = None
    error: str = ""
    number: int = 0


class _Found(NamedTuple):
    """What became of a line, and its links as Pharaoh; None, if there are none or they were not asked for."""

    translation: "Translation"
    links: str | None = None


def translate(
    context: typer.Context,
    model: options.Models,
    input: Annotated[Path | None, typer.Option("-i", "--input", help="Text file. [stdin]")] = None,
    output: options.Output = None,
    prefix: Annotated[
        Path | None, typer.Option(help="Line k of this file is what translation k must begin with, in whole words.")
    ] = None,
    format: Annotated[
        Format, typer.Option(help='jsonl: objects with "text" (and "prefix") in; the same with their translation out.')
    ] = Format.text,
    protect: options.Protect = False,
    alignments: Annotated[
        Path | None,
        typer.Option(help='Write word alignments there, "i-j" a link; "-": only as a field of --format jsonl.'),
    ] = None,
    line_buffered: Annotated[
        bool, typer.Option("--line-buffered", help="Answer each line before the next is read; slower.")
    ] = False,
    beam_size: options.BeamSize = None,
    n_best: options.NBest = None,
    length_penalty: options.LengthPenalty = None,
    length_penalty_type: options.LengthPenaltyType = None,
    coverage_penalty: options.CoveragePenalty = None,
    max_length_ratio: options.MaxLengthRatio = None,
    max_length_extra: options.MaxLengthExtra = None,
    max_length: options.MaxLength = None,
    min_length: options.MinLength = None,
    min_length_ratio: options.MinLengthRatio = None,
    no_repeat_ngram: options.NoRepeatNgram = None,
    repetition_penalty: options.RepetitionPenalty = None,
    sample: options.Sample = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    tag: options.SourceTag = None,
    split_sentences: options.SplitSentences = None,
    align_layer: options.AlignLayer = None,
    align_head: options.AlignHead = None,
    align_shift: options.AlignShift = None,
    align_threshold: options.AlignThreshold = None,
    precision: options.Precision = "auto",
    deterministic: options.Deterministic = False,
    num_workers: options.Workers = 0,
    batch_rows: options.BatchRows = None,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    strict: options.Strict = False,
    quiet: options.Quiet = False,
) -> None:
    """Translate lines: line k of stdin becomes line k of stdout.

    With --format jsonl each line is an object with a string "text", and may have a "prefix". It comes out with
    "translation", "score" (the log-probability, normalised as the search does), "log_prob", "tokens" (the last is the
    end), "token_log_probs" and, with several, "n_best"; fields of these names are overwritten, all others kept. A line
    that is no such object gets an "error" instead, and the exit code is 3.

    With --protect the placeholders, tags, entities, URLs and e-mail addresses of a line come out byte for byte, once
    each, tags nested as they were; a line where that failed is counted on stderr. "protected" then says how: copied,
    masked, placed (by the model's attention), or lost; null if there were none.

    With --alignments line k of that file has the links of line k with its (best) translation: "i-j" for word i of the
    line as it was given and word j of the translation as it is printed, words between white space, from 0 (Pharaoh).
    JSON then has them in "alignment". Each word of the translation has the word that the model looked at most: see
    --align-layer, and nmt eval --align, which finds the layer and head that do it best.
    """
    _refuse_contradictions(format, n_best, prefix, protect)
    links_file = _links_file(alignments, output, [input, prefix], format)
    source = streams.Source(input, MAX_LINE_BYTES if format is Format.text else _MAX_JSON_BYTES)
    prefixes = streams.Source(prefix, MAX_LINE_BYTES) if prefix is not None else None
    requests = (replace(r, number=n) for n, r in enumerate(_requests(source, prefixes, format, protect), start=1))
    read = [source, *([prefixes] if prefixes else [])]
    turns = Turns(any(each.live for each in read), line_buffered)
    silent, quiet = quiet, quiet or not turns.first  # every process knows its own lines' translations alone
    bad, overflows = streams.BadLines(source.name, quiet), streams.Overflows()
    doubts, unaligned = (streams.short_translations(), streams.lost_items()), Numbers()
    with streams.results_to(turns.output(output)) as out, _with_links(out, links_file, turns) as both:
        translator = options.open_translator(context)
        find = _protecting(translator) if protect else _finding(translator)

        def answer(request: _Request, found: _Found) -> str:
            overflows.look(found.translation.hypotheses)
            for doubt in doubts:
                doubt.look(request.number, found.translation)
            if alignments is not None and found.links is None:
                unaligned.add(request.number)
            line = _answer(request, found, translator, format, protect, alignments is not None)
            return line if links_file is None else f"{line}\t{found.links or ''}"

        find_all = _found_by(find, translator, alignments is not None)
        streams.answer(requests, both, bad, find_all, answer, turns, line_buffered=line_buffered)
    for each in read:
        each.warn(quiet)
    for doubt in doubts:
        doubt.warn(source.name, silent)
    if unaligned.count and not silent:
        streams.say(f"warning: {source.name}: {unaligned} have no alignment: longer than the model can look at.")
    overflows.check()
    bad.check()
    for each in read:
        each.check(strict)


def _found_by(
    find: "Callable[[list[_Request]], list[Translation]]", translator: "Translator", aligns: bool
) -> Callable[[list[_Request]], list[_Found]]:
    """What `find` finds, with links if that is asked for."""
    if not aligns:
        return lambda window: [_Found(translation) for translation in find(window)]
    from nmt.alignment.gold import to_pharaoh
    from nmt.cli.alignments import align_translations

    def found(window: list[_Request]) -> list[_Found]:
        translations = find(window)
        links = align_translations(translator, [request.text for request in window], translations)
        pharaoh = [None if each is None else to_pharaoh(each) for each in links]
        return list(map(_Found, translations, pharaoh))

    return found


def _links_file(
    alignments: Path | None, output: Path | None, inputs: Sequence[Path | None], format: Format
) -> Path | None:
    """The file that links go to. Raises: ConfigError."""
    if alignments is None or (str(alignments) == "-" and format is Format.jsonl):
        return None
    if str(alignments) == "-":
        raise ConfigError("--alignments - needs --format jsonl: stdout has the translations. Give it a file.")
    if output is not None and os.path.realpath(output) == os.path.realpath(alignments):
        raise ConfigError(f"--output and --alignments are one file, {output}. Give them different ones.")
    if any(path is not None and os.path.realpath(path) == os.path.realpath(alignments) for path in inputs):
        raise ConfigError(f"--alignments would write over {alignments}, which is read. Give it another file.")
    return alignments


@contextmanager
def _with_links(out: BinaryIO, links_file: Path | None, turns: Turns) -> Iterator[streams.Sink]:
    """`out`, or, if there is a file for links, what splits lines between the two; one process alone writes."""
    if links_file is None or not turns.first:
        yield out
        return
    with streams.results_to(links_file) as links:
        yield streams.Beside(out, links, links_file)


def _finding(translator: "Translator") -> "Callable[[list[_Request]], list[Translation]]":
    return lambda window: translator.translations([r.text for r in window], [r.prefix for r in window])


def _protecting(translator: "Translator") -> "Callable[[list[_Request]], list[Translation]]":
    from nmt.decoding.protected import ProtectingTranslator

    protecting = ProtectingTranslator(translator)
    return lambda window: protecting.translations([r.text for r in window])


def _refuse_contradictions(format: Format, n_best: int | None, prefix: Path | None, protect: bool) -> None:
    """Raises: ConfigError, for options that do not go together."""
    if format is Format.text and n_best is not None and n_best > 1:
        raise ConfigError(
            f"--n-best {n_best} needs --format jsonl: text has one line for each line. Each line of input is then an "
            'object, {"text": "…"} (from text: jq -Rc "{text: .}").'
        )
    if format is Format.jsonl and prefix is not None:
        raise ConfigError('--prefix goes with text; with --format jsonl give each object a field "prefix".')
    if protect and prefix is not None:
        raise ConfigError("--protect does not go with --prefix: what is forced cannot be moved. Leave one of them out.")


def _requests(
    source: streams.Source, prefixes: streams.Source | None, format: Format, protect: bool
) -> Iterator[_Request]:
    """What each line asks for, as it is read."""
    if format is Format.jsonl:
        return (_parsed(line, protect) for line in source.lines)
    if prefixes is None:
        return map(_Request, source.lines)
    return (_Request(*pair) for pair in streams.in_step(source, prefixes))


def _parsed(line: str, protect: bool) -> _Request:
    if is_blank(line):
        return _Request()
    try:
        fields = streams.parse_object(line)
    except ValueError as error:
        return _Request(fields={}, error=f'{error}; --format jsonl reads objects, {{"text": "…"}}')
    try:
        text = streams.string_field(fields, "text", MAX_LINE_BYTES)
        prefix = streams.string_field(fields, "prefix", MAX_LINE_BYTES, default="")
        if prefix and protect:
            raise ValueError('"prefix" does not go with --protect')
    except ValueError as error:
        return _Request(fields=fields, error=str(error))
    return _Request(text, prefix, fields)


def _answer(
    request: _Request, found: _Found, translator: "Translator", format: Format, protect: bool, aligns: bool
) -> str:
    """The line that answers a line."""
    if request.error:
        return streams.to_json({**(request.fields or {}), "error": request.error})
    if format is Format.text or request.fields is None:
        return found.translation.text
    translation, tokenizer = found.translation, translator.bundle.tokenizer
    n_best = [{"translation": translator.text(h), **streams.facts(h, tokenizer)} for h in translation.hypotheses]
    best = n_best[0] if n_best else {"translation": "", **streams.facts(None, tokenizer)}
    if protect:
        best |= {"translation": translation.text, "protected": translation.protected}
    if aligns:
        best |= {"alignment": found.links}
    several = {"n_best": n_best} if translator.decoding.n_best > 1 else {}
    own = {key: value for key, value in request.fields.items() if key not in ("error", "n_best")}  # of an earlier run
    return streams.to_json({**own, **best, **several})
