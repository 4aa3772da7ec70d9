"""`nmt attn-plot`."""

import os
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import Device, Quiet
from nmt.cli.streams import say, to_json
from nmt.errors import ConfigError, DataError, StorageError

if TYPE_CHECKING:
    from nmt.alignment.view import Choice, Maps, PairView

_PAGE, _PICTURES = ".html", (".png", ".svg", ".pdf")
_JSON_VERSION = 1


class Attention(StrEnum):
    """Whose attention is shown."""

    cross = "cross"
    encoder = "encoder"
    decoder = "decoder"


def attn_plot(
    model: Annotated[
        list[Path], typer.Option("-m", "--model", help="Bundle or run folder. Several stand side by side in a page.")
    ],
    src: Annotated[str, typer.Option(help="The source sentence.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Picture, .png, .svg or .pdf, or interactive page, .html. [the terminal]"),
    ] = None,
    tgt: Annotated[str | None, typer.Option(help="Its translation. [the model's own]")] = None,
    attention: Annotated[
        Attention, typer.Option(help="Target over source, source over itself, or target over what stands before.")
    ] = Attention.cross,
    layer: Annotated[int | None, typer.Option(min=1, help="Layer, from 1. [mean of all]")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head, from 1. [mean of all]")] = None,
    grid: Annotated[bool, typer.Option("--grid", help="Every layer and head, side by side in one picture.")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="Label pieces instead of words.")] = False,
    gold: Annotated[
        str | None,
        typer.Option(help='Outline these links: "0-0 1p2", source word - (sure) or p (possible) target word, from 0.'),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers there; -: on stdout.")] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw what each target word looked at in the source: attention of one sentence pair.

    Entropy is over what is shown, words or with --pieces pieces: the mean of its rows, and of the heads if several.
    """
    from nmt.alignment.view import CAUTION, Choice
    from nmt.storage.atomic import replace_file

    suffix = None if output is None else output.suffix.lower()
    _check_together(suffix, output, len(model), attention, grid, pieces, gold)
    json_path = None if json_file is None or str(json_file) == "-" else json_file
    _check_places(output, json_path)
    src, tgt = _text(src), None if tgt is None else _text(tgt)
    if not src or tgt == "":
        raise DataError("--src and --tgt must not be blank: there is nothing to draw.")
    views = [_look(path, src, tgt, device, pieces, gold) for path in model]
    choice = Choice(layer, head)
    chosen = [_kind(view, attention) for view in views]
    for maps in chosen:
        choice.of(maps)  # refuses a layer that is not there, before anything is written
    record = "" if json_file is None else _record(views)
    if output is not None and suffix == _PAGE:
        from nmt.alignment.page import write_page

        write_page(views, output, attention.value, choice)
    elif output is not None:
        from nmt.pictures import NO_FONT

        for warning in _picture(chosen[0], output, attention, choice, grid):
            if not quiet or warning.startswith(NO_FONT):  # then the picture is wrong
                say(f"warning: {warning}")
    if json_path is not None:
        replace_file(json_path, record.encode())
    if not quiet and output is None:  # a picture or page carries it
        say(f"note: {CAUTION}")
    if json_file is not None and json_path is None:
        text = record
    elif output is None and json_file is None:
        text = _in_terminal(views, chosen, attention, choice)
    else:
        text = "".join(f"{view.target}\n" for view in views)
    sys.stdout.buffer.write(text.encode())


def _check_together(
    suffix: str | None,
    output: Path | None,
    models: int,
    attention: Attention,
    grid: bool,
    pieces: bool,
    gold: str | None,
) -> None:
    """Refuse, before a model is loaded, what does not go together."""
    if suffix is not None and suffix not in (*_PICTURES, _PAGE):
        raise ConfigError(f'Cannot draw into "{output}": the name must end in .png, .svg or .pdf, or in .html.')
    if grid and suffix not in _PICTURES:
        raise ConfigError("--grid is for a picture: give -o FILE.png, .svg or .pdf. A page has all heads anyway.")
    if models > 1 and suffix in _PICTURES:
        raise ConfigError("A picture shows one model; -o FILE.html shows several side by side.")
    if gold is not None and pieces:
        raise ConfigError("--gold links words: leave --pieces out.")
    if gold is not None and attention is not Attention.cross and suffix != _PAGE:
        raise ConfigError(f"--gold links source and target: --attention {attention.value} has no place for them.")


def _check_places(output: Path | None, json_path: Path | None) -> None:
    """Refuse places that cannot hold both results, so that there are never half of them."""
    if output is not None and json_path is not None and os.path.realpath(output) == os.path.realpath(json_path):
        raise ConfigError(f"--output and --json are one file, {output}. Give them different ones.")
    for path in (output, json_path):
        if path is None:
            continue
        # A file is replaced in its folder; a device or pipe is written to.
        changed = path if path.exists() and not path.is_file() else path.parent
        if path.is_dir() or not path.parent.is_dir() or not os.access(changed, os.W_OK):
            why = "it is a folder" if path.is_dir() else f"{path.parent} is no folder to write in"
            raise StorageError(f"Cannot write {path}: {why}. Nothing was written; name another file.")


def _look(path: Path, src: str, tgt: str | None, device: str, pieces: bool, gold: str | None) -> "PairView":
    """The pair as this model saw it: one forced pass, of its own translation if there is no other."""
    from nmt.alignment.maps import pair_maps
    from nmt.alignment.view import PairView, shown_maps, with_gold
    from nmt.decoding.translator import Translator
    from nmt.text.lines import clean

    translator = Translator(path, device=device)
    bundle = translator.bundle
    src_ids = translator.encode([src])[0]
    if tgt is None:
        tgt_ids = [*translator.search([src_ids])[0][0].ids, bundle.tokenizer.special.eos]
    else:
        tgt_ids = bundle.tokenizer.encode_tgt([tgt])[0]
    src_pieces, tgt_pieces = bundle.tokenizer.src_pieces(src_ids), bundle.tokenizer.tgt_pieces(tgt_ids)
    maps = shown_maps(pair_maps(bundle, src_ids, tgt_ids), src_pieces, tgt_pieces, pieces=pieces)
    view = PairView(str(path), src, clean(bundle.tokenizer.decode(tgt_ids)), maps)
    return view if gold is None else with_gold(view, gold, tagged=bool(translator.decoding.tag))


def _kind(view: "PairView", attention: Attention) -> "Maps":
    if attention.value not in view.maps:
        raise ConfigError(
            f"--attention {attention.value}: {view.model} has no such attention, only {', '.join(view.maps)}: "
            f"a recurrent model has no self-attention."
        )
    return view.maps[attention.value]


def _picture(maps: "Maps", output: Path, attention: Attention, choice: "Choice", grid: bool) -> list[str]:
    from nmt.alignment.plot import plot_attention
    from nmt.alignment.view import entropy_bits

    weights = choice.of(maps)
    captions: list[list[str]] = []
    if grid:
        first = (choice.layer or 1, choice.head or 1)
        captions = [
            [f"L{first[0] + layer} H{first[1] + head} · {bits:.2f} bits" for head, bits in enumerate(row)]
            for layer, row in enumerate(entropy_bits(weights))
        ]
    return plot_attention(
        weights if grid else weights.mean((0, 1)),
        maps.columns,
        maps.rows,
        output,
        title=_title(maps, attention, choice, grid),
        axes=maps.axes,
        seen=maps.seen,
        links=maps.links,
        captions=captions,
        foot=_foot(maps),
    )


def _foot(maps: "Maps") -> str:
    from nmt.alignment.view import CAUTION

    hidden = "" if maps.seen.all() else " Grey: later words, hidden from the model."
    return CAUTION + hidden + (" Outlined: gold links, dashed: possible ones." if maps.links else "")


def _title(maps: "Maps", attention: Attention, choice: "Choice", grid: bool = False) -> str:
    from nmt.alignment.view import NAMES, entropy_text

    if grid:
        return f"{NAMES[attention.value]}: layers and heads, entropy of each"
    return f"{NAMES[attention.value]}, {choice.names(maps)}, {entropy_text(choice.of(maps))}"


def _record(views: list["PairView"]) -> str:
    from nmt.alignment.view import as_record

    return to_json({"format_version": _JSON_VERSION, "models": [as_record(view) for view in views]}) + "\n"


def _in_terminal(views: list["PairView"], chosen: list["Maps"], attention: Attention, choice: "Choice") -> str:
    """The translations with their maps."""
    from nmt.alignment.terminal import as_text

    colour, columns = sys.stdout.isatty(), shutil.get_terminal_size().columns
    return "\n".join(
        f"{view.target}\n"
        + as_text(
            maps,
            choice.of(maps).mean((0, 1)),
            _title(maps, attention, choice),
            width=columns,
            colour=colour,
        )
        for view, maps in zip(views, chosen, strict=True)
    )


def _text(argument: str) -> str:
    """An argument as clean UTF-8 whatever the locale, as lines of a file are read."""
    from nmt.text.lines import clean

    return clean(os.fsencode(argument).decode("utf-8", errors="replace"))
