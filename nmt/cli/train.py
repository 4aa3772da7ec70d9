"""`nmt train`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import Device, Offline, Quiet, Threads, use_threads
from nmt.errors import ConfigError, NmtError
from nmt.text.archives import plain_name
from nmt.training.interrupt import StopRequest

if TYPE_CHECKING:
    from nmt.config import Config


def train(
    config: Annotated[Path | None, typer.Argument(help="A TOML recipe, as in configs/.")] = None,
    src: Annotated[Path | None, typer.Option(help="Source text, instead of CONFIG: the recipe is chosen.")] = None,
    tgt: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [runs/<name of CONFIG or of --src>]")] = None,
    data: Annotated[str | None, typer.Option(help="Folder of the config's text files: replaces [data] dir.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for tokenizer and token cache. [RUN/cache]")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the config.")] = None,
    seed: Annotated[int | None, typer.Option(help="Replaces training.seed.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show data, size, memory and time; train nothing.")
    ] = False,
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(
            help="Go on although the run's config, data or world (number of ranks) changed. May be repeated. The "
            "result is then not that of an uninterrupted run."
        ),
    ] = None,
    offline: Offline = False,
    device: Device = "auto",
    threads: Threads = 0,
    quiet: Quiet = False,
) -> None:
    """Train a model, or resume a run: raw parallel text to tokenizer, token cache and model."""
    stop = StopRequest(patient=several_ranks(), silent=quiet or not first_rank())
    with stop.handle_signals():  # before torch is imported, which takes seconds
        if offline:
            from nmt.data.sources import go_offline

            go_offline()
        try:
            recipe, name = _chosen(config, src, tgt, data, list(set_ or []), seed, device)
        except NmtError as error:  # the same in every rank
            raise error if first_rank() else type(error)("") from error
        run = out or Path("runs") / name
        from nmt.training import run as training

        use_threads(threads)
        if dry_run:
            facts = training.dry_run(recipe, run, device=device, cache=cache, threads=threads, quiet=quiet)
            for key, value in facts.items():
                typer.echo(f"{key}: {value}")
            return
        bundle = training.train(
            recipe,
            run,
            device=device,
            cache=cache,
            threads=threads,
            quiet=quiet,
            allow_changed=[name for names in allow_changed or () for name in names.split(",")],
            stop=stop,
        )
        if first_rank():
            typer.echo(bundle)


def several_ranks() -> bool:
    """Whether this is one of several processes that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def first_rank() -> bool:
    """Whether this process is the one that talks to the user."""
    return not several_ranks() or int(os.environ.get("RANK", "0")) == 0


def _chosen(
    config: Path | None,
    src: Path | None,
    tgt: Path | None,
    data: str | None,
    overrides: list[str],
    seed: int | None,
    device: str,
) -> tuple["Config", str]:
    """The config, with what the command line sets, and the name of its run."""
    overrides += [f"training.seed={seed}"] if seed is not None else []
    if data is not None and config is None:
        raise ConfigError("--data goes with a CONFIG; with --src and --tgt give the files' whole paths.")
    recipe, name = _recipe(config, src, tgt, overrides, device)
    return (recipe if data is None else recipe.replace(data={"dir": data})), name


def _recipe(
    config: Path | None, src: Path | None, tgt: Path | None, overrides: list[str], device: str
) -> tuple["Config", str]:
    """The config and the name of its run."""
    from nmt.config import apply_overrides, load_config, parse_config

    if config is not None and src is None and tgt is None:
        return load_config(config, overrides), config.stem
    if config is None and src is not None and tgt is not None:
        from nmt.training.presets import preset_for_files

        tables = preset_for_files(src, tgt, device)
        apply_overrides(tables, overrides)
        recipe = parse_config(tables, where="the chosen recipe")
        if first_rank():
            typer.echo(f"the recipe chosen for these files:\n\n{recipe.to_toml()}", err=True)
        return recipe, Path(plain_name(src.name)).stem
    raise ConfigError("Give either a CONFIG, or --src FILE with --tgt FILE.")
