"""Lines to lines: take apart, encode, search in batches of similar length, decode, join, restore the order.

Line k in is line k out. A line is translated in parts where it holds several sentences (`split_sentences`), or more
pieces than the model was trained for.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.bundle import Bundle
from nmt.config import DecodingConfig
from nmt.data.batching import pad
from nmt.decoding.options import Limits, SearchOptions
from nmt.decoding.parts import Cutter, Joined, Part
from nmt.decoding.paths import Sampling, greedy_search, sample
from nmt.decoding.rows import ModelRows
from nmt.decoding.search import Hypothesis, beam_search
from nmt.errors import ConfigError, DataError
from nmt.model.inference import PRECISIONS, Precision, default_precision, has_fixed_rows, int8_works, prepare
from nmt.model.kv_cache import even_width
from nmt.model.memory import is_out_of_memory, keep_freed_pages, keep_kernels
from nmt.model.seq2seq import Seq2Seq
from nmt.text.lines import clean

Found = list[list[Hypothesis]]  # of each sentence, best first
Find = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]] | None], Found]  # from source ids and target ids

WINDOW_LINES = 2048  # of a stream, translated together, sorted by length
_MOST_WORKERS = 4  # unless more are asked for: each needs memory for its batch
_CPU_NUMBERS = 2**22  # of the widest layer's output, which stays in a processor's cache while sources are encoded
_GPU_TOKENS = 16_384
_FEWEST_LINES = 8  # in a batch that is made smaller so that every worker has one
_MOSTLY_SINGLE = 0.95  # of the training lines were one sentence: the model knows no others


@dataclass(frozen=True)
class Translation:
    """What became of a line. A blank line has no hypotheses, and a blank translation.

    Attributes:
        text: the best hypothesis, without control characters.
        hypotheses: the n_best, best first; of a line that was translated in parts they are of class Joined.
        src_pieces: pieces that the model was given, ends included.
        protected: what became of the placeholders and tags of a line that has some, if a `ProtectingTranslator` was
            asked: copied, masked, placed or lost. `text` then has them, the hypotheses are as the model wrote them.
        parts: what the model was given of the line.
    """

    text: str = ""
    hypotheses: tuple[Hypothesis, ...] = ()
    src_pieces: int = 0
    protected: str | None = None
    parts: tuple[Part, ...] = ()


class Translator:
    """Translates lines with a bundle, or with several that share a vocabulary (their probabilities are averaged).

    Args:
        model: a Bundle, or the path of one, or of a run folder; or a list of them.
        device: "auto", "cpu", "cuda" or "mps" (used for a path; a Bundle stays where it is).
        precision: fp32, bf16, fp16 or int8; "auto" goes by device and width (see `default_precision`). A Bundle that is
            given is used as it is, and is not prepared.
        deterministic: scores are equal to the bit whatever else is in the batch, in fp32 too.
        decoding: keys of the bundle's `[decoding]` to be changed; None leaves a key as it is.
        num_workers: threads that work on batches of their own; 0: one for each CPU core, up to four that share the
            cores, and one on a GPU.
        batch_rows: search rows (lines times beam) decoded together at most.
        batch_tokens: source tokens encoded together at most; by default what a processor's cache, or a GPU, takes well.
    Raises: BundleError, ConfigError.
    """

    def __init__(
        self,
        model: Bundle | str | Path | Sequence[Bundle | str | Path],
        *,
        device: str = "auto",
        precision: str = "auto",
        deterministic: bool = False,
        decoding: Mapping[str, Any] | None = None,
        num_workers: int = 0,
        batch_rows: int = 512,
        batch_tokens: int | None = None,
    ) -> None:
        given = [model] if isinstance(model, Bundle | str | Path) else list(model)
        bundles = [self._open(each, device, precision, deterministic) for each in given]
        self.bundle = bundles[0]
        self.decoding: DecodingConfig = self.bundle.config.decoding.changed(**(decoding or {}))
        _check_ensemble(bundles)
        if self.decoding.tag:
            self.bundle.tokenizer.check_tag(self.decoding.tag)
        special = self.bundle.tokenizer.special
        self.options = SearchOptions(
            bos=special.bos,
            eos=special.eos,
            banned=tuple({special.pad, special.bos, special.unk}),
            beam_size=self.decoding.beam_size,
            n_best=self.decoding.n_best,
            length_penalty=self.decoding.length_penalty,
            length_penalty_type=self.decoding.length_penalty_type,
            coverage_penalty=self.decoding.coverage_penalty,
            no_repeat_ngram=self.decoding.no_repeat_ngram,
            repetition_penalty=self.decoding.repetition_penalty,
        )
        self._width = self.options.n_best if self.decoding.sample else self.options.beam_size
        where = next(self.bundle.model.parameters()).device
        fitting = _CPU_NUMBERS // self.bundle.config.model.widest if where.type == "cpu" else _GPU_TOKENS
        self._batch_rows, self._batch_tokens = batch_rows, batch_tokens or fitting
        self._head_dim = min(bundle.config.model.head_dim for bundle in bundles)
        self._models = [bundle.model for bundle in bundles]
        self._max_positions = min(model.max_positions or sys.maxsize for model in self._models)
        self._cutter = Cutter(
            self.bundle.tokenizer,
            (self.bundle.config.src_lang, self.bundle.config.tgt_lang),
            min(bundle.config.max_length for bundle in bundles),
            self.decoding.tag,
            self.bundle.config.tags,
        )
        share = self.bundle.config.one_sentence_share
        mostly_single = share is not None and share > _MOSTLY_SINGLE
        self._splits = {"always": True, "never": False, "auto": mostly_single}[self.decoding.split_sentences]
        # Greedy and drawn paths are not ranked by coverage.
        self._covers = bool(self.decoding.coverage_penalty) and not self.decoding.sample and self._width > 1
        # What attention looked at is noted in the modules, which one thread alone may then use.
        self._workers = _Workers(where, 1 if self._covers else num_workers)

    @staticmethod
    def _open(model: Bundle | str | Path, device: str, precision: str, deterministic: bool) -> Bundle:
        if isinstance(model, Bundle):
            return model
        place = pick_device(device)
        _check_precision(precision, place)
        bundle = Bundle.load(model, place)
        wanted = default_precision(place, bundle.config.model) if precision == "auto" else precision
        chosen = cast(Precision, wanted)
        if place.type == "cpu":
            keep_freed_pages()
            keep_kernels()
        prepare(bundle.model, chosen, has_fixed_rows(chosen, deterministic))
        return bundle

    @property
    def models(self) -> Sequence[Seq2Seq]:
        """Those that translate together."""
        return self._models

    def translate(self, lines: Iterable[str], before_batch: Callable[[], None] = lambda: None) -> list[str]:
        """Translate each line; as many come out as went in. A blank line stays blank and never meets the model.

        Args:
            before_batch: called before each batch; what it raises ends the work.
        """
        return [translation.text for translation in self.translations(lines, before_batch=before_batch)]

    def translations(
        self,
        lines: Iterable[str],
        prefixes: Sequence[str] | None = None,
        before_batch: Callable[[], None] = lambda: None,
    ) -> list[Translation]:
        """`translate`, with all n-best hypotheses and their scores.

        Args:
            prefixes: the target text that each translation is to begin with; pieces, and so whole words, are forced,
                up to a character that has none. A line with one is not taken apart at sentences: which of them the
                prefix ends in is not known. If the line is too long, its first part begins with the prefix. One longer
                than the positions that a model has learned is cut.
        """
        lines = _as_lines(lines)
        encode_tgt = self.bundle.tokenizer.encode_tgt
        if prefixes is not None and len(prefixes) != len(lines):
            raise ValueError(f"{len(prefixes)} prefixes for {len(lines)} lines")
        forced: list[list[int]] = [[] for _ in lines]
        if prefixes is not None:
            unk = self.bundle.tokenizer.special.unk
            encoded = encode_tgt([clean(text) for text in prefixes])
            known = [list(takewhile(lambda piece: piece != unk, ids[:-1])) for ids in encoded]
            forced = [ids[: self._max_positions - 1] for ids in known]
        in_parts = self._cutter.cut([clean(line) for line in lines], [self._splits and not prefix for prefix in forced])
        openings: list[list[int]] = []
        for prefix, parts in zip(forced, in_parts, strict=True):
            openings += [prefix, *([] for _ in parts)][: len(parts)]
        src_ids = [part.ids for parts in in_parts for part in parts]
        found = iter(self._found(src_ids, openings, self.search, before_batch))
        return [self._translation(parts, [next(found) for _ in parts]) for parts in in_parts]

    def score(self, src_lines: Iterable[str], tgt_lines: Iterable[str]) -> list[Hypothesis | None]:
        """Force-decode the given translations, by the steps that a search takes. None where either side is blank.

        Raises: DataError, for a pair that is `too_long`.
        """
        src_lines, tgt_lines = _as_lines(src_lines), _as_lines(tgt_lines)
        if len(src_lines) != len(tgt_lines):
            raise ValueError(f"{len(tgt_lines)} translations for {len(src_lines)} lines")
        sources, cleaned = [clean(line) for line in src_lines], [clean(line) for line in tgt_lines]
        encoded = zip(sources, cleaned, self.encode(sources), strict=True)
        src_ids = [ids if src and tgt else [] for src, tgt, ids in encoded]
        targets = [ids[:-1] for ids in self.bundle.tokenizer.encode_tgt(cleaned)]
        found = self._found(src_ids, targets, self.force, lambda: None)
        return [hypotheses[0] if hypotheses else None for hypotheses in found]

    def too_long(self, src: str, tgt: str) -> str:
        """Why the models, which have learned so many positions, cannot be given a pair; empty if they can."""
        pieces = max(len(self.encode([clean(src)])[0]), len(self.bundle.tokenizer.encode_tgt([clean(tgt)])[0]))
        if pieces <= self._max_positions:
            return ""
        return f"a side has {pieces:,} pieces, but the model has learned {self._max_positions:,} positions"

    @property
    def has_limit(self) -> bool:
        """Whether a pair can be `too_long`."""
        return self._max_positions < sys.maxsize

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The pieces of whole source lines as the models are given them: a tag first if there is one, EOS last."""
        return self._cutter.encode(lines)

    @property
    def cutter(self) -> Cutter:
        """What takes lines apart for these models."""
        return self._cutter

    def text(self, hypothesis: Hypothesis) -> str:
        """A hypothesis as text, without control characters."""
        if isinstance(hypothesis, Joined):
            texts = map(self.text, hypothesis.parts)
            return "".join(chain.from_iterable(zip(texts, [*hypothesis.spacing, ""], strict=True)))
        return clean(self.bundle.tokenizer.decode(hypothesis.ids))

    def search(self, src_ids: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None) -> Found:
        """The hypotheses of each encoded source sentence (EOS last), best first. `prefixes`: forced target ids."""
        rules = self.decoding
        lengths = [len(ids) for ids in src_ids]
        shortest = [min(1 + rules.fewest_pieces(length), self._max_positions) for length in lengths]
        longest = [min(1 + rules.most_pieces(length), self._max_positions) for length in lengths]
        limits = Limits.of(shortest, longest, prefixes)
        rows = ModelRows(self._models, self._padded(src_ids), lengths, self._width, self._covers)
        limits = limits.to(rows.device)
        if rules.sample:
            seeds = tuple(_seed(rules.seed, ids) for ids in src_ids)
            sampling = Sampling(rules.temperature, rules.top_k, rules.top_p, seeds)
            return sample(rows, limits, self.options, sampling)
        if self.options.beam_size == 1:
            return greedy_search(rows, limits, self.options)
        return beam_search(rows, limits, self.options)

    def force(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]] | None) -> Found:
        """The one hypothesis of each sentence that has these target ids (without EOS)."""
        assert tgt_ids is not None
        longest = max((max(len(src), len(tgt) + 1) for src, tgt in zip(src_ids, tgt_ids, strict=True)), default=0)
        if longest > self._max_positions:
            raise DataError(
                f"A side has {longest:,} pieces, but this model has learned {self._max_positions:,} positions."
            )
        limits = Limits.of([0] * len(tgt_ids), [len(ids) + 1 for ids in tgt_ids], tgt_ids)
        rows = ModelRows(self._models, self._padded(src_ids), [len(ids) for ids in src_ids], 1)
        return greedy_search(rows, limits.to(rows.device), self.options)

    def _translation(self, parts: Sequence[Part], found: Found) -> Translation:
        """Of a line, from the hypotheses of each of its parts."""
        if not parts:
            return Translation()
        hypotheses = self._cutter.join(parts, found, self.options.n_best, sampled=self.decoding.sample)
        given = sum(len(part.ids) for part in parts)
        return Translation(self.text(hypotheses[0]), tuple(hypotheses), given, parts=tuple(parts))

    def _found(
        self,
        src_ids: Sequence[Sequence[int]],
        tgt_ids: Sequence[Sequence[int]],
        find: Find,
        before_batch: Callable[[], None],
    ) -> Found:
        """What `find` finds for each encoded source, in their order; nothing for one without pieces."""
        found: Found = [[] for _ in src_ids]
        encoded = {place: ids for place, ids in enumerate(src_ids) if ids}

        def work(batch: list[int]) -> Found:
            before_batch()
            return self._or_in_halves(batch, encoded, tgt_ids, find)

        batches = list(self._batches(encoded))
        for batch, results in zip(batches, self._workers.map(work, batches), strict=True):
            for place, hypotheses in zip(batch, results, strict=True):
                found[place] = hypotheses
        return found

    def _or_in_halves(
        self,
        batch: list[int],
        encoded: Mapping[int, Sequence[int]],
        tgt_ids: Sequence[Sequence[int]],
        find: Find,
    ) -> Found:
        """A batch that does not fit into memory is tried again in halves."""
        try:
            return find([encoded[p] for p in batch], [tgt_ids[p] for p in batch])
        except RuntimeError as error:
            if len(batch) == 1 or not is_out_of_memory(error):
                raise
        middle = len(batch) // 2
        halves = (batch[:middle], batch[middle:])
        return [h for half in halves for h in self._or_in_halves(half, encoded, tgt_ids, find)]

    def _batches(self, encoded: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
        """Lines of similar length, by their places, the longest first: a batch is cut where it would be too large."""
        fair_share = -(-len(encoded) // self._workers.count)
        most_lines = min(max(1, self._batch_rows // self._width), max(_FEWEST_LINES, fair_share))
        batch: list[int] = []
        tokens = 0
        for place in sorted(encoded, key=lambda place: (-len(encoded[place]), place)):
            tokens += len(encoded[place])
            if batch and (len(batch) == most_lines or tokens > self._batch_tokens):
                yield batch
                batch, tokens = [], len(encoded[place])
            batch.append(place)
        if batch:
            yield batch

    def _padded(self, src_ids: Sequence[Sequence[int]]) -> Tensor:
        """int64 (B, S)."""
        filler = self.bundle.tokenizer.special.pad
        src_BS = torch.from_numpy(pad(src_ids, filler))
        return F.pad(src_BS, (0, self._padded_width(src_BS.shape[1]) - src_BS.shape[1]), value=filler)

    def _padded_width(self, length: int) -> int:
        return even_width(length, self._head_dim)


class _Workers:
    """Threads that work on batches of their own, on a CPU each with its share of the cores.

    Threads and not processes: torch lets go of Python's lock while it computes, and all share one copy of the weights.
    """

    def __init__(self, device: torch.device, num_workers: int) -> None:
        self._cores = torch.get_num_threads()
        self.count = num_workers or (min(self._cores, _MOST_WORKERS) if device.type == "cpu" else 1)

    def map(self, work: Callable[[list[int]], Found], batches: Sequence[list[int]]) -> Iterator[Found]:
        """The result of each batch, in order. One batch alone is worked on by all cores, in the calling thread."""
        if self.count == 1 or len(batches) == 1:
            yield from map(work, batches)
            return
        share = max(1, self._cores // self.count)
        pool = ThreadPoolExecutor(self.count, initializer=torch.set_num_threads, initargs=(share,))
        try:
            yield from pool.map(work, batches)
        finally:
            pool.shutdown(cancel_futures=True)


def _as_lines(lines: Iterable[str]) -> list[str]:
    """Raises: TypeError, for what would be taken apart."""
    if isinstance(lines, str):
        raise TypeError("give a list of lines, not one string")
    return list(lines)


def _seed(seed: int, ids: Sequence[int]) -> int:
    """Of the line alone, so that neither its place nor its company changes what is drawn."""
    digest = hashlib.sha256(f"{seed} {' '.join(map(str, ids))}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def _check_ensemble(bundles: Sequence[Bundle]) -> None:
    """Raises: ConfigError, if the models do not share their pieces."""
    for bundle in bundles[1:]:
        if bundle.tokenizer.sha256 != bundles[0].tokenizer.sha256:
            raise ConfigError(
                "Models that translate together need one and the same tokenizer; these have different ones. Train the "
                "second with the first's (tokenizer.src_model, or training.init_from)."
            )


def _check_precision(name: str, device: torch.device) -> None:
    """Raises: ConfigError (not known, or not possible there)."""
    if name not in ("auto", *PRECISIONS):
        raise ConfigError(f"--precision {name} is not known; give auto, {', '.join(PRECISIONS)}.")
    if name == "int8" and not (device.type == "cpu" and int8_works()):
        raise ConfigError("--precision int8 needs an x86 CPU, and a torch with FBGEMM; give auto, fp32 or bf16.")


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` takes CUDA if there, then MPS, then the CPU. Raises: ConfigError."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    kind, colon, index = name.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if not available.get(kind, False) or (colon and not (index.isdecimal() and int(index) < count)):
        usable = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"--device {name} is not available here; this machine has: auto, {usable}.")
    return torch.device(name)
