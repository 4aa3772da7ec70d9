"""What is wrong with each pair of a corpus: first a sample is learnt from, then chunks are judged, on several cores.

The rules are those of `nmt.data.rules`. The same corpus gives the same judgements on any number of processes.
"""

import itertools
import math
import multiprocessing
import multiprocessing.process
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.config import DataConfig
from nmt.data import signals
from nmt.data.clean import Reservoir
from nmt.data.evidence import MAX_SHIFT, SHIFTS, Evidence, Floats, Ints, Side, learn, lengths_of, log_ratio
from nmt.data.shifts import UNSHIFTED
from nmt.data.signals import Characters, Flags
from nmt.data.sources import Chunk
from nmt.errors import ConfigError, NmtError

SAMPLE_PAIRS = 30_000
_PORTION_PAIRS = 2_500
_MOST_CHARACTERS = 2_000  # of a line that are looked at: memory stays small among lines of 64 KiB
_CHARACTERS_A_PIECE = 5  # for what is too long: hardly any text has longer pieces
_IN_PROCESSES = 4 * _PORTION_PAIRS  # pairs from which other processes are worth their start

# Thresholds on evidence, which is in natural logarithms.
_UNRELATED = -6.0
_OTHER_SIDE = 6.0  # of both lines together, for each to be in the other's language
_AGAINST = -1.0  # that one of them may say against it: short ones know no better
_OTHER_SIDE_ALONE = 10.0  # when one line alone does
_LEAST_LETTERS = 30  # for language identification
_SURE = 0.9
_IDENTIFIED = 300  # texts of five lines, to see what language a side is in

_BY_LANGUAGE = {"language", "swapped"}
_BY_SCORE = {"misaligned", "unrelated"}


@dataclass(frozen=True)
class Learnt:
    """What judging needs to know of the corpus.

    Attributes:
        langid: the two languages, if they are to be identified by py3langid too.
    """

    evidence: Evidence
    src_scripts: tuple[str, ...]
    tgt_scripts: tuple[str, ...]
    most_characters: int
    langid: tuple[str, str] | None = None


@dataclass(frozen=True)
class Portion:
    """Some pairs, and the target lines around them."""

    src: list[str]
    tgt: list[str]
    tgt_before: list[str]
    tgt_after: list[str]


@dataclass(frozen=True)
class Judged:
    """What was found in a portion.

    Attributes:
        flags: bool (pairs,) by rule.
        scores: evidence for each pair, by shift: (shifts, pairs).
        src_lengths, tgt_lengths: characters.
        digests: 64 bits of each pair, source and target, (pairs, 3); none where nobody wants to know what is repeated.
    """

    flags: dict[str, Flags]
    scores: Floats
    src_lengths: Ints
    tgt_lengths: Ints
    digests: NDArray[np.uint64]


def sample_of(chunks: Iterable[Chunk], seed: int) -> tuple[list[str], list[str]]:
    """A fair sample of pairs that have both sides, each line cut at 2,000 characters."""
    sample = Reservoir[tuple[str, str]](SAMPLE_PAIRS, seed)
    for src_lines, tgt_lines in chunks:
        for pair in zip(src_lines, tgt_lines, strict=True):
            if pair[0] and pair[1]:
                sample.offer(pair)
    return [src[:_MOST_CHARACTERS] for src, _ in sample.items], [tgt[:_MOST_CHARACTERS] for _, tgt in sample.items]


def learn_corpus(src: Sequence[str], tgt: Sequence[str], config: DataConfig, *, langid: bool = False) -> Learnt:
    """Learn from a sample. Raises: ConfigError (language identification without its package, an unknown language)."""
    src_scripts, tgt_scripts = (
        signals.scripts_of(language) or signals.dominant_script(Characters(lines))
        for language, lines in ((config.src_lang, src), (config.tgt_lang, tgt))
    )
    languages = (config.src_lang, config.tgt_lang) if langid else None
    if languages:
        _check_languages(languages)
    return Learnt(learn(src, tgt), src_scripts, tgt_scripts, config.max_length * _CHARACTERS_A_PIECE, languages)


def judge(portion: Portion, learnt: Learnt, wanted: Collection[str]) -> Judged:
    """Judge pairs by the rules that are wanted."""
    evidence = learnt.evidence
    src_lengths, tgt_lengths = lengths_of(portion.src), lengths_of(portion.tgt)
    src_lines, before, tgt_lines, after = (
        [line[:_MOST_CHARACTERS] for line in lines]
        for lines in (portion.src, portion.tgt_before, portion.tgt, portion.tgt_after)
    )
    src, tgt = Characters(src_lines), Characters(tgt_lines)
    src_side, around = Side.of(src_lines), Side.of(before + tgt_lines + after)
    tgt_side = around.part(len(before), len(tgt_lines))
    both = (src_lengths > 0) & (tgt_lengths > 0)
    flags = {
        "blank both": (src_lengths == 0) & (tgt_lengths == 0),
        "blank side": (src_lengths == 0) ^ (tgt_lengths == 0),
    }
    rules: dict[str, Callable[[], Flags]] = {
        "encoding": lambda: signals.broken_encoding(src) | signals.broken_encoding(tgt),
        "mojibake": lambda: signals.mojibake(src) | signals.mojibake(tgt),
        "identical": lambda: signals.identical(src, tgt),
        "too long": lambda: np.maximum(src_lengths, tgt_lengths) > learnt.most_characters,
        "ratio": lambda: both & _odd_ratio(src_lengths, tgt_lengths, evidence),
        "script": lambda: (
            signals.in_other_script(src, learnt.src_scripts) | signals.in_other_script(tgt, learnt.tgt_scripts)
        ),
        "numbers": lambda: both & signals.different_numbers(src, tgt),
        "placeholders": lambda: both & signals.different_variables(src, tgt),
        "markup": lambda: both & signals.different_markup(src, tgt),
        "garbage": lambda: signals.garbage(src, src_side.words) | signals.garbage(tgt, tgt_side.words),
    }
    flags |= {name: rule() for name, rule in rules.items() if name in wanted}
    if not _BY_LANGUAGE.isdisjoint(wanted):
        flags |= _languages(portion, learnt, src_side, tgt_side, src, tgt)
        flags["language"] &= ~flags.get("identical", np.zeros(len(both), dtype=bool))
    scores = np.zeros((len(SHIFTS), len(src_lines)), np.float32)
    if not _BY_SCORE.isdisjoint(wanted):
        scores = evidence.scores(src_side, around, len(before), SHIFTS)
        flags["unrelated"] = scores[UNSHIFTED] < _UNRELATED
    digests = digests_of(portion.src, portion.tgt) if "duplicate" in wanted else np.empty((0, 3), np.uint64)
    return Judged({name: flags[name] for name in flags if name in wanted}, scores, src_lengths, tgt_lengths, digests)


def digests_of(src: Sequence[str], tgt: Sequence[str]) -> NDArray[np.uint64]:
    """64 bits of each pair, its source and its target, (pairs, 3)."""
    sides = [
        np.frombuffer(
            b"".join([blake2b(line.encode("utf-8", "replace"), digest_size=8).digest() for line in lines]), np.uint64
        )
        for lines in (src, tgt)
    ]
    pairs = sides[0] * np.uint64(0x9E3779B97F4A7C15) + sides[1] * np.uint64(0xC2B2AE3D27D4EB4F)  # both odd: one to one
    return np.stack([pairs, *sides], axis=1)


def _odd_ratio(src_lengths: Ints, tgt_lengths: Ints, evidence: Evidence) -> Flags:
    deviation = abs(log_ratio(src_lengths, tgt_lengths) - evidence.length_centre)
    odd: Flags = deviation > max(6 * evidence.ratio_spread, math.log(2.5))
    return odd


def _languages(
    portion: Portion, learnt: Learnt, src_side: Side, tgt_side: Side, src: Characters, tgt: Characters
) -> dict[str, Flags]:
    """Which pairs have their sides exchanged, and which have one side in another language."""
    like = learnt.evidence.src_like
    src_foreign = -src_side.words.sums(like[src_side.words.buckets])
    tgt_foreign = tgt_side.words.sums(like[tgt_side.words.buckets])
    swapped = (np.minimum(src_foreign, tgt_foreign) > _AGAINST) & (src_foreign + tgt_foreign > _OTHER_SIDE)
    alone = ~swapped & (np.maximum(src_foreign, tgt_foreign) > _OTHER_SIDE_ALONE)
    if learnt.langid:
        for language, characters in zip(learnt.langid, (src, tgt), strict=True):
            alone |= ~swapped & _identified_as_other(characters, language)
    return {"swapped": swapped, "language": alone}


def _identified_as_other(characters: Characters, language: str) -> Flags:
    identifier = _identifier()
    found = np.zeros(len(characters.lines), dtype=bool)
    for place in np.flatnonzero(characters.letters >= _LEAST_LETTERS).tolist():
        name, confidence = identifier.classify(characters.lines[place])
        found[place] = name != language and confidence > _SURE
    return found


def language_of(lines: Sequence[str], called: str) -> str:
    """The language that most of some lines are in, if it is surely another one than they are `called`; else nothing.

    Nothing too without py3langid, or where that does not know the language.
    """
    try:
        identifier = _identifier()
    except ConfigError:
        return ""
    if called not in identifier.labels:
        return ""
    # Several lines at a time: of single ones those that are long enough may be just the odd ones.
    texts = [" ".join(lines[start : start + 5]) for start in range(0, len(lines), 5)][:_IDENTIFIED]
    long = [text for text in texts if sum(map(str.isalpha, text)) >= _LEAST_LETTERS]
    found = Counter(identifier.classify(text)[0] for text in long)
    language, count = max(found.items(), key=lambda each: each[1], default=("", 0))
    return language if len(long) >= 20 and count > len(long) / 2 and found[called] < len(long) / 5 else ""


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError as error:
        raise ConfigError('Identifying languages needs py3langid: pip install ".[langid]".') from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _check_languages(languages: tuple[str, str]) -> None:
    known = _identifier().labels
    for language in languages:
        if language not in known:
            raise ConfigError(
                f"py3langid does not know the language {language!r}; it knows {', '.join(sorted(known))}."
            )


def portions(chunks: Iterable[Chunk]) -> Iterator[Portion]:
    """Cut a corpus into portions, each with the target lines before and after it."""
    parts = (
        (src[start : start + _PORTION_PAIRS], tgt[start : start + _PORTION_PAIRS])
        for src, tgt in chunks
        for start in range(0, len(src), _PORTION_PAIRS)
    )
    before: list[str] = []
    current = next(parts, None)
    while current is not None:
        following = next(parts, None)
        src, tgt = current
        yield Portion(src, tgt, before, following[1][:MAX_SHIFT] if following else [])
        before, current = (before + tgt)[-MAX_SHIFT:], following


def judge_all(parts: Iterable[Portion], learnt: Learnt, wanted: Collection[str], workers: int) -> Iterator[Judged]:
    """Judge portions in order, on `workers` processes if there are enough of them to be worth it.

    Raises: NmtError (a worker was killed), and what reading the portions raises.
    """
    parts = iter(parts)
    first = list(itertools.islice(parts, _IN_PROCESSES // _PORTION_PAIRS))
    few = len(first) < _IN_PROCESSES // _PORTION_PAIRS
    parts = itertools.chain(first, parts)
    if few or workers == 1:
        for part in parts:
            yield judge(part, learnt, wanted)
        return
    with _pool(learnt, frozenset(wanted), workers) as pool:
        pending: deque[Future[Judged]] = deque()
        for part in parts:
            with _without_signals():  # a worker that starts inherits that, and is ended by us alone
                pending.append(pool.submit(_judge_here, part))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def _without_signals() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal, also those that are being started; here it waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _pool(learnt: Learnt, wanted: frozenset[str], workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that start afresh: a fork of one that runs threads may hang."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(learnt, wanted))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise NmtError(
            "A process that judges the text was ended from outside, most likely for lack of memory. Try --threads 1."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_job: tuple[Learnt, frozenset[str]]  # of a worker process


def _begin(learnt: Learnt, wanted: frozenset[str]) -> None:
    global _job
    _job = (learnt, wanted)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes: the first one ends us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    """The parent may be killed, and nobody would tell a worker that waits for the next portion."""
    parent.join()
    os._exit(1)


def _judge_here(part: Portion) -> Judged:
    return judge(part, *_job)
