"""`nmt attn-plot`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import Device, Model, Quiet
from nmt.cli.streams import say
from nmt.errors import ConfigError, DataError


def attn_plot(
    model: Model,
    src: Annotated[str, typer.Option(help="The source sentence.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Picture: .png, .svg or .pdf.")],
    tgt: Annotated[str | None, typer.Option(help="Its translation. [the model's own]")] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="Decoder layer, from 1. [mean of all]")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head, from 1. [mean of all]")] = None,
    pieces: Annotated[bool, typer.Option("--pieces", help="Label pieces instead of words.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw what each target word looked at in the source: cross-attention of one sentence pair."""
    from nmt.alignment.maps import pair_maps
    from nmt.alignment.plot import plot_attention
    from nmt.alignment.words import merge_to_words
    from nmt.decoding.translator import Translator
    from nmt.text.lines import clean

    src, tgt = clean(_text(src)), None if tgt is None else clean(_text(tgt))
    if not src or tgt == "":
        raise DataError("--src and --tgt must not be blank: there is nothing to draw.")
    translator = Translator(model, device=device)
    bundle = translator.bundle
    src_ids = translator.encode([src])[0]
    if tgt is None:
        tgt_ids = [*translator.search([src_ids])[0][0].ids, bundle.tokenizer.special.eos]
    else:
        tgt_ids = bundle.tokenizer.encode_tgt([tgt])[0]
    maps = pair_maps(bundle, src_ids, tgt_ids).cross
    layers = _pick("--layer", layer, maps.shape[0])
    heads = _pick("--head", head, maps.shape[1])
    weights = maps[layers, heads].mean(axis=(0, 1))
    src_labels, tgt_labels = bundle.tokenizer.src_pieces(src_ids), bundle.tokenizer.tgt_pieces(tgt_ids)
    if not pieces:
        weights, src_labels, tgt_labels = merge_to_words(weights, src_labels, tgt_labels)
    title = "attention of " + ", ".join(
        f"{name} {number}" if number else f"all {count} {name}s (mean)"
        for name, number, count in (("layer", layer, maps.shape[0]), ("head", head, maps.shape[1]))
    )
    for warning in plot_attention(weights, src_labels, tgt_labels, output, title=title):
        if not quiet:
            say(f"warning: {warning}")
    sys.stdout.buffer.write(f"{clean(bundle.tokenizer.decode(tgt_ids))}\n".encode())


def _text(argument: str) -> str:
    """An argument as UTF-8 whatever the locale, as lines of a file are read."""
    return os.fsencode(argument).decode("utf-8", errors="replace")


def _pick(option: str, number: int | None, count: int) -> slice:
    """The slice of one layer or head, or of all."""
    if number is None:
        return slice(None)
    if number > count:
        raise ConfigError(f"{option} {number}: the model has {count}, numbered from 1.")
    return slice(number - 1, number)
