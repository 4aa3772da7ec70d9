"""`nmt eval --align`: word alignments against links made by hand."""

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from nmt.cli import options
from nmt.cli.streams import say
from nmt.errors import ConfigError, DataError
from nmt.text.lines import Numbers

if TYPE_CHECKING:
    from nmt.alignment.gold import GoldLinks, Quality
    from nmt.alignment.links import Links
    from nmt.decoding.attention import HeadChoice
    from nmt.decoding.translator import Translator

    Table = Mapping[HeadChoice, Sequence[Links]]  # the links of all lines, source token first

Read = Callable[[Path], list[str]]  # the lines of a file


class ChooseBy(StrEnum):
    """How a layer and head are chosen."""

    gold = "gold"
    agreement = "agreement"


class Request(NamedTuple):
    """What is to be compared with the links in `align`: those of texts by models, or those in `hyp`."""

    align: Path
    src: Path | None
    tgt: Path | None
    hyp: Path | None
    reverse_model: Path | None
    by_head: bool
    choose: ChooseBy | None


class _Row(NamedTuple):
    """The links of one direction, or of both together (then of no one choice).

    Attributes:
        chosen_on: how many of the first lines the choice was made by, if it was by gold; the rest are scored.
    """

    name: str
    choice: "HeadChoice | None"
    quality: "Quality"
    chosen_on: int = 0


def evaluate_alignments(context: typer.Context, request: Request, read: Read, *, as_json: bool, quiet: bool) -> None:
    """Print alignment error rate, precision and recall, in percent.

    Raises: ConfigError (options that do not go together), DataError (links or texts that do not).
    """
    from nmt.alignment.gold import quality, read_links

    _refuse_contradictions(request)
    gold = read_links(read(request.align), str(request.align))
    if request.choose is ChooseBy.gold and len(gold) < 2:
        raise DataError(
            f"{request.align} has {len(gold)} line(s), but --choose gold needs some to choose by and others to score: "
            f"2 at least. --choose agreement needs none."
        )
    if request.hyp is not None:
        links = [each.possible for each in read_links(read(request.hyp), str(request.hyp))]
        _check_counts(request.align, len(gold), request.hyp, len(links))
        _show([_Row("links", None, quality(links, gold))], as_json, len(gold))
        return
    src, tgt = _texts(request, gold, read)
    forward_model = options.open_translator(context)
    forward = _table(forward_model, src, tgt, request, quiet)
    reverse: Table | None = None
    if request.reverse_model is not None:
        reverse_model = options.open_translator(context, [request.reverse_model])
        _check_directions(forward_model, reverse_model)
        reverse = _turned(_table(reverse_model, tgt, src, request, quiet))
    if request.by_head:
        rows = [_Row("forward", choice, quality(links, gold)) for choice, links in forward.items()]
        rows += [_Row("reverse", choice, quality(links, gold)) for choice, links in (reverse or {}).items()]
        rows.sort(key=lambda row: row.quality.aer)
    else:
        rows = _compared(forward, reverse, gold, request.choose)
    _show(rows, as_json, len(gold))
    if request.choose is not None and not as_json:
        _tell_chosen(rows, len(gold))


def _refuse_contradictions(request: Request) -> None:
    """Raises: ConfigError."""
    given = {
        "--src": request.src,
        "--tgt": request.tgt,
        "--reverse-model": request.reverse_model,
        "--by-head": request.by_head or None,
        "--choose": request.choose,
    }
    if request.hyp is not None:
        beside = [name for name, value in given.items() if value is not None]
        if beside:
            raise ConfigError(f"--align GOLD --hyp LINKS compares links alone: leave out {', '.join(beside)}.")
    elif request.src is None or request.tgt is None:
        raise ConfigError("--align GOLD with -m MODEL needs both texts: --src FILE --tgt FILE.")
    if request.choose is ChooseBy.agreement and request.reverse_model is None:
        raise ConfigError("--choose agreement compares two directions: give --reverse-model MODEL.")
    if request.choose is not None and request.by_head:
        raise ConfigError("--by-head shows every layer and head, --choose takes one: leave one of them out.")


def _texts(request: Request, gold: "Sequence[GoldLinks]", read: Read) -> tuple[list[str], list[str]]:
    """Both sides. Raises: DataError, if they and the links do not belong together."""
    from nmt.alignment.gold import check_inside

    assert request.src is not None and request.tgt is not None
    src, tgt = read(request.src), read(request.tgt)
    _check_counts(request.align, len(gold), request.src, len(src))
    _check_counts(request.align, len(gold), request.tgt, len(tgt))
    check_inside(gold, src, tgt, str(request.align))
    return src, tgt


def _check_counts(align: Path, gold: int, other: Path, count: int) -> None:
    """Raises: DataError, for files of unequal length."""
    if gold != count:
        raise DataError(
            f"{align} has {gold:,} line(s), {other} has {count:,}; line k of one belongs to line k of both."
        )


def _check_directions(forward: "Translator", reverse: "Translator") -> None:
    """Raises: ConfigError, unless one model translates the other's way back."""
    one, other = forward.bundle.config, reverse.bundle.config
    if (one.src_lang, one.tgt_lang) != (other.tgt_lang, other.src_lang):
        raise ConfigError(
            f"--reverse-model translates {other.src_lang}-{other.tgt_lang}, but the way back of "
            f"{one.src_lang}-{one.tgt_lang} is {one.tgt_lang}-{one.src_lang}."
        )


def _table(
    translator: "Translator", src: Sequence[str], tgt: Sequence[str], request: Request, quiet: bool
) -> "dict[HeadChoice, list[Links]]":
    """The links of the texts by the choice of the model, or by every one if one is to be chosen."""
    from nmt.cli.alignments import align_texts
    from nmt.decoding.attention import HeadChoice, all_choices

    choices = [HeadChoice.of(translator.decoding)]
    if request.by_head or request.choose is not None:
        choices = all_choices(translator.models, translator.bundle.tokenizer.special)
    found = align_texts(translator, src, tgt, choices)
    too_long = Numbers()
    for number, of_pair in enumerate(found, start=1):
        if of_pair is None:
            too_long.add(number)
    if too_long.count and not quiet:
        say(f"warning: {too_long} are longer than the model can look at, and count as if no links had been found.")
    return {choice: [frozenset() if by is None else by[choice] for by in found] for choice in choices}


def _turned(table: "Table") -> "Table":
    from nmt.alignment.links import flipped

    return {choice: [flipped(links) for links in found] for choice, found in table.items()}


def _compared(
    forward: "Table", reverse: "Table | None", gold: "Sequence[GoldLinks]", choose: ChooseBy | None
) -> list[_Row]:
    """Each direction, and both together. Chosen by gold, they are compared on the lines that did not choose."""
    from nmt.alignment.choose import best_by_agreement, best_by_gold
    from nmt.alignment.gold import quality
    from nmt.alignment.links import SYMMETRISED

    tables = [("forward", forward), *([("reverse", reverse)] if reverse is not None else [])]
    chosen = [next(iter(table)) for _, table in tables]
    first = 0  # line that counts
    if choose is ChooseBy.gold:
        first = len(gold) // 2
        chosen = [best_by_gold(table, gold, first) for _, table in tables]
    elif choose is ChooseBy.agreement and reverse is not None:
        chosen = list(best_by_agreement(forward, reverse))
    links = [table[choice][first:] for (_, table), choice in zip(tables, chosen, strict=True)]
    rows = [
        _Row(name, choice, quality(of_table, gold[first:]), first)
        for (name, _), choice, of_table in zip(tables, chosen, links, strict=True)
    ]
    for name, symmetrise in SYMMETRISED.items() if reverse is not None else ():
        rows.append(_Row(name, None, quality(list(map(symmetrise, *links)), gold[first:]), first))
    return rows


def _show(rows: Sequence[_Row], as_json: bool, count: int) -> None:
    if as_json:
        typer.echo(json.dumps([_facts(row, count) for row in rows]))
        return
    for row in rows:
        found = row.quality
        scores = f"AER {100 * found.aer:.2f}  precision {100 * found.precision:.2f}  recall {100 * found.recall:.2f}"
        typer.echo(f"{row.name} {scores}  {found.links:,} links, {found.sure:,} sure{_said(row.choice)}")


def _tell_chosen(rows: Sequence[_Row], count: int) -> None:
    """What was chosen of `count` lines, and how to keep it."""
    if rows[0].chosen_on:
        typer.echo("chosen on lines {}, scored on lines {}".format(*_halves(rows[0].chosen_on, count)))
    for row in rows:
        if row.choice is not None:
            layer, head, shift = row.choice
            keys = f"align_layer = {layer}, align_head = {head}, align_shift = {str(shift).lower()}"
            typer.echo(f"{row.name} model, to set under [decoding]: {keys}")


def _halves(chosen_on: int, count: int) -> tuple[str, str]:
    """The lines that chose and those that are scored."""
    return f"1-{chosen_on}", f"{chosen_on + 1}-{count}"


def _said(choice: "HeadChoice | None") -> str:
    if choice is None:
        return ""
    layer = f"layer {choice.layer}" if choice.layer else "upper layers"
    head = f"head {choice.head}" if choice.head else "all heads"
    return f"  {layer}, {head}, when {'read' if choice.shift else 'predicted'}"


def _facts(row: _Row, count: int) -> dict[str, object]:
    found = row.quality
    heads = {} if row.choice is None else {f"align_{key}": value for key, value in row.choice._asdict().items()}
    percent = {"AER": 100 * found.aer, "precision": 100 * found.precision, "recall": 100 * found.recall}
    lines = dict(zip(("chosen_on", "scored_on"), _halves(row.chosen_on, count), strict=True)) if row.chosen_on else {}
    return {"links_of": row.name, **percent, "links": found.links, "sure": found.sure, **heads, **lines}
