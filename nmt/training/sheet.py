"""The sheet of a model: what it was made of and how good it is, for those who are given the bundle alone."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from nmt.bundle import Bundle
from nmt.config import Config, Source
from nmt.data.domains import corpora_of, selection_of
from nmt.data.prepare import SIDES, Prepared
from nmt.evaluation.faults import NGRAM
from nmt.training.checkpoint import TrainState
from nmt.version import VERSION


def model_sheet(
    bundle: Bundle, prepared: Prepared, config: Config, state: TrainState, scores: Mapping[str, float], origin: str
) -> str:
    """The sheet, as Markdown.

    Args:
        scores: of the bundle's weights, as `validate` gives them.
        origin: which checkpoints these weights are made of.
    """
    told = bundle.config
    lines = [
        f"# {told.src_lang} → {told.tgt_lang}",
        "",
        f"Translates {told.src_lang} to {told.tgt_lang}. Made by nmt {VERSION}, which uses it:",
        "",
        "    nmt translate -m FOLDER < source.txt",
        "",
        "## Data",
        "",
        *_data(prepared, config),
        "",
        "## Training",
        "",
        *_training(bundle, config, state, origin),
        "",
        "## Figures",
        "",
        *_figures(prepared, config, scores),
        "",
        "## Known faults",
        "",
        *_faults(bundle, prepared, scores),
        "",
        "## Recipe",
        "",
        "```toml",
        config.to_toml().rstrip(),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _data(prepared: Prepared, config: Config) -> Iterator[str]:
    data = config.data
    yield "| corpus | pairs | times seen in an epoch | licence |"
    yield "|---|---|---|---|"
    corpora, sizes = corpora_of(data), prepared.train.source_sizes
    for number, source in enumerate(corpora):
        # The cache of the same text may have been made for another number of corpora.
        pairs = f"{sizes[number]:,}" if len(sizes) == len(corpora) else "not counted"
        yield f"| {_name(source)} | {pairs} | {source.weight:g} | {_licence(source)} |"
    if config.training.init_from is not None:
        yield ""
        start = _in_a_row(_without_folder(str(config.training.init_from)))
        yield f"Training began from the model {start}, whose data and licences count as well."
    for split, counts in prepared.counts.items():
        yield ""
        yield f"{split}: " + ", ".join(f"{number:,} {rule}" for rule, number in counts.items()) + "."
    if data.valid is not None:
        yield ""
        yield f"valid is of {_name(data.valid)}, licence {_licence(data.valid)}."


def _name(source: Source) -> str:
    """As the recipe names it, without the folder it lay in."""
    whole = source.prefix or source.tsv or source.jsonl or source.parquet or source.hf
    files = " + ".join(map(_without_folder, [whole] if whole else [source.src or "", source.tgt or ""]))
    return _in_a_row(", ".join(filter(None, (files, selection_of(source)))))


def _without_folder(path: str) -> str:
    """A relative path, or the name at the end of another."""
    return Path(path).name if Path(path).is_absolute() else path


def _licence(source: Source) -> str:
    return _in_a_row(source.licence) or "not stated"


def _in_a_row(text: str) -> str:
    """What a cell of a table can hold, without markup."""
    return re.sub(r"([\\`|<\[])", r"\\\1", " ".join(text.split()))


def _training(bundle: Bundle, config: Config, state: TrainState, origin: str) -> Iterator[str]:
    training = config.training
    yield (
        f"{bundle.model.num_parameters():,} parameters ({config.model.type}), {bundle.config.src_vocab_size:,} source "
        f"and {bundle.config.tgt_vocab_size:,} target pieces. {state.update:,} updates, {state.tokens:,} target tokens "
        f"and {state.minutes:.0f} minutes in {training.precision}, seed {training.seed}. The weights are {origin}."
    )


def _figures(prepared: Prepared, config: Config, scores: Mapping[str, float]) -> Iterator[str]:
    lines = min(config.validation.max_sentences or len(prepared.valid_src), len(prepared.valid_src))
    beam = config.validation.beam_size
    yield f"On the first {lines:,} lines of valid, by which checkpoints were chosen, beam {beam}:"
    yield ""
    yield "| BLEU | chrF | loss, nats a token |"
    yield "|---|---|---|"
    yield f"| {scores['bleu']:.2f} | {scores['chrf']:.2f} | {scores['loss']:.3f} |"
    yield ""
    yield "No test set was looked at: `nmt eval -m FOLDER` scores one."


def _faults(bundle: Bundle, prepared: Prepared, scores: Mapping[str, float]) -> Iterator[str]:
    told = bundle.config
    yield (
        f"- {scores['repeated']:.1%} of those translations have {NGRAM} pieces in a row twice; they have "
        f"{scores['length_ratio']:.2f} characters for each of the references."
    )
    yield f"- No source it learnt from had more than {told.max_length:,} pieces; what is longer is translated in parts."
    if told.one_sentence_share is not None:
        yield f"- {told.one_sentence_share:.0%} of its source lines were one sentence each."
    for side, (unknown, pieces) in prepared.train.unknown.items():
        if unknown:
            yield f"- {unknown / pieces:.2%} of the pieces of its {SIDES[side]} text were unknown to its tokenizer."
    yield "- Nothing else was measured: names, numbers and negations may come out wrong, also in fluent sentences."
