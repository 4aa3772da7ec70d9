"""`nmt data check`: everything that is wrong with a corpus, found in several readings and shown by `nmt.data.report`.

The first reading counts and samples, another looks for characters that reading mends, the third judges
(`nmt.data.judge`) by what was learnt from the sample, since what is learnt early misses what comes late; then the texts
of what was found are looked up. Memory does not depend on the size of the corpus but for 25 bytes a pair, by which
repetitions are found.
"""

import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.config import DataConfig, Source
from nmt.data.clean import first_of_equals, occur_in
from nmt.data.domains import corpora_of
from nmt.data.judge import Judged, digests_of, judge_all, language_of, learn_corpus, portions, sample_of
from nmt.data.rules import RULES
from nmt.data.shifts import UNSHIFTED, ShiftFinder, Stretch
from nmt.data.sources import CHUNK_PAIRS, Chunk, count_lines, describe, files_of, read_chunks, text_paths
from nmt.errors import DataError
from nmt.text.archives import plain_name
from nmt.text.lines import clean, open_text, read_lines
from nmt.text.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]  # what is done, pairs so far, of how many (0: not known yet)

FIRST = 100  # lines of each rule that a report names
_SHOWN = 5  # of which the text is shown
BINS_AN_OCTAVE = 3  # of the histograms of lengths
NUM_BINS = 34
PARTS = 200  # of the corpus, whose quality is shown one by one
# Mean evidence a pair: 4 to 11 in real corpora, 0.0 to 0.1 when one side of them is shuffled.
_NO_TRANSLATION, _ENOUGH_PAIRS = 0.5, 200
_TOKENIZED = 5_000  # sampled pairs by which a tokenizer is judged

# What reading mends by the line contract of nmt.text.lines. A TSV line holds a tab by right.
_SEPARATORS = re.compile("[\x0b\x0c\r\x1c-\x1f\x85\u2028\u2029]")
_SEPARATORS_AND_TAB = re.compile(rf"\t|{_SEPARATORS.pattern}")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass
class Finding:
    """What one rule found.

    Attributes:
        lines: the first of them, from 1, over all sources.
        excerpts: line, source and target of the very first.
    """

    count: int = 0
    lines: list[int] = field(default_factory=list)
    excerpts: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, lines: Iterable[int], count: int) -> None:
        """Count lines, of which the first are kept."""
        self.count += count
        if len(self.lines) < FIRST:
            self.lines += itertools.islice(lines, FIRST - len(self.lines))


@dataclass
class Report:
    """What was found in a corpus.

    Attributes:
        sources: name and pairs of each.
        refusals: why `nmt train` would not take it; empty if it would.
        doubts: why the text as a whole can hardly be what it is called.
        findings: by rule, those that were found.
        length_counts: lines by length in characters, (2 sides, bins); bin i holds 2 ** (i / 3) and more.
        pair_counts: pairs by both lengths, (source bins, target bins).
        quality: mean evidence that pairs are translations, by part of the corpus; NaN where there are none.
        tokens: of each side's tokenizer: pieces a word, characters a piece, unknown pieces a hundred.
    """

    languages: tuple[str, str]
    sources: list[tuple[str, int]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    length_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, NUM_BINS), np.int64))
    pair_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((NUM_BINS, NUM_BINS), np.int64))
    quality: list[float] = field(default_factory=list)
    tokens: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """All pairs that were read."""
        return sum(pairs for _, pairs in self.sources)

    def place(self, line: int) -> tuple[str, int]:
        """The source of a line of the whole, and the line's number there."""
        for name, pairs in self.sources:
            if line <= pairs:
                return name, line
            line -= pairs
        raise IndexError(line)


def check(
    config: DataConfig,
    *,
    test: Source | None = None,
    langid: bool = False,
    tokenizer: Tokenizer | None = None,
    workers: int = 1,
    bad: Callable[[str], object] | None = None,
    progress: Progress = lambda what, done, total: None,
    seed: int = 1,
) -> Report:
    """Read the training text of a config and report on it.

    Args:
        test: text that must not be trained on, as the config's validation text must not.
        langid: identify languages by py3langid too.
        workers: processes.
        bad: is given a row of every line and rule that was found, in the order of lines: corpus, line, severity, rule,
            source and target text, with TABs between them.
    Raises: DataError (a file is missing, a row is no text), ConfigError, StorageError.
    """
    report = Report((config.src_lang, config.tgt_lang))
    corpus = _Corpus(config, report, progress)
    src, tgt = sample_of(corpus.first_reading(), seed)
    corpus.refuse_domains()
    if not report.pairs:
        report.refusals.append("there is no pair of lines at all")
        return report
    tally = _Tally(report, hold_lines=bad is not None)
    _find_mended(config, report, tally)
    learnt = learn_corpus(src, tgt, config, langid=langid)
    for judged in judge_all(portions(corpus.chunks("judging")), learnt, RULES.keys(), workers):
        tally.add(judged)
    others = {name: source for name, source in (("valid", config.valid), ("test", test)) if source is not None}
    tally.finish({name: _digests(source, config) for name, source in others.items()})
    _refuse_too_few(report, config)
    _doubt(report, src, tgt)
    if tokenizer is not None:
        report.tokens = _tokens(tokenizer, src[:_TOKENIZED], tgt[:_TOKENIZED])
    _add_excerpts(report, corpus.chunks("looking up"))
    if bad is not None and tally.every:
        _write_lines(report, tally.every, corpus.chunks("writing lines"), bad)
    order = list(RULES)
    report.findings = dict(sorted(report.findings.items(), key=lambda item: order.index(item[0])))
    return report


class _Corpus:
    """All sources one after the other. One whose sides differ in lines is read as far as both go, and told of."""

    def __init__(self, config: DataConfig, report: Report, progress: Progress) -> None:
        self._config, self._report, self._progress = config, report, progress
        self._uneven: set[int] = set()

    def first_reading(self) -> Iterator[Chunk]:
        """Read everything, and count."""
        done = 0
        for number, source in enumerate(self._config.train):
            count = 0
            try:
                for src, tgt in read_chunks(source, self._config):
                    count += len(src)
                    self._progress("reading", done + count, 0)
                    yield src, tgt
            except DataError as error:
                if not _is_uneven(source, self._config):
                    raise
                self._report.refusals.append(str(error))
                self._uneven.add(number)
                seen, count = count, 0
                for src, tgt in _common_part(source, self._config):
                    count += len(src)
                    if count > seen:
                        yield src, tgt
            done += count
            self._report.sources.append((describe(source, self._config), count))

    def refuse_domains(self) -> None:
        """What training would refuse of the file of domains."""
        if self._config.train_domain is None or self._uneven:
            return
        try:
            for _ in read_chunks(corpora_of(self._config)[-1], self._config):
                pass
        except DataError as error:
            self._report.refusals.append(str(error))

    def chunks(self, doing: str) -> Iterator[Chunk]:
        """Read everything again."""
        done = 0
        for number, source in enumerate(self._config.train):
            read = _common_part if number in self._uneven else read_chunks
            for src, tgt in read(source, self._config):
                yield src, tgt
                done += len(src)
                self._progress(doing, done, self._report.pairs)


def _is_uneven(source: Source, config: DataConfig) -> bool:
    """Whether a source is two files that differ in lines."""
    if source.prefix is None and source.src is None:
        return False
    src_path, tgt_path = text_paths(source, config)
    return count_lines(src_path) != count_lines(tgt_path)


def _common_part(source: Source, config: DataConfig) -> Iterator[Chunk]:
    """The lines that both files have."""
    src_path, tgt_path = text_paths(source, config)
    with open_text(src_path) as src_stream, open_text(tgt_path) as tgt_stream:
        pairs = zip(map(clean, read_lines(src_stream)), map(clean, read_lines(tgt_stream)), strict=False)
        while block := list(itertools.islice(pairs, CHUNK_PAIRS)):
            yield [src for src, _ in block], [tgt for _, tgt in block]


class _Tally:
    """Adds up what was judged, in order."""

    def __init__(self, report: Report, hold_lines: bool) -> None:
        self._report = report
        self.every: dict[str, array[int]] | None = {} if hold_lines else None  # lines by rule
        self._line = 1
        self._digests = [array("Q"), array("Q"), array("Q")]
        self._blank = bytearray()
        self._unrelated = array("q")
        self._shifts = ShiftFinder()
        self._quality = np.zeros((2, PARTS))

    def found(self, rule: str, lines: NDArray[np.int64]) -> None:
        """These lines, from 1 over all sources, were found by a rule."""
        if not len(lines):
            return
        self._report.findings.setdefault(rule, Finding()).add(map(int, lines[:FIRST]), len(lines))
        if self.every is not None:
            self.every.setdefault(rule, array("q")).frombytes(lines.astype(np.int64).tobytes())

    def add(self, judged: Judged) -> None:
        """The next portion."""
        for rule, flags in judged.flags.items():
            lines = np.flatnonzero(flags) + self._line
            if rule == "unrelated":  # unless it turns out to belong to a stretch
                self._unrelated.extend(lines.tolist())
            else:
                self.found(rule, lines)
        for digests, column in zip(self._digests, judged.digests.T, strict=True):
            digests.frombytes(column.tobytes())
        self._blank += (judged.flags["blank both"] | judged.flags["blank side"]).tobytes()
        self._shifts.add(judged.scores)
        self._add_lengths(judged)
        count = len(judged.src_lengths)
        part = np.arange(self._line - 1, self._line - 1 + count) * PARTS // self._report.pairs
        for row, values in enumerate((judged.scores[UNSHIFTED].clip(-10, 30), np.ones(count))):
            self._quality[row] += np.bincount(part, weights=values, minlength=PARTS)
        self._line += count

    def _add_lengths(self, judged: Judged) -> None:
        bins = [
            (np.log2(lengths.clip(1, None)) * BINS_AN_OCTAVE).astype(np.int64).clip(0, NUM_BINS - 1)
            for lengths in (judged.src_lengths, judged.tgt_lengths)
        ]
        for counts, of_side in zip(self._report.length_counts, bins, strict=True):
            counts += np.bincount(of_side, minlength=NUM_BINS)
        both = np.bincount(bins[0] * NUM_BINS + bins[1], minlength=NUM_BINS * NUM_BINS)
        self._report.pair_counts += both.reshape(NUM_BINS, NUM_BINS)

    def finish(self, others: dict[str, NDArray[np.uint64]]) -> None:
        """What only the whole tells: repetitions, overlaps, stretches.

        Args:
            others: digests of the pairs of validation and test text.
        """
        self._report.stretches = self._shifts.stretches()
        unrelated = np.array(self._unrelated, dtype=np.int64)
        for stretch in self._report.stretches:
            self.found("misaligned", np.arange(stretch.start, stretch.end + 1))
            unrelated = unrelated[(unrelated < stretch.start) | (unrelated > stretch.end)]
        self.found("unrelated", unrelated)
        text = ~np.frombuffer(self._blank, dtype=bool)
        pair, src, tgt = (np.frombuffer(digests, np.uint64) for digests in self._digests)
        new = first_of_equals(pair)
        self.found("duplicate", np.flatnonzero(text & ~new) + 1)
        self.found("source again", np.flatnonzero(text & new & ~first_of_equals(src)) + 1)
        self.found("target again", np.flatnonzero(text & new & ~first_of_equals(tgt)) + 1)
        for name, digests in others.items():
            in_pairs, in_sources = occur_in(pair, digests[:, 0]), occur_in(src, digests[:, 1])
            self.found(f"pair in {name}", np.flatnonzero(text & in_pairs) + 1)
            self.found(f"source in {name}", np.flatnonzero(text & in_sources & ~in_pairs) + 1)
        with np.errstate(invalid="ignore"):
            self._report.quality = (self._quality[0] / self._quality[1]).tolist()


def _refuse_too_few(report: Report, config: DataConfig) -> None:
    """What is left by the rules that always hold must suffice to train on, and to hold some out of."""
    dropped = ("blank both", "blank side", *(["duplicate"] if config.remove_duplicates else []))
    left = report.pairs - sum(report.findings[rule].count for rule in dropped if rule in report.findings)
    if left <= 0:
        report.refusals.append("every pair has a blank side, or is repeated: nothing is left to train on")
    elif config.valid is None and left < 10:
        report.refusals.append(
            f"{left} pairs that are not blank or repeated are too few to hold some out to validate on"
        )


def _doubt(report: Report, src: Sequence[str], tgt: Sequence[str]) -> None:
    """What no single line tells; `src` and `tgt` are a sample."""
    quality = [value for value in report.quality if not math.isnan(value)]
    if report.pairs >= _ENOUGH_PAIRS and sum(quality) / len(quality) < _NO_TRANSLATION:
        report.doubts.append(
            "the two sides do not look like translations of each other at all: are the lines in another order, "
            "shifted by many, or of two different texts?"
        )
    for side, lines, called in zip(("source", "target"), (src, tgt), report.languages, strict=True):
        language = language_of(lines, called)
        if language:
            report.doubts.append(f"the {side} is called {called}, and looks like {language}: are the sides exchanged?")


def _is_plain(source: Source) -> bool:
    """Whether the files of a source are lines of text, compressed or not."""
    return source.prefix is not None or source.src is not None or source.tsv is not None


def _find_mended(config: DataConfig, report: Report, tally: _Tally) -> None:
    before = 0
    for source, (_, pairs) in zip(config.train, report.sources, strict=True):
        sides = [_mended(path) for path in files_of(source, config)] if _is_plain(source) else []
        for rule in sides[0] if sides else ():
            lines = np.unique(np.concatenate([of_side[rule] for of_side in sides]))  # once, though both have it
            tally.found(rule, before + lines[lines <= pairs])
        before += pairs


def _mended(path: Path) -> dict[str, NDArray[np.int64]]:
    """The lines that reading mends without a word, by rule: separators and control characters."""
    patterns = {
        "separators": _SEPARATORS if plain_name(path.name).endswith(".tsv") else _SEPARATORS_AND_TAB,
        "controls": _CONTROLS,
    }
    found = {rule: array("q") for rule in patterns}
    with open_text(path) as stream:
        for number, line in enumerate(read_lines(stream), 1):
            if not line.isprintable():
                for rule, pattern in patterns.items():
                    if pattern.search(line):
                        found[rule].append(number)
    return {rule: np.array(lines, np.int64) for rule, lines in found.items()}


def _digests(source: Source, config: DataConfig) -> NDArray[np.uint64]:
    parts = [digests_of(src, tgt) for src, tgt in read_chunks(source, config)]
    return np.concatenate(parts) if parts else np.empty((0, 3), np.uint64)


def _tokens(tokenizer: Tokenizer, src: list[str], tgt: list[str]) -> dict[str, dict[str, float]]:
    """How each side's sample comes out in pieces."""
    found = {}
    for side, lines, encode, pieces in (
        ("source", src, tokenizer.encode_src, tokenizer.src_pieces),
        ("target", tgt, tokenizer.encode_tgt, tokenizer.tgt_pieces),
    ):
        ids = [piece for line in encode(lines) for piece in line[:-1]]  # without its end
        kinds = Counter(ids)
        names = dict(zip(kinds, pieces(list(kinds)), strict=True))
        is_byte = {piece: re.fullmatch(r"<0x[0-9A-F]{2}>", name) is not None for piece, name in names.items()}
        unknown = sum(n for piece, n in kinds.items() if piece == tokenizer.special.unk or is_byte[piece])
        words, characters = sum(len(line.split()) for line in lines), sum(map(len, lines))
        found[side] = {
            "pieces a word": len(ids) / max(1, words),
            "characters a piece": characters / max(1, len(ids)),
            "unknown or byte pieces, %": 100 * unknown / max(1, len(ids)),
        }
    return found


def _write_lines(
    report: Report, every: "dict[str, array[int]]", chunks: Iterator[Chunk], write: Callable[[str], object]
) -> None:
    names = list(every)
    lines = np.concatenate([np.frombuffer(every[name], np.int64) for name in names])
    rules = np.repeat(np.arange(len(names)), [len(every[name]) for name in names])
    order = np.argsort(lines, kind="stable")
    lines, rules = lines[order], rules[order]
    position = 0
    for src, tgt in chunks:
        first, last = np.searchsorted(lines, [position + 1, position + len(src) + 1])
        for line, rule in zip(lines[first:last].tolist(), rules[first:last].tolist(), strict=True):
            (corpus, number), at = report.place(line), line - 1 - position
            name = names[rule]
            write("\t".join([corpus, str(number), RULES[name].severity, name, src[at], tgt[at]]) + "\n")
        position += len(src)


def _add_excerpts(report: Report, chunks: Iterator[Chunk]) -> None:
    """Look up the text of the first lines of each rule."""
    wanted: dict[int, list[Finding]] = {}
    for finding in report.findings.values():
        for line in finding.lines[:_SHOWN]:
            wanted.setdefault(line, []).append(finding)
    left, position = len(wanted), 0
    for src, tgt in chunks:
        for line in wanted:
            if position < line <= position + len(src):
                pair = src[line - 1 - position], tgt[line - 1 - position]
                for finding in wanted[line]:
                    finding.excerpts.append((line, *pair))
                left -= 1
        position += len(src)
        if not left:
            break
