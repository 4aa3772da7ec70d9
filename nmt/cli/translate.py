"""`nmt translate`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import BeamSize, Device, LengthPenalty, Model, Quiet, Threads, use_threads


def translate(
    model: Model,
    input: Annotated[Path | None, typer.Option("-i", "--input", help="Text file. [stdin]")] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    device: Device = "auto",
    threads: Threads = 0,
    quiet: Quiet = False,
) -> None:
    """Translate lines: line k of stdin becomes line k of stdout."""
    from nmt.decoding.translator import WINDOW_LINES, Translator
    from nmt.text.lines import LineNotes, open_text, read_lines
    from nmt.text.windows import windows

    stream = open_text(input) if input is not None else sys.stdin.buffer
    use_threads(threads)
    decoding = {"beam_size": beam_size, "length_penalty": length_penalty}
    translator = Translator(model, device=device, decoding=decoding)
    notes = LineNotes()
    for window in windows(read_lines(stream, notes), WINDOW_LINES):
        lines = translator.translate(window)
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode())
        sys.stdout.buffer.flush()
    if not quiet:
        for warning in notes.warnings(str(input or "stdin")):
            typer.echo(f"warning: {warning}", err=True)
