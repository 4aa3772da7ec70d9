"""`nmt data prepare|toy`."""

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import HELP_OPTIONS, Offline

app = typer.Typer(help="Corpora.", no_args_is_help=True, rich_markup_mode=None, context_settings=HELP_OPTIONS)


@app.command()
def toy(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("data/toy"),
    seed: Annotated[int, typer.Option(help="Of the grammar's choices.")] = 1,
) -> None:
    """Write the built-in English-German toy corpus: text and gold word alignments by split."""
    from nmt.data.toy import write_toy

    for split, pairs in write_toy(out, seed).items():
        typer.echo(f"{split}: {pairs:,} pairs")


@app.command()
def prepare(
    config: Annotated[Path, typer.Argument(help="A TOML recipe.")],
    out: Annotated[Path, typer.Option(help="Folder for tokenizer and token cache; give it to train as --cache.")],
    data: Annotated[str | None, typer.Option(help="Folder of the config's text files.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the config.")] = None,
    offline: Offline = False,
) -> None:
    """Do what `nmt train` does before training: clean, train the tokenizer, build the token caches."""
    from nmt.config import load_config
    from nmt.data.prepare import prepare as prepare_data
    from nmt.data.sources import go_offline

    if offline:
        go_offline()
    recipe = load_config(config, set_ or [])
    if data is not None:
        recipe = recipe.replace(data={"dir": data})
    prepared = prepare_data(recipe, out, say=lambda text: typer.echo(text, err=True))
    for split, counts in prepared.counts.items():
        typer.echo(f"{split}: " + ", ".join(f"{number:,} {rule}" for rule, number in counts.items()))
