"""`nmt model info`."""

import json
from typing import Annotated

import typer

from nmt.cli.options import HELP_OPTIONS, Model

app = typer.Typer(help="Trained models.", no_args_is_help=True, rich_markup_mode=None, context_settings=HELP_OPTIONS)


@app.command()
def info(
    model: Model,
    json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show what a model is: languages, shape, size, decode defaults. Loading it verifies it."""
    from nmt.bundle import Bundle, find_bundle

    bundle = Bundle.load(model)
    config = bundle.config
    facts: dict[str, object] = {
        "folder": str(find_bundle(model)),
        "languages": f"{config.src_lang} -> {config.tgt_lang}",
        "parameters": bundle.model.num_parameters(),
        "vocabulary": {"source": config.src_vocab_size, "target": config.tgt_vocab_size},
        "trained on pieces a side": config.max_length,
        "model": config.model.model_dump(),
        "decoding": config.decoding.model_dump(),
    }
    if json_:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else f"{value}"
        typer.echo(f"{name}: {shown}")
