"""Options that several commands share, each declared once.

Those of decoding bear the names of the keys of `[decoding]`, and their ranges: see `DecodingConfig` in nmt/config.py.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt.cli.turns import own_device
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.decoding.translator import Translator

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class Format(StrEnum):
    """How results are written."""

    text = "text"
    jsonl = "jsonl"


def _check(parameter: typer.CallbackParam, value: Any) -> Any:
    """Refuse what a config would refuse, by the option's name and before anything is loaded."""
    if value is not None:
        from nmt.config import DecodingConfig

        assert parameter.name is not None
        widest = DecodingConfig(beam_size=1000, sample=True)  # with which any one key goes together
        try:
            widest.changed(**{parameter.name: value})
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None
    return value


def _decoding(*names: str, help: str) -> Any:
    """An option that is a key of `[decoding]`."""
    return typer.Option(*names, help=f"{help} [the model's]", show_default=False, callback=_check)


Model = Annotated[Path, typer.Option("-m", "--model", help="Bundle folder, or run folder of nmt train.")]
MODELS_HELP = "Bundle folder, or run folder of nmt train. Several with one tokenizer translate together."
Models = Annotated[list[Path], typer.Option("-m", "--model", help=MODELS_HELP)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Threads = Annotated[int, typer.Option(min=0, max=1024, help="CPU threads; 0: as many as there are cores.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr; errors only.")]
Precision = Annotated[str, typer.Option(help="auto, fp32, bf16, fp16 or int8.")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="Scores equal to the bit in any company; slower.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with code 3, at the end, if a line was cut or held invalid UTF-8.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Never ask the network: what was downloaded before, and local files.")
]
Workers = Annotated[
    int, typer.Option("--num-workers", min=0, max=1024, help="Batches at a time; 0: one a core, up to 4; one on a GPU.")
]
BatchRows = Annotated[int | None, typer.Option(min=1, help="Lines times beam decoded together at most. [512]")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write there, all at once when it is complete. [stdout]")
]
Protect = Annotated[
    bool,
    typer.Option("--protect", help="Keep placeholders, tags, entities, URLs and e-mail addresses as they are."),
]

BeamSize = Annotated[int | None, _decoding("-b", "--beam-size", help="Prefixes kept by beam search; 1 is greedy.")]
NBest = Annotated[int | None, _decoding("--n-best", help="Translations a line (--format jsonl).")]
LengthPenalty = Annotated[float | None, _decoding("--length-penalty", help="Alpha; more favours longer, 0: none.")]
LengthPenaltyType = Annotated[
    str | None, _decoding("--length-penalty-type", help="gnmt, ((5 + length) / 6) ^ alpha, or power, length ^ alpha.")
]
CoveragePenalty = Annotated[float | None, _decoding("--coverage-penalty", help="GNMT's beta; 0: none.")]
MaxLengthRatio = Annotated[
    float | None, _decoding("--max-length-ratio", help="Pieces of a translation a piece of source, at most.")
]
MaxLengthExtra = Annotated[int | None, _decoding("--max-length-extra", help="Pieces allowed on top of that.")]
MaxLength = Annotated[int | None, _decoding("--max-length", help="Pieces of a translation, at most.")]
MinLength = Annotated[int | None, _decoding("--min-length", help="Pieces of a translation, at least.")]
MinLengthRatio = Annotated[float | None, _decoding("--min-length-ratio", help="The same a piece of source.")]
NoRepeatNgram = Annotated[int | None, _decoding("--no-repeat-ngram", help="No n-gram of pieces twice; 0: no rule.")]
RepetitionPenalty = Annotated[
    float | None, _decoding("--repetition-penalty", help="Above 1: pieces that occurred become less likely.")
]
Sample = Annotated[bool | None, _decoding("--sample/--no-sample", help="Draw instead of searching.")]
Temperature = Annotated[float | None, _decoding("--temperature", help="Of sampling, which it turns on.")]
TopK = Annotated[int | None, _decoding("--top-k", help="Sample among the k likeliest pieces; 0: all.")]
TopP = Annotated[float | None, _decoding("--top-p", help="Sample among the likeliest of this probability.")]
Seed = Annotated[int | None, _decoding("--seed", help="Of sampling.")]
SourceTag = Annotated[
    str | None, _decoding("--tag", help='A symbol put before every source text, as "<2de>"; "": none.')
]

SplitSentences = Annotated[
    str | None,
    _decoding("--split-sentences", help="always, never; auto: if the model was trained on single sentences."),
]

AlignLayer = Annotated[
    int | None, _decoding("--align-layer", help="Of the alignment, from 1; 0: the mean of the upper half.")
]
AlignHead = Annotated[int | None, _decoding("--align-head", help="Of that layer, from 1; 0: the mean of all.")]
AlignShift = Annotated[
    bool | None,
    _decoding("--align-shift/--no-align-shift", help="A word's attention when it is read, not when predicted."),
]
AlignThreshold = Annotated[
    float | None, _decoding("--align-threshold", help="A word's largest weight, below which it has no link.")
]


def decoding_keys(context: typer.Context) -> dict[str, Any]:
    """The keys of `[decoding]` among the options that were given; a key of sampling alone turns sampling on.

    `--no-sample` takes the keys of sampling back that a bundle carries.
    """
    from nmt.config import DecodingConfig

    defaults = {key: field.default for key, field in DecodingConfig.model_fields.items()}
    given = {key: context.params[key] for key in defaults if context.params.get(key) is not None}
    of_sampling = ("temperature", "top_k", "top_p")
    if any(key in given for key in of_sampling):
        given.setdefault("sample", True)
    if given.get("sample") is False:
        given = {**{key: defaults[key] for key in of_sampling}, **given}
    return given


def open_translator(context: typer.Context, models: list[Path] | None = None) -> "Translator":
    """The models of -m, or others, by the options of computing and decoding that the command has."""
    from nmt.decoding.translator import Translator

    names = ("device", "precision", "deterministic", "num_workers", "batch_rows")
    given = {name: context.params[name] for name in names if context.params.get(name) is not None}
    given["device"] = own_device(context.params["device"])
    use_threads(context.params["threads"])
    return Translator(models or context.params["model"], decoding=decoding_keys(context), **given)


def use_threads(threads: int) -> None:
    """Set torch's threads for the whole process."""
    if threads:
        import torch

        torch.set_num_threads(threads)
