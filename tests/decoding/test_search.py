"""Beam and greedy search against enumeration, hand-computed tables, each other and teacher forcing."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.decoding import search
from nmt.decoding.options import Limits, SearchOptions
from nmt.decoding.paths import greedy_search
from nmt.decoding.search import beam_search, length_penalty
from nmt.model.kv_cache import DecoderState
from oracle import (
    BOS,
    EOS,
    ForgetfulRows,
    Search,
    TableRows,
    Tables,
    TransformerBatch,
    enumerate_all,
    is_same,
    random_tables,
    run,
)
from tiny import one_thread

Figure = Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def equal_to_enumeration(cases: int, seed: int, alphas: list[float], rows_class: type[TableRows] = TableRows) -> int:
    """Tables whose three best hypotheses under a beam wide enough for everything are those of the enumeration."""
    rng, equal = np.random.default_rng(seed), 0
    for case in range(cases):
        tables = random_tables(rng, alphas[case % len(alphas)])
        found = run(tables, rows_class=rows_class, n_best=3)
        equal += all(is_same(best, enumerate_all(tables, b)[:3]) for b, best in enumerate(found))
    return equal


@pytest.mark.parametrize("alphas", [[0.0], [0.6, 1.0, 2.0]], ids=["plain", "gnmt"])
def test_a_wide_beam_finds_the_best_of_all(alphas: list[float], figure: Figure) -> None:
    equal = equal_to_enumeration(500, 1, alphas)
    figure(f"beam_equals_enumeration_alpha_{max(alphas):g}", f"{equal} of 500 tables", "500 of 500", equal == 500)


def test_the_enumeration_sees_a_search_that_forgets_to_reorder(figure: Figure) -> None:
    equal = equal_to_enumeration(50, 2, [0.6], ForgetfulRows)
    figure("beam_control_forgets_reorder", f"{equal} of 50 equal", "<= 40", equal <= 40)


@pytest.mark.parametrize(
    ("broken", "replacement"),
    [
        ("length_penalty", lambda length, options: 1 / length_penalty(length, options)),
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
    reorder = DecoderState.reorder

    def broken(self: DecoderState, parents: Tensor) -> None:
        if self.slots_BWT is not None and parents.shape != self.slots_BWT.shape[:2]:
            reorder(self, parents)

    monkeypatch.setattr(DecoderState, "reorder", broken)
    worst, _ = forced_score_difference(20)
    figure("teacher_forcing_control_no_reorder", f"{worst:.2f}", "> 1e-3", worst > 1e-3)


def test_gnmt_length_penalty_by_hand() -> None:
    def penalty(length: int, alpha: float) -> float:
        return length_penalty(length, SearchOptions(BOS, EOS, length_penalty=alpha))

    assert penalty(1, 0.6) == 1.0
    assert penalty(7, 1.0) == 2.0
    assert penalty(13, 2.0) == 9.0
    assert penalty(20, 0.0) == 1.0
    assert penalty(19, 0.5) == 2.0
    assert abs(penalty(10, 0.6) - 1.7329) < 1e-4


def test_power_length_penalty_by_hand() -> None:
    options = SearchOptions(BOS, EOS, length_penalty=0.5, length_penalty_type="power")
    assert [length_penalty(length, options) for length in (1, 4, 9)] == [1.0, 2.0, 3.0]


def tables_of(
    everywhere: list[float],
    max_length: int,
    special: dict[tuple[int, ...], list[float]] | None = None,
    *,
    min_length: int = 2,
    prefix: tuple[int, ...] = (),
    **options: object,
) -> Tables:
    """One sentence: the probabilities of BOS, EOS, A and B after every prefix, but for some special ones.

    Args:
        min_length, max_length: EOS included.
    """
    limits = Limits.of([min_length], [max_length], [prefix])
    logits = torch.tensor(everywhere, dtype=torch.double).log().repeat(1, 4 ** int(limits.max_B), 1)
    tables = Tables(logits, limits, SearchOptions(BOS, EOS, **{"length_penalty": 0.0} | options))
    for before, row in (special or {}).items():
        node = 0
        for token in before:
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
        tables_of(EVEN, 2, beam_size=10, n_best=10, min_length=1, **NO_BOS),
        [(), (A,), (B,)],  # 0.2; 0.4 * 0.2; 0.3 * 0.2
    ),
    "fewer sentences than asked": (tables_of(EVEN, 2, beam_size=9, n_best=9, **NO_BOS), [(A,), (B,)]),
    "n_best = beam": (
        tables_of(NEVER_ENDS, 3, {(B,): [0.1, 1e-30, 0.6, 0.3]}, beam_size=4, n_best=4, **NO_BOS),
        [(A, A), (B, A), (A, B), (B, B)],  # 0.25, 0.24, 0.2, 0.12
    ),
    "max_length 1": (tables_of(EVEN, 1, **NO_BOS), [()]),
    "max_length 1 < min_length": (tables_of(EVEN, 1, min_length=6, **NO_BOS), [()]),
    "max_length = min_length": (tables_of(ENDS, 3, min_length=3, **NO_BOS), [(A, A)]),
    "min_length 3, EOS wanted": (tables_of(ENDS, 6, min_length=4, **NO_BOS), [(A, A, A)]),
    "min_length 1, EOS first": (tables_of(ENDS, 5, **NO_BOS), [(A,)]),
    "min_length 0, EOS first": (tables_of(ENDS, 5, min_length=1, **NO_BOS), [()]),
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
    tables = Tables(torch.zeros(0, 1, 4), Limits.of([], []), SearchOptions(BOS, EOS))
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
    both = replace(
        alone, logits_BNV=torch.cat([alone.logits_BNV, broken]), limits=alone.limits.select(torch.tensor([0, 0]))
    )
    assert run(both, how)[0] == run(alone, how)[0]
