"""What searches are compared with: enumeration of random tables, and small random models in float64.

Shapes: B sentences, W prefixes a sentence, N nodes of the tree of prefixes, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.config import ModelConfig
from nmt.decoding.options import LengthPenalty, Limits, SearchOptions
from nmt.decoding.paths import greedy_search
from nmt.decoding.rows import ModelRows
from nmt.decoding.search import IMPOSSIBLE, Hypothesis, Rows, beam_search
from nmt.model.attention import SelfAttention
from nmt.model.build import build_model
from nmt.model.kv_cache import DecoderState, Slots
from nmt.model.seq2seq import Seq2Seq

BOS, EOS = 0, 1
Search = Callable[[Rows, Limits, SearchOptions], list[list[Hypothesis]]]


@dataclass
class Tables:
    """Logits that depend on the sentence and on its whole prefix: one row a node of the tree of prefixes.

    The root is node 0; token v leads from node n to node n * V + v + 1.
    """

    logits_BNV: Tensor
    limits: Limits
    options: SearchOptions

    def child(self, node: int, token: int) -> int:
        return node * self.logits_BNV.shape[2] + token + 1

    def sentence(self, place: int) -> "Tables":
        """One alone."""
        one = torch.tensor([place])
        return replace(self, logits_BNV=self.logits_BNV[one], limits=self.limits.select(one))


class TableRows:
    """The prefixes of a search in a table: each one's sentence and node."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.sentence_B1 = torch.arange(len(tables.limits))[:, None]
        self.node_BW = torch.zeros_like(self.sentence_B1)
        self.started = False

    def step(self, tokens_BW: Tensor) -> Tensor:
        if self.started:
            self.node_BW = self.tables.child(self.node_BW, tokens_BW)
        else:
            assert (tokens_BW == BOS).all()
        self.started = True
        return self.tables.logits_BNV[self.sentence_B1, self.node_BW].clone()

    def attention(self) -> Tensor:
        raise AssertionError("not asked for")

    def reorder(self, parents_BW: Tensor) -> None:
        self.node_BW = self.node_BW.gather(1, parents_BW)

    def keep_sentences(self, sentences: Tensor) -> None:
        self.sentence_B1, self.node_BW = self.sentence_B1[sentences], self.node_BW[sentences]


class ForgetfulRows(TableRows):
    """Continues every prefix from the first of its sentence."""

    def reorder(self, parents_BW: Tensor) -> None:
        super().reorder(torch.zeros_like(parents_BW))


def run(
    tables: Tables, how: Search = beam_search, rows_class: type[TableRows] = TableRows, **options: object
) -> list[list[Hypothesis]]:
    return how(rows_class(tables), tables.limits, replace(tables.options, **options))


def random_tables(rng: np.random.Generator, alpha: float, kind: LengthPenalty = "gnmt", rules: bool = False) -> Tables:
    """Up to three sentences over up to five tokens, with limits of up to five tokens.

    Args:
        rules: forced prefixes, minimum lengths of each sentence, and rules on repetition too.
    """
    vocab, batch = int(rng.integers(3, 6)), int(rng.integers(1, 4))
    longest = rng.integers(1, 6, batch).tolist()
    shortest = [1 + int(n) for n in (rng.integers(0, 5, batch) if rules else [rng.integers(0, 3)] * batch)]
    prefixes = [rng.choice([BOS, *range(2, vocab)], rng.integers(0, min(n, 4)) * rules).tolist() for n in longest]
    options = SearchOptions(
        bos=BOS,
        eos=EOS,
        banned=((), (BOS,))[rng.integers(2)],
        beam_size=vocab ** max(longest),
        length_penalty=alpha,
        length_penalty_type=kind,
        no_repeat_ngram=int(rng.integers(0, 4)) * rules,
        repetition_penalty=float(rng.choice([1.0, 0.7, 1.8])) if rules else 1.0,
    )
    nodes = sum(vocab**level for level in range(max(longest)))
    logits_BNV = torch.from_numpy(rng.normal(size=(batch, nodes, vocab)) * 1.5)
    return Tables(logits_BNV, Limits.of(shortest, longest, prefixes), options)


def enumerate_all(tables: Tables, sentence: int) -> list[Hypothesis]:
    """Every sentence that options and limits allow, best first, by recursion over log-probabilities written out."""
    options = tables.options
    shortest, longest = int(tables.limits.min_B[sentence]), int(tables.limits.max_B[sentence])
    prefix = [token for token in tables.limits.prefix_BP[sentence].tolist() if token >= 0]
    all_logits = tables.logits_BNV[sentence].tolist()
    found = []

    def log_probs_after(ids: tuple[int, ...], node: int) -> list[float]:
        penalty, logits = options.repetition_penalty, list(all_logits[node])
        for token in set(ids):
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        normaliser = math.log(math.fsum(map(math.exp, logits)))
        return [logit - normaliser for logit in logits]

    def allowed(ids: tuple[int, ...], token: int) -> bool:
        length = len(ids) + 1
        if len(ids) < len(prefix):
            return token == prefix[len(ids)]
        if token == EOS:
            return length >= min(shortest, longest)
        n, text = options.no_repeat_ngram, (*ids, token)
        ngrams = [text[start : start + n] for start in range(length - n + 1)] if n else []
        repeats = ngrams != [] and ngrams[-1] in ngrams[:-1]
        return token not in options.banned and length < longest and not repeats

    def extend(ids: tuple[int, ...], node: int, log_prob: float) -> None:
        for token, token_log_prob in enumerate(log_probs_after(ids, node)):
            if not allowed(ids, token):
                continue
            total = log_prob + token_log_prob
            if token == EOS:
                length = len(ids) + 1
                base = {"gnmt": (5 + length) / 6, "power": length}[options.length_penalty_type]
                found.append(Hypothesis(total / base**options.length_penalty, total, ids))
            else:
                extend((*ids, token), tables.child(node, token), total)

    extend((), 0, 0.0)
    return sorted(found, reverse=True) or [IMPOSSIBLE]


def is_same(ours: Sequence[Hypothesis], theirs: Sequence[Hypothesis]) -> bool:
    """Equal ids, and scores within 1e-10 (or all of them impossible)."""
    return [h.ids for h in ours] == [h.ids for h in theirs] and all(
        a == b or (abs(a.score - b.score) <= 1e-10 and abs(a.log_prob - b.log_prob) <= 1e-10)
        for a, b in zip(ours, theirs, strict=True)
    )


OF_2017: dict[str, object] = {"positions": "sinusoidal", "num_kv_heads": None, "qk_norm": False}


def drop_causal_mask(patch: pytest.MonkeyPatch) -> None:
    """Let the decoder see targets to come."""
    forward = SelfAttention.forward

    def broken(self: SelfAttention, *given: Any, **named: Any) -> Tensor:
        causal, self.causal = self.causal, False
        try:
            return forward(self, *given, **named)
        finally:
            self.causal = causal

    patch.setattr(SelfAttention, "forward", broken)


def kind_of_attention(rng: np.random.Generator, num_heads: int) -> dict[str, object]:
    """Keys of a transformer's attention, drawn."""
    return {
        "positions": str(rng.choice(["sinusoidal", "learned", "rope", "relative", "shaw"])),
        "num_kv_heads": int(rng.choice([heads for heads in (1, 2, 4) if num_heads % heads == 0])),
        "qk_norm": bool(rng.integers(2)),
    }


def kind_of_rnn(rng: np.random.Generator) -> dict[str, object]:
    """Keys of a recurrent model, drawn."""
    return {
        "type": "rnn",
        "cell": str(rng.choice(["lstm", "gru"])),
        "attention": str(rng.choice(["bahdanau", "luong_dot", "luong_general", "luong_concat"])),
    }


@dataclass
class ModelBatch:
    """A random model in float64 and padded source sentences."""

    model: Seq2Seq
    src: Tensor
    lengths: list[int]
    limits: Limits
    options: SearchOptions

    @classmethod
    def random(cls, rng: np.random.Generator) -> "ModelBatch":
        torch.manual_seed(int(rng.integers(2**31)))
        config = ModelConfig(
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=16,
            num_heads=2,
            d_ff=24,
            norm=str(rng.choice(["pre", "post"])),
            **(kind_of_rnn(rng) if rng.random() < 0.25 else kind_of_attention(rng, 2)),
        )
        model = build_model(config, 12, 12).double().eval()
        batch = int(rng.integers(2, 5))
        lengths = rng.integers(1, 8, batch).tolist()
        src = torch.from_numpy(rng.integers(2, 12, (batch, max(lengths))))
        beam, alpha = int(rng.integers(1, 5)), float(rng.choice([0.0, 0.6, 1.5]))
        options = SearchOptions(BOS, EOS, banned=(BOS,), beam_size=beam, length_penalty=alpha, n_best=beam)
        return cls(model, src, lengths, Limits.of([2] * batch, rng.integers(2, 9, batch).tolist()), options)

    def search(self, rows: slice = slice(None), masked: bool = True) -> list[list[Hypothesis]]:
        """Search some sentences, with no more padding than they need if masked."""
        lengths = self.lengths[rows]
        src = self.src[rows, : max(lengths)]
        prefixes = ModelRows(
            [self.model], src, lengths if masked else [src.shape[1]] * len(src), self.options.beam_size
        )
        how = beam_search if self.options.beam_size > 1 else greedy_search
        return how(prefixes, self.limits.select(torch.arange(len(self.src))[rows]), self.options)

    def forced(self, sentence: int, ids: tuple[int, ...]) -> float:
        """The log-probability of ids and EOS, by the full decoder."""
        return float(self.forced_steps(sentence, ids).sum())

    @torch.no_grad()
    def forced_steps(self, sentence: int, ids: tuple[int, ...]) -> Tensor:
        """The log-probability of each id and of EOS."""
        src = self.src[sentence : sentence + 1, : self.lengths[sentence]]
        log_probs = self.model(src, torch.tensor([[BOS, *ids]]))[0].log_softmax(-1)
        return log_probs[torch.arange(len(ids) + 1), [*ids, EOS]]


def equal_to_enumeration(
    cases: int,
    seed: int,
    alphas: list[float],
    rows_class: type[TableRows] = TableRows,
    kinds: tuple[LengthPenalty, ...] = ("gnmt",),
    rules: bool = False,
) -> int:
    """Tables whose three best hypotheses under a beam wide enough for everything are those of the enumeration."""
    rng, equal = np.random.default_rng(seed), 0
    for case in range(cases):
        tables = random_tables(rng, alphas[case % len(alphas)], kinds[case % len(kinds)], rules)
        found = run(tables, rows_class=rows_class, n_best=3)
        equal += all(is_same(best, enumerate_all(tables, b)[:3]) for b, best in enumerate(found))
    return equal


def equal_alone_and_together(batches: int, masked: bool = True) -> int:
    rng, equal = np.random.default_rng(5), 0
    for _ in range(batches):
        batch = ModelBatch.random(rng)
        alone = [batch.search(slice(row, row + 1))[0] for row in range(len(batch.src))]
        equal += all(map(is_same, batch.search(masked=masked), alone))
    return equal


def forced_score_difference(batches: int) -> tuple[float, int]:
    """The largest difference from teacher forcing, over how many hypotheses."""
    rng, worst, count = np.random.default_rng(6), 0.0, 0
    for _ in range(batches):
        batch = ModelBatch.random(rng)
        for sentence, hypotheses in enumerate(batch.search()):
            for hypothesis in hypotheses:
                forced = batch.forced(sentence, hypothesis.ids)
                score = forced / ((5 + len(hypothesis.ids) + 1) / 6) ** batch.options.length_penalty
                worst = max(worst, abs(hypothesis.log_prob - forced), abs(hypothesis.score - score))
            count += len(hypotheses)
    return worst, count


def skip_reorder(patch: pytest.MonkeyPatch) -> None:
    """Break the cache: prefixes are not reordered where their number stays."""
    reorder = DecoderState.reorder

    def broken(self: DecoderState, parents: Tensor) -> None:
        if parents.shape != self.slots.newest_BW.shape:
            reorder(self, parents)

    patch.setattr(DecoderState, "reorder", broken)


def take_a_slot_in_use(patch: pytest.MonkeyPatch) -> None:
    """Break the cache: new positions overwrite others that are needed."""
    lowest_free = Slots._lowest_free

    def broken(self: Slots, like_BW: Tensor) -> Tensor:
        return (lowest_free(self, like_BW) - 1).clamp(min=0)

    patch.setattr(Slots, "_lowest_free", broken)
