"""Beam and greedy search against enumeration, hand-computed tables, each other and teacher forcing."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.config import ModelConfig
from nmt.decoding import search
from nmt.decoding.search import Hypothesis, SearchOptions, Step, beam_search, greedy_search, length_penalty
from nmt.model.kv_cache import LayerCache
from nmt.model.transformer import Transformer

BOS, EOS = 0, 1
Figure = Callable[..., None]
Search = Callable[[Step, search.RowState, Tensor, SearchOptions], list[list[Hypothesis]]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass
class Tables:
    """Logits that depend on the sentence and on its whole prefix: one row a node of the tree of prefixes.

    The root is node 0; token v leads from node n to node n * V + v + 1.
    """

    logits_BNV: Tensor
    max_lengths: Tensor
    options: SearchOptions

    def child(self, node: int, token: int) -> int:
        return node * self.logits_BNV.shape[2] + token + 1


@dataclass
class TableState:
    """The decoder state of a table: each row's sentence and prefix. Checks that no row leaves its sentence."""

    tables: Tables
    sentences_B: Tensor = field(init=False)
    sentence_N: Tensor = field(init=False)
    node_N: Tensor = field(init=False)
    started: bool = False

    def __post_init__(self) -> None:
        self.sentences_B = self.sentence_N = torch.arange(len(self.tables.max_lengths))
        self.node_N = torch.zeros_like(self.sentence_N)

    def step(self, tokens_N: Tensor) -> Tensor:
        if self.started:
            self.node_N = self.tables.child(self.node_N, tokens_N)
        else:
            assert (tokens_N == BOS).all()
        self.started = True
        return self.tables.logits_BNV[self.sentence_N, self.node_N].clone()

    def reorder(self, rows_N: Tensor) -> None:
        self.sentence_N, self.node_N = self.sentence_N[rows_N], self.node_N[rows_N]
        width = len(rows_N) // len(self.sentences_B)
        assert torch.equal(self.sentence_N, self.sentences_B.repeat_interleave(width))

    def keep_sentences(self, sentences: Tensor, rows: Tensor) -> None:
        self.sentences_B = self.sentences_B[sentences]
        if len(sentences):
            self.reorder(rows)


class ForgetfulState(TableState):
    """Continues every row from the first of its sentence."""

    def reorder(self, rows_N: Tensor) -> None:
        width = int((self.sentence_N == self.sentence_N[0]).sum())
        super().reorder(rows_N - rows_N % width)


def run(
    tables: Tables, how: Search = beam_search, state_class: type[TableState] = TableState, **options: object
) -> list[list[Hypothesis]]:
    state = state_class(tables)
    return how(state.step, state, tables.max_lengths, replace(tables.options, **options))


def random_tables(rng: np.random.Generator, alpha: float) -> Tables:
    """Up to three sentences over up to five tokens, with limits of up to five tokens."""
    vocab, batch = int(rng.integers(3, 6)), int(rng.integers(1, 4))
    max_lengths = torch.from_numpy(rng.integers(1, 6, batch))
    depth = int(max_lengths.max())
    nodes = sum(vocab**level for level in range(depth))
    options = SearchOptions(
        bos=BOS,
        eos=EOS,
        banned=((), (BOS,))[rng.integers(2)],
        beam_size=vocab**depth,
        length_penalty=alpha,
        min_length=int(rng.integers(0, 3)),
    )
    return Tables(torch.from_numpy(rng.normal(size=(batch, nodes, vocab)) * 1.5), max_lengths, options)


def enumerate_all(tables: Tables, sentence: int) -> list[Hypothesis]:
    """Every sentence that the options allow, best first, by recursion over log-probabilities written out."""
    options, longest = tables.options, int(tables.max_lengths[sentence])
    log_probs = tables.logits_BNV[sentence].log_softmax(-1).tolist()
    found = []

    def extend(ids: tuple[int, ...], node: int, log_prob: float) -> None:
        length = len(ids) + 1
        for token, token_log_prob in enumerate(log_probs[node]):
            total = log_prob + token_log_prob
            if token == EOS:
                if length > options.min_length or length == longest:
                    found.append(Hypothesis(total / ((5 + length) / 6) ** options.length_penalty, total, ids))
            elif token not in options.banned and length < longest:
                extend((*ids, token), tables.child(node, token), total)

    extend((), 0, 0.0)
    return sorted(found, reverse=True)


def is_same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> bool:
    """Equal ids, and scores within 1e-10."""
    return [h.ids for h in ours] == [h.ids for h in theirs] and all(
        abs(a.score - b.score) <= 1e-10 and abs(a.log_prob - b.log_prob) <= 1e-10
        for a, b in zip(ours, theirs, strict=True)
    )


def equal_to_enumeration(cases: int, seed: int, alphas: list[float], state_class: type[TableState] = TableState) -> int:
    """Tables whose three best hypotheses under a beam wide enough for everything are those of the enumeration."""
    rng, equal = np.random.default_rng(seed), 0
    for case in range(cases):
        tables = random_tables(rng, alphas[case % len(alphas)])
        found = run(tables, state_class=state_class, n_best=3)
        equal += all(is_same(best, enumerate_all(tables, b)[:3]) for b, best in enumerate(found))
    return equal


@pytest.mark.parametrize("alphas", [[0.0], [0.6, 1.0, 2.0]], ids=["plain", "gnmt"])
def test_a_wide_beam_finds_the_best_of_all(alphas: list[float], figure: Figure) -> None:
    equal = equal_to_enumeration(500, 1, alphas)
    figure(f"beam_equals_enumeration_alpha_{max(alphas):g}", f"{equal} of 500 tables", "500 of 500", equal == 500)


def test_the_enumeration_sees_a_search_that_forgets_to_reorder(figure: Figure) -> None:
    equal = equal_to_enumeration(50, 2, [0.6], ForgetfulState)
    figure("beam_control_forgets_reorder", f"{equal} of 50 equal", "<= 40", equal <= 40)


@pytest.mark.parametrize(
    ("broken", "replacement"),
    [
        ("length_penalty", lambda length, alpha: length_penalty(length, -alpha)),
        ("_is_done", lambda finished, best, *_: bool(finished) or best == -math.inf),
    ],
)
def test_the_enumeration_sees_a_broken(
    broken: str, replacement: Callable[..., object], figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, broken, replacement)
    equal = equal_to_enumeration(50, 2, [1.0])
    figure(f"beam_control_broken{'_' * (broken[0] != '_')}{broken}", f"{equal} of 50 equal", "<= 40", equal <= 40)


def test_narrow_beams_never_score_higher_and_are_sorted_and_distinct(figure: Figure) -> None:
    rng, higher, disordered, worse = np.random.default_rng(3), 0, 0, 0
    for _ in range(200):
        tables = random_tables(rng, float(rng.choice([0.0, 0.6, 1.0, 2.0])))
        for beam in (1, 2, 3, 5):
            for sentence, found in enumerate(run(tables, beam_size=beam, n_best=beam)):
                everything = enumerate_all(tables, sentence)
                higher += found[0].score > everything[0].score + 1e-10
                worse += found[0].ids != everything[0].ids
                scores = {hypothesis.ids: hypothesis.score for hypothesis in everything}
                assert all(abs(hypothesis.score - scores[hypothesis.ids]) <= 1e-10 for hypothesis in found)
                disordered += found != sorted(found, reverse=True) or len({h.ids for h in found}) < len(found)
    assert worse  # else the beams were not narrow
    figure(
        "narrow_beams",
        f"{higher} above the best of all, {disordered} unsorted or repeated",
        "0, 0",
        not higher + disordered,
    )


def equal_to_greedy(cases: int) -> int:
    rng, equal = np.random.default_rng(4), 0
    for _ in range(cases):
        tables = random_tables(rng, 0.6)
        beam, greedy = run(tables, beam_size=1), run(tables, greedy_search)
        equal += all(map(is_same, beam, greedy))
    return equal


def test_a_beam_of_one_is_greedy(figure: Figure) -> None:
    equal = equal_to_greedy(500)
    figure("beam_1_equals_greedy", f"{equal} of 500 tables", "500 of 500", equal == 500)


def test_the_greedy_comparison_sees_ends_taken_from_below_the_beam(
    figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = search._collect_finished

    def broken(*args: object) -> None:
        *rest, options = args
        collect(*rest, replace(options, beam_size=2 * options.beam_size))

    monkeypatch.setattr(search, "_collect_finished", broken)
    equal = equal_to_greedy(50)
    figure("beam_1_control_ends_below_the_beam", f"{equal} of 50 equal", "<= 40", equal <= 40)


@dataclass
class TransformerBatch:
    """A random model in float64 and padded source sentences."""

    model: Transformer
    src: Tensor
    keep: Tensor
    max_lengths: Tensor
    options: SearchOptions

    @classmethod
    def random(cls, rng: np.random.Generator) -> "TransformerBatch":
        torch.manual_seed(int(rng.integers(2**31)))
        config = ModelConfig(
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=16,
            num_heads=2,
            d_ff=24,
            norm=str(rng.choice(["pre", "post"])),
        )
        model = Transformer(config, 12, 12).double().eval()
        batch = int(rng.integers(2, 5))
        lengths = torch.from_numpy(rng.integers(1, 8, batch))
        src = torch.from_numpy(rng.integers(2, 12, (batch, int(lengths.max()))))
        keep = torch.arange(src.shape[1]) < lengths[:, None]
        beam, alpha = int(rng.integers(1, 5)), float(rng.choice([0.0, 0.6, 1.5]))
        options = SearchOptions(BOS, EOS, banned=(BOS,), beam_size=beam, length_penalty=alpha, n_best=beam)
        return cls(model, src, keep, torch.from_numpy(rng.integers(2, 9, batch)), options)

    @torch.no_grad()
    def search(self, rows: slice = slice(None), masked: bool = True) -> list[list[Hypothesis]]:
        """Search some sentences, with no more padding than they need if masked."""
        keep = self.keep[rows]
        longest = int(keep.sum(1).max())
        state = self.model.prefill(self.src[rows, :longest], keep[:, :longest] if masked else None)
        how = beam_search if self.options.beam_size > 1 else greedy_search
        return how(lambda tokens: self.model.decode_step(tokens, state), state, self.max_lengths[rows], self.options)

    @torch.no_grad()
    def forced(self, sentence: int, ids: tuple[int, ...]) -> float:
        """The log-probability of ids and EOS, by the full decoder."""
        src = self.src[sentence : sentence + 1, : int(self.keep[sentence].sum())]
        log_probs = self.model(src, torch.tensor([[BOS, *ids]]))[0].log_softmax(-1)
        return float(log_probs[torch.arange(len(ids) + 1), [*ids, EOS]].sum())


def equal_alone_and_together(batches: int, masked: bool = True) -> int:
    rng, equal = np.random.default_rng(5), 0
    for _ in range(batches):
        batch = TransformerBatch.random(rng)
        alone = [batch.search(slice(row, row + 1))[0] for row in range(len(batch.src))]
        equal += all(map(is_same, batch.search(masked=masked), alone))
    return equal


def test_company_changes_no_translation(figure: Figure) -> None:
    equal = equal_alone_and_together(200)
    figure("search_alone_equals_batch", f"{equal} of 200 batches", "200 of 200, fp64 scores <= 1e-10", equal == 200)


def test_the_company_check_sees_attention_to_padding(figure: Figure) -> None:
    equal = equal_alone_and_together(20, masked=False)
    figure("search_alone_control_no_mask", f"{equal} of 20 equal", "<= 5", equal <= 5)


def forced_score_difference(batches: int) -> tuple[float, int]:
    """The largest difference from teacher forcing, over how many hypotheses."""
    rng, worst, count = np.random.default_rng(6), 0.0, 0
    for _ in range(batches):
        batch = TransformerBatch.random(rng)
        for sentence, hypotheses in enumerate(batch.search()):
            for hypothesis in hypotheses:
                forced = batch.forced(sentence, hypothesis.ids)
                score = forced / ((5 + len(hypothesis.ids) + 1) / 6) ** batch.options.length_penalty
                worst = max(worst, abs(hypothesis.log_prob - forced), abs(hypothesis.score - score))
            count += len(hypotheses)
    return worst, count


def test_scores_are_those_of_teacher_forcing(figure: Figure) -> None:
    worst, count = forced_score_difference(120)
    figure(
        "score_equals_teacher_forcing",
        f"{worst:.0e} over {count} hypotheses",
        "fp64 <= 1e-10, >= 500",
        worst <= 1e-10 and count >= 500,
    )


def test_teacher_forcing_sees_a_cache_that_is_not_reordered(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    select = LayerCache.select

    def broken(self: LayerCache, rows: Tensor) -> None:
        if self._buffer is not None and len(rows) != self._buffer.shape[1]:
            select(self, rows)

    monkeypatch.setattr(LayerCache, "select", broken)
    worst, _ = forced_score_difference(20)
    figure("teacher_forcing_control_no_reorder", f"{worst:.2f}", "> 1e-3", worst > 1e-3)


def test_gnmt_length_penalty_by_hand() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert length_penalty(13, 2.0) == 9.0
    assert length_penalty(20, 0.0) == 1.0
    assert length_penalty(19, 0.5) == 2.0
    assert abs(length_penalty(10, 0.6) - 1.7329) < 1e-4


def tables_of(
    everywhere: list[float],
    max_length: int,
    special: dict[tuple[int, ...], list[float]] | None = None,
    **options: object,
) -> Tables:
    """One sentence: the probabilities of BOS, EOS, A and B after every prefix, but for some special ones."""
    logits = torch.tensor(everywhere, dtype=torch.double).log().repeat(1, 4**max_length, 1)
    tables = Tables(logits, torch.tensor([max_length]), SearchOptions(BOS, EOS, **{"length_penalty": 0.0} | options))
    for prefix, row in (special or {}).items():
        node = 0
        for token in prefix:
            node = tables.child(node, token)
        logits[0, node] = torch.tensor(row, dtype=torch.double).log()
    return tables


A, B = 2, 3
EVEN = [0.1, 0.2, 0.4, 0.3]
NEVER_ENDS = [0.1, 1e-30, 0.5, 0.4]
ENDS = [0.01, 0.97, 0.015, 0.005]
GARDEN_PATH = {
    (): [0.01, 0.09, 0.50, 0.40],
    (A,): [0.01, 0.29, 0.36, 0.34],  # A looks best, but nothing good follows
    (B,): [0.01, 0.89, 0.05, 0.05],
}


@pytest.mark.parametrize(
    ("beam", "alpha", "ids", "probability"),
    [
        (1, 0.0, (A, A), 0.50 * 0.36 * 0.97),
        (2, 0.0, (B,), 0.40 * 0.89),
        (4, 0.0, (B,), 0.40 * 0.89),
        (4, 5.0, (A, A), 0.50 * 0.36 * 0.97),  # log 0.175 / (8/6)**5 = -0.41; for B log 0.356 / (7/6)**5 = -0.48
    ],
)
def test_garden_path_by_hand(beam: int, alpha: float, ids: tuple[int, ...], probability: float) -> None:
    [[best]] = run(tables_of(ENDS, 4, GARDEN_PATH, beam_size=beam, length_penalty=alpha))
    assert best.ids == ids
    assert best.log_prob == pytest.approx(math.log(probability), abs=1e-12)
    assert best.score == pytest.approx(math.log(probability) / ((6 + len(ids)) / 6) ** alpha, abs=1e-12)


NO_BOS = {"banned": (BOS,)}
EDGE_CASES: dict[str, tuple[Tables, list[tuple[int, ...]]]] = {
    "beam > vocabulary": (
        tables_of(EVEN, 2, beam_size=10, n_best=10, min_length=0, **NO_BOS),
        [(), (A,), (B,)],  # 0.2; 0.4 * 0.2; 0.3 * 0.2
    ),
    "fewer sentences than asked": (tables_of(EVEN, 2, beam_size=9, n_best=9, **NO_BOS), [(A,), (B,)]),
    "n_best = beam": (
        tables_of(NEVER_ENDS, 3, {(B,): [0.1, 1e-30, 0.6, 0.3]}, beam_size=4, n_best=4, **NO_BOS),
        [(A, A), (B, A), (A, B), (B, B)],  # 0.25, 0.24, 0.2, 0.12
    ),
    "max_length 1": (tables_of(EVEN, 1, **NO_BOS), [()]),
    "max_length 1 < min_length": (tables_of(EVEN, 1, min_length=5, **NO_BOS), [()]),
    "max_length = min_length": (tables_of(ENDS, 3, min_length=3, **NO_BOS), [(A, A)]),
    "min_length 3, EOS wanted": (tables_of(ENDS, 6, min_length=3, **NO_BOS), [(A, A, A)]),
    "min_length 1, EOS first": (tables_of(ENDS, 5, **NO_BOS), [(A,)]),
    "min_length 0, EOS first": (tables_of(ENDS, 5, min_length=0, **NO_BOS), [()]),
    "EOS never wanted": (tables_of(NEVER_ENDS, 4, **NO_BOS), [(A, A, A)]),
    "all but one token banned": (tables_of(ENDS, 3, banned=(BOS, A)), [(B,)]),
    "BOS comes if not banned": (tables_of(ENDS, 3, {(): [0.7, 0.1, 0.1, 0.1]}), [(BOS,)]),
}


def test_edge_cases(figure: Figure) -> None:
    wrong = []
    for name, (tables, expected) in EDGE_CASES.items():
        beam = [hypothesis.ids for hypothesis in run(tables)[0]]
        greedy = [hypothesis.ids for hypothesis in run(tables, greedy_search)[0]]
        if beam != expected:
            wrong.append(f"{name}: {beam}")
        if tables.options.n_best == 1 and greedy != expected:
            wrong.append(f"{name}, greedy: {greedy}")
    figure("search_edge_cases", f"{len(EDGE_CASES)} cases, wrong: {wrong or 'none'}", "12, none", not wrong)


@pytest.mark.parametrize("how", [greedy_search, beam_search])
def test_an_empty_batch_is_no_batch(how: Search) -> None:
    tables = Tables(torch.zeros(0, 1, 4), torch.zeros(0, dtype=torch.long), SearchOptions(BOS, EOS))
    assert run(tables, how) == []


@pytest.mark.parametrize("how", [greedy_search, beam_search])
def test_banned_tokens_never_come(how: Search, figure: Figure) -> None:
    rng, freely, banned = np.random.default_rng(7), 0, 0
    for _ in range(100):
        tables = random_tables(rng, 0.6)
        freely += any(2 in best.ids for [best] in run(tables, how, banned=(), beam_size=3))
        banned += any(2 in best.ids for [best] in run(tables, how, banned=(2,), beam_size=3))
    figure(
        f"{how.__name__}_banned_tokens",
        f"{banned} of 100 tables, {freely} when allowed",
        "0, >= 30",
        not banned and freely >= 30,
    )


@pytest.mark.parametrize("how", [greedy_search, beam_search])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_normalised_in_float32(how: Search, dtype: torch.dtype) -> None:
    tables = random_tables(np.random.default_rng(8), 0.6)
    tables.logits_BNV = tables.logits_BNV.to(dtype)
    exact = replace(tables, logits_BNV=tables.logits_BNV.double())
    for [ours], [theirs] in zip(run(tables, how), run(exact, how), strict=True):
        assert ours.ids == theirs.ids
        assert abs(ours.log_prob - theirs.log_prob) < 1e-5


@pytest.mark.timeout(20)
@pytest.mark.parametrize("how", [greedy_search, beam_search])
@pytest.mark.parametrize("row", [[math.nan] * 4, [math.inf] * 4, [0.0, -math.inf, 0.0, 0.0]])
def test_a_broken_sentence_ends_too_and_spoils_no_other(how: Search, row: list[float]) -> None:
    alone = tables_of(EVEN, 4, **NO_BOS)
    broken = torch.tensor(row, dtype=torch.double).expand_as(alone.logits_BNV)
    both = replace(alone, logits_BNV=torch.cat([alone.logits_BNV, broken]), max_lengths=alone.max_lengths.repeat(2))
    assert run(both, how)[0] == run(alone, how)[0]
