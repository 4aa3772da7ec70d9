"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
Model = Annotated[Path, typer.Option("-m", "--model", help="Bundle folder, or run folder of nmt train.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads; 0: as many as there are cores.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr; errors only.")]
BeamSize = Annotated[int | None, typer.Option(min=1, help="Prefixes kept by beam search; 1 is greedy. [the model's]")]
LengthPenalty = Annotated[float | None, typer.Option(min=0.0, help="GNMT's alpha; more favours longer. [the model's]")]


def use_threads(threads: int) -> None:
    """Set torch's threads for the whole process."""
    if threads:
        import torch

        torch.set_num_threads(threads)
