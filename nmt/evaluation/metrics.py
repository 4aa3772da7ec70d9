"""BLEU, chrF and TER through sacreBLEU, always on raw text and always with the signature."""

import difflib
import errno
import re
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

from nmt.data.sources import is_offline
from nmt.errors import ConfigError, DataError, StorageError

METRICS = ("bleu", "chrf", "ter")

# Above these shares of the non-blank lines the text is taken for subword or tokenised output. Subword marks
# never occur in plain text, so a few lines tell; a single " ." may be a typo, so most lines must have it.
SUBWORD_SHARE = 0.1
TOKENISED_SHARE = 0.5
_SUBWORD = re.compile(r"▁|@@(?:\s|$)")

# What a cache folder that cannot be used answers; a failed download has none of these.
_DISK_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EEXIST}


@dataclass(frozen=True)
class Score:
    """One corpus score.

    `name` is sacreBLEU's ("BLEU", "chrF2", "TER"), `value` is in percent and not rounded, `signature` tells
    how to repeat it, `detail` is what sacreBLEU prints after the value (precisions, lengths) or "".
    """

    name: str
    value: float
    signature: str
    detail: str


@dataclass(frozen=True)
class TestSet:
    """A published test set: `sources` and every stream of `references` have the same number of lines."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    name: str
    langpair: str
    sources: list[str]
    references: list[list[str]]


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = METRICS,
    tgt_lang: str | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> list[Score]:
    """Score a corpus as the `sacrebleu` command line does, value and signature alike.

    `references` holds one or more streams, each as long as `hypotheses`. BLEU's tokenizer is `tokenize`, else
    sacreBLEU's default for `tgt_lang` (zh: zh, ja: ja-mecab, ko: ko-mecab, else 13a). `lowercase` acts on
    BLEU and chrF (`-lc --chrf-lowercase`); TER ignores case anyway, as Tercom does. Returns one score a
    metric, in the order asked for.

    Raises ConfigError for an unknown metric or tokenizer or one that cannot be loaded, DataError for no
    lines, no reference or unequal line counts.
    """
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(
                f'There is no metric "{name}"{_did_you_mean(name, METRICS)}. Metrics: {", ".join(METRICS)}.'
            )
    _check_counts(hypotheses, references)
    # The command line drops white space at the end of every line, so the same must happen here.
    hyps = [line.rstrip() for line in hypotheses]
    refs = [[line.rstrip() for line in stream] for stream in references]
    scores = []
    for name in metrics:
        metric = _metric(name, tgt_lang, tokenize, lowercase)
        result = metric.corpus_score(hyps, refs)
        detail = getattr(result, "_verbose", "")
        scores.append(Score(result.name, float(result.score), metric.get_signature().format(), detail))
    return scores


def warn_if_tokenised(hypotheses: Sequence[str]) -> str | None:
    """Return a warning where the lines look like subword pieces or tokenised text, else None."""
    lines = [line.rstrip() for line in hypotheses if line.strip()]
    subword = sum(bool(_SUBWORD.search(line)) for line in lines)
    detached = sum(line.endswith(" .") for line in lines)
    if subword > SUBWORD_SHARE * len(lines):
        what = f'{subword} of {len(lines)} hypotheses contain subword marks ("▁" or "@@")'
    elif detached > TOKENISED_SHARE * len(lines):
        what = f'{detached} of {len(lines)} hypotheses end in a detached " .", as tokenised text does'
    else:
        return None
    return f"{what}. Scores of such text cannot be compared with others: detokenise it and score the plain text."


def load_test_set(name: str, langpair: str) -> TestSet:
    """Load a test set such as "wmt14" and "en-de" from sacreBLEU's cache, downloading it where needed and allowed.

    Raises DataError where the set or the language pair is unknown, cannot be downloaded or is damaged,
    StorageError where the cache folder cannot be written.
    """
    from sacrebleu import utils

    local = "or score local files with `--src FILE --ref FILE`"
    if name not in utils.DATASETS:
        nearest = _did_you_mean(name, list(utils.DATASETS))
        raise DataError(
            f'sacreBLEU knows no test set "{name}"{nearest}. Use one that `sacrebleu --list` prints, {local}.'
        )
    pairs = utils.get_langpairs_for_testset(name)
    if langpair not in pairs:
        raise DataError(
            f'The test set "{name}" has no language pair "{langpair}". Use one that it has '
            f"({', '.join(sorted(pairs))}), {local}."
        )
    if is_offline():
        urllib.request.install_opener(urllib.request.build_opener(_NoNetwork))
    cache = f"{utils.SACREBLEU_DIR} (sacreBLEU's cache: $SACREBLEU, else ~/.sacrebleu)"
    try:
        sources = _read_lines(utils.get_source_file(name, langpair))
        references = [_read_lines(path) for path in utils.get_reference_files(name, langpair)]
        _check_counts(sources, references)
    # sacreBLEU raises bare Exception, and leaves the whole program on a wrong checksum.
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise StorageError(
                f'The test set "{name}" cannot be stored in {cache}: {error}. Set $SACREBLEU to a folder '
                f"with room that you may write to, {local}."
            ) from error
        if isinstance(error, OSError | HTTPException) and not isinstance(error, FileNotFoundError):
            raise DataError(
                f'The test set "{name}" ({langpair}) could not be downloaded: {error}. Try again online, '
                f"copy the folder {cache} from a machine that has the set, {local}."
            ) from error
        raise DataError(
            f'The test set "{name}" ({langpair}) is damaged or incomplete: {error}. Delete the folder '
            f'"{name}" in {cache} and try again online, {local}.'
        ) from error
    return TestSet(name, langpair, sources, references)


class _NoNetwork(urllib.request.BaseHandler):
    """Answers every request for a URL, as sacreBLEU makes them, with an error."""

    def default_open(self, request: urllib.request.Request) -> None:
        """Called before anything is asked. Raises: URLError."""
        raise URLError("the network is not to be asked (--offline)")


def _metric(name: str, tgt_lang: str | None, tokenize: str | None, lowercase: bool) -> Any:
    """Build sacreBLEU's metric object."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "ter":
        return TER()
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        nearest = _did_you_mean(tokenize, list(BLEU.TOKENIZERS))
        raise ConfigError(
            f'sacreBLEU has no tokenizer "{tokenize}"{nearest}. `--tokenize` takes one of {", ".join(BLEU.TOKENIZERS)}.'
        )
    # sacreBLEU knows "zh", not "zh-CN" or "zh_TW". Where `tokenize` is given, the language is left out: it
    # would only make sacreBLEU log advice.
    lang = re.split("[-_]", tgt_lang)[0].lower() if tgt_lang and tokenize is None else ""
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize, trg_lang=lang, force=True)
    # RuntimeError: no MeCab; AssertionError: a wrong dictionary; the rest: a SentencePiece model to download.
    except (RuntimeError, AssertionError, ImportError, OSError, HTTPException, SystemExit) as error:
        tokenizer = tokenize or f"{lang}-mecab"
        if tokenizer.endswith("-mecab"):
            remedy = f'install it with `pip install "sacrebleu[{tokenizer[:2]}]"`'
        else:
            remedy = "it is downloaded at its first use: go online once"
        reason = " ".join(str(error).split())
        raise ConfigError(
            f'BLEU\'s tokenizer "{tokenizer}" cannot be loaded: {remedy}, or score on characters with '
            f"`--tokenize char`. ({reason})"
        ) from error


def _check_counts(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise DataError unless there are lines and every reference stream has as many."""
    if not hypotheses:
        raise DataError("There is nothing to score: 0 hypotheses. Give a file with at least one line.")
    if not references:
        raise DataError("There is no reference to score against. Give at least one with `--ref FILE`.")
    for number, stream in enumerate(references, start=1):
        if len(stream) != len(hypotheses):
            raise DataError(
                f"Reference {number} has {len(stream)} lines, but there are {len(hypotheses)} hypotheses. "
                "Give files that belong together, line by line."
            )


def _read_lines(path: str) -> list[str]:
    """Read lines split on "\\n" alone: U+2028 and lone carriage returns stand inside lines."""
    lines = Path(path).read_bytes().decode("utf-8").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _did_you_mean(name: str, valid: Sequence[str]) -> str:
    """Return " (did you mean ...?)", or "" where nothing is near."""
    near = difflib.get_close_matches(name.lower(), valid, n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
