"""The Typer application: every command in its place."""

from typing import Annotated

import typer

import nmt
from nmt.cli import attn_plot, data, eval, model, score, tokenizer, train, translate
from nmt.cli.options import HELP_OPTIONS

app = typer.Typer(
    name="nmt",
    help="Machine translation from raw parallel text to a translated line.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP_OPTIONS,
)
app.command("train")(train.train)
app.command("translate")(translate.translate)
app.command("score")(score.score)
app.command("eval")(eval.evaluate)
app.command("attn-plot")(attn_plot.attn_plot)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(data.app, name="data")
app.add_typer(model.app, name="model")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nmt {nmt.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (with any command).")] = False,
) -> None:
    """Machine translation from raw parallel text to a translated line."""
