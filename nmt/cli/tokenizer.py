"""`nmt tokenizer train|encode|decode`."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import HELP_OPTIONS, Quiet
from nmt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nmt.text.tokenizer import Tokenizer

app = typer.Typer(
    help="SentencePiece tokenizers.", no_args_is_help=True, rich_markup_mode=None, context_settings=HELP_OPTIONS
)
ModelFile = Annotated[Path, typer.Option("-m", "--model", help="SentencePiece file, bundle or run folder.")]
Side = Annotated[str, typer.Option(help="src or tgt: whose tokenizer, where a model has two.")]


@app.command()
def train(
    files: Annotated[list[Path], typer.Argument(help="Text files, all sides of a joint tokenizer.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write, as tokenizer.model.")],
    vocab_size: Annotated[int, typer.Option(help="Pieces; lowered if the text does not hold so many.")] = 8000,
    type: Annotated[str, typer.Option(help="bpe or unigram.")] = "bpe",
    lines: Annotated[int, typer.Option(help="Lines sampled at most.")] = 1_000_000,
    character_coverage: Annotated[float, typer.Option(help="Share of the characters that become pieces.")] = 1.0,
    byte_fallback: Annotated[
        bool, typer.Option("--byte-fallback/--no-byte-fallback", help="Other characters become bytes, not <unk>.")
    ] = True,
    normalization: Annotated[str, typer.Option(help="nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf or identity.")] = "nmt_nfkc",
    user_symbol: Annotated[
        list[str] | None, typer.Option(help='Always one piece, as "<2de>". May be repeated.')
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Train a SentencePiece tokenizer on raw text: on both languages for a joint one, else once for each."""
    from nmt.config import parse_config
    from nmt.data.clean import Reservoir
    from nmt.storage.atomic import replace_file
    from nmt.text.tokenizer import MAX_TRAINING_BYTES, Tokenizer, train_sentencepiece, training_text

    options = parse_config(
        {
            "data": {"train": "-"},
            "training": {"max_updates": 1},
            "tokenizer": {
                "type": type,
                "vocab_size": vocab_size,
                "train_lines": lines,
                "character_coverage": character_coverage,
                "byte_fallback": byte_fallback,
                "normalization": normalization,
                "user_symbols": user_symbol or [],
            },
        },
        where="the command line",
    ).tokenizer
    reservoir = Reservoir[str](lines, seed)
    cut = 0
    for line in itertools.chain.from_iterable(_lines_of(path) for path in files):
        reservoir.offer(beginning := training_text(line))
        cut += beginning != line
    sample = reservoir.items
    if not sample:
        raise DataError(f"There is no text in {', '.join(map(str, files))}.")
    model = train_sentencepiece(sample, options)
    replace_file(output, model)
    if not quiet:
        size = Tokenizer(model).src_vocab_size
        if size < vocab_size:
            typer.echo(f"warning: the text holds fewer pieces than the {vocab_size:,} asked", err=True)
        if cut:
            typer.echo(f"warning: of {cut:,} long lines the first {MAX_TRAINING_BYTES:,} bytes are used", err=True)
        of_all = f" of {reservoir.seen:,}" if reservoir.seen > len(sample) else ""
        typer.echo(f"{size:,} pieces from {len(sample):,}{of_all} lines: {output}", err=True)


@app.command()
def encode(
    model: ModelFile,
    side: Side = "src",
    ids: Annotated[bool, typer.Option("--ids", help="Numbers instead of pieces.")] = False,
) -> None:
    """Text on stdin to pieces on stdout, line by line, separated by spaces."""
    from nmt.text.lines import clean, open_stdin, read_lines
    from nmt.text.windows import windows

    tokenizer = load_tokenizer(model)
    encode_side = {"src": tokenizer.encode_src, "tgt": tokenizer.encode_tgt}[_checked(side)]
    pieces_of = {"src": tokenizer.src_pieces, "tgt": tokenizer.tgt_pieces}[side]
    for window in windows(read_lines(open_stdin()), max_lines=2048):
        for encoded in encode_side([clean(line) for line in window]):
            numbers = encoded[:-1]  # without EOS
            _write_line(" ".join(map(str, numbers) if ids else pieces_of(numbers)))
        sys.stdout.buffer.flush()


@app.command()
def decode(
    model: ModelFile,
    side: Side = "tgt",
    ids: Annotated[bool, typer.Option("--ids", help="Numbers instead of pieces.")] = False,
) -> None:
    """Pieces (or numbers, with --ids) on stdin back to text on stdout, line by line."""
    from nmt.text.lines import clean, open_stdin, read_lines

    tokenizer = load_tokenizer(model)
    _checked(side)
    for number, line in enumerate(read_lines(open_stdin()), start=1):
        try:
            text = tokenizer.decode_pieces(line.split(" ") if line else [], side=side, ids=ids)
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise DataError(f"stdin, line {number}: not a line of {'piece numbers' if ids else 'pieces'}.") from error
        _write_line(clean(text))


def load_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer of a SentencePiece file, a bundle or a run folder. Raises: ConfigError, BundleError."""
    from nmt.bundle import find_bundle, read_tokenizer
    from nmt.text.tokenizer import Tokenizer

    return Tokenizer.from_files(path) if path.is_file() else read_tokenizer(find_bundle(path))


def _checked(side: str) -> str:
    if side not in ("src", "tgt"):
        raise ConfigError(f"--side {side} is neither src nor tgt.")
    return side


def _lines_of(path: Path) -> Iterator[str]:
    from nmt.text.lines import clean, open_text, read_lines

    with open_text(path) as stream:
        yield from filter(None, map(clean, read_lines(stream)))


def _write_line(text: str) -> None:
    sys.stdout.buffer.write(text.encode() + b"\n")
