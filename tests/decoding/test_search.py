"""Beam and greedy search against enumeration, hand-computed tables, each other and teacher forcing."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oracle
from nmt.decoding import search
from nmt.decoding.options import Limits, SearchOptions
from nmt.decoding.paths import greedy_search
from nmt.decoding.search import Hypothesis, beam_search, length_penalty
from nmt.decoding.translator import Translator
from nmt.model import kv_cache
from nmt.model.inference import Precision, prepare
from nmt.model.kv_cache import LayerCache
from oracle import (
    BOS,
    EOS,
    ForgetfulRows,
    Search,
    TableRows,
    Tables,
    drop_causal_mask,
    enumerate_all,
    equal_alone_and_together,
    equal_to_enumeration,
    forced_score_difference,
    is_same,
    random_tables,
    run,
)
from tiny import one_thread, random_bundle, sentences

Figure = Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.mark.parametrize("alphas", [[0.0], [0.6, 1.0, 2.0]], ids=["plain", "gnmt"])
def test_a_wide_beam_finds_the_best_of_all(alphas: list[float], figure: Figure) -> None:
    equal = equal_to_enumeration(500, 1, alphas)
    figure(f"beam_equals_enumeration_alpha_{max(alphas):g}", f"{equal} of 500 tables", "500 of 500", equal == 500)


def test_the_rules_are_those_of_the_enumeration(figure: Figure) -> None:
    """Forced prefixes, lengths of each sentence, repetition, both length penalties."""
    equal = equal_to_enumeration(1000, 11, [0.0, 0.6, 1.0, 2.0, 0.3], kinds=("gnmt", "power"), rules=True)
    figure("beam_equals_enumeration_all_rules", f"{equal} of 1000 tables", "1000 of 1000", equal == 1000)


@pytest.mark.parametrize("rule", ["prefix", "minimum", "no_repeat_ngram", "repetition_penalty", "power"])
def test_the_enumeration_sees_a_lost(rule: str, figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tables: Tables, **options: object) -> list[list[Hypothesis]]:
        limits = tables.limits
        if rule == "prefix":
            limits = replace(limits, prefix_BP=limits.prefix_BP[:, :0])
        elif rule == "minimum":
            limits = replace(limits, min_B=limits.min_B * 0)
        elif rule == "power":
            options["length_penalty_type"] = "gnmt"
        else:
            options[rule] = {"no_repeat_ngram": 0, "repetition_penalty": 1.0}[rule]
        return beam_search(TableRows(tables), limits, replace(tables.options, **options))

    monkeypatch.setattr(oracle, "run", lambda tables, rows_class, **options: broken(tables, **options))
    equal = equal_to_enumeration(60, 12, [1.0], kinds=("power",), rules=True)
    figure(f"beam_control_lost_{rule}", f"{equal} of 60 equal", "<= 52", equal <= 52)


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


def equal_to_greedy(cases: int, rules: bool = False) -> int:
    rng, equal = np.random.default_rng(4), 0
    for _ in range(cases):
        tables = random_tables(rng, 0.6, rules=rules)
        beam, greedy = run(tables, beam_size=1), run(tables, greedy_search)
        equal += all(a[0].score == b[0].score == -math.inf or is_same(a, b) for a, b in zip(beam, greedy, strict=True))
    return equal


def test_a_beam_of_one_is_greedy(figure: Figure) -> None:
    equal = equal_to_greedy(500)
    figure("beam_1_equals_greedy", f"{equal} of 500 tables", "500 of 500", equal == 500)
    equal = equal_to_greedy(500, rules=True)
    figure("beam_1_equals_greedy_all_rules", f"{equal} of 500 tables", "500 of 500", equal == 500)


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


@pytest.mark.parametrize("batches", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_company_changes_no_translation(batches: int, figure: Figure) -> None:
    equal = equal_alone_and_together(batches)
    asked = f"{batches} of {batches}, fp64 scores <= 1e-10"
    figure(
        "search_alone_equals_batch" + "_1000" * (batches == 1000),
        f"{equal} of {batches} batches",
        asked,
        equal == batches,
    )


def test_the_company_check_sees_attention_to_padding(figure: Figure) -> None:
    equal = equal_alone_and_together(20, masked=False)
    figure("search_alone_control_no_mask", f"{equal} of 20 equal", "<= 5", equal <= 5)


def test_scores_are_those_of_teacher_forcing(figure: Figure) -> None:
    worst, count = forced_score_difference(120)
    figure(
        "score_equals_teacher_forcing",
        f"{worst:.0e} over {count} hypotheses",
        "fp64 <= 1e-10, >= 500",
        worst <= 1e-10 and count >= 500,
    )


def test_teacher_forcing_sees_a_cache_that_is_not_reordered(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle.skip_reorder(monkeypatch)
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
    ("beam", "alpha", "kind", "prefix", "ids", "probability"),
    [
        (1, 0.0, "gnmt", (), (A, A), 0.50 * 0.36 * 0.97),
        (2, 0.0, "gnmt", (), (B,), 0.40 * 0.89),
        (4, 0.0, "gnmt", (), (B,), 0.40 * 0.89),
        (
            4,
            5.0,
            "gnmt",
            (),
            (A, A),
            0.50 * 0.36 * 0.97,
        ),  # log 0.175 / (8/6)**5 = -0.41; for B log 0.356 / (7/6)**5 = -0.48
        (4, 1.0, "power", (), (B,), 0.40 * 0.89),  # -1.03 / 2 = -0.52; for AA -1.75 / 3 = -0.58
        (4, 2.0, "power", (), (A, A), 0.50 * 0.36 * 0.97),  # -1.75 / 9 = -0.19; for B -1.03 / 4 = -0.26
        (1, 0.0, "gnmt", (B,), (B,), 0.40 * 0.89),
        (4, 0.0, "gnmt", (A,), (A, A), 0.50 * 0.36 * 0.97),
    ],
)
def test_garden_path_by_hand(
    beam: int, alpha: float, kind: str, prefix: tuple[int, ...], ids: tuple[int, ...], probability: float
) -> None:
    options = {"beam_size": beam, "length_penalty": alpha, "length_penalty_type": kind}
    [[best]] = run(tables_of(ENDS, 4, GARDEN_PATH, prefix=prefix, **options))
    assert best.ids == ids
    assert best.log_prob == pytest.approx(math.log(probability), abs=1e-12)
    assert sum(best.token_log_probs) == pytest.approx(best.log_prob, abs=1e-12)
    base = (6 + len(ids)) / 6 if kind == "gnmt" else 1 + len(ids)
    assert best.score == pytest.approx(math.log(probability) / base**alpha, abs=1e-12)


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
    "prefix longer than the limit": (tables_of(ENDS, 2, prefix=(A, B, A), **NO_BOS), [(A, B, A)]),
    "prefix as long as the limit": (tables_of(NEVER_ENDS, 3, prefix=(B, B), **NO_BOS), [(B, B)]),
    "prefix of a banned token": (tables_of(ENDS, 4, prefix=(BOS,), **NO_BOS), [(BOS,)]),
    "prefix, then the minimum": (tables_of(ENDS, 6, min_length=4, prefix=(B,), **NO_BOS), [(B, A, A)]),
    "prefix that repeats": (
        tables_of(NEVER_ENDS, 6, prefix=(A, A), no_repeat_ngram=1, beam_size=1, **NO_BOS),
        [(A, A, B)],
    ),
    "no token twice": (tables_of(NEVER_ENDS, 5, no_repeat_ngram=1, beam_size=1, **NO_BOS), [(A, B)]),
    "no pair twice": (tables_of(NEVER_ENDS, 6, no_repeat_ngram=2, beam_size=1, **NO_BOS), [(A, A, B, A)]),
    "repetition penalised": (tables_of(NEVER_ENDS, 4, repetition_penalty=5.0, **NO_BOS), [(A, B, A)]),
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
    figure(
        "search_edge_cases",
        f"{len(EDGE_CASES)} cases, wrong: {wrong or 'none'}",
        "20, none",
        len(EDGE_CASES) == 20 and not wrong,
    )


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


def test_sentences_that_are_done_leave_no_trace() -> None:
    """Sentences that are done stay for a while, then leave: neither shows in what the others become."""
    rng = np.random.default_rng(9)
    for _ in range(20):
        many = random_tables(rng, 0.6)
        places = torch.from_numpy(rng.integers(0, len(many.limits), 30))
        crowd = replace(many, logits_BNV=many.logits_BNV[places], limits=many.limits.select(places))
        alone = [run(many.sentence(place), beam_size=3)[0] for place in range(len(many.limits))]
        assert run(crowd, beam_size=3) == [alone[place] for place in places]


def _forgets_to_reorder(patch: pytest.MonkeyPatch) -> bool:
    oracle.skip_reorder(patch)
    return forced_score_difference(10)[0] > 1e-3


def _attends_to_padding(patch: pytest.MonkeyPatch) -> bool:
    return equal_alone_and_together(20, masked=False) <= 5


def _drops_the_causal_mask(patch: pytest.MonkeyPatch) -> bool:
    drop_causal_mask(patch)
    return forced_score_difference(10)[0] > 1e-3


class BottomlessTables(Tables):
    """Begin again where they end, for a search that does not end where it should."""

    def child(self, node: int, token: int) -> int:
        return super().child(node, token) % self.logits_BNV.shape[1]


class BottomlessRows(TableRows):
    """Prefixes in one."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(BottomlessTables(**vars(tables)))


def _goes_on_after_the_end(patch: pytest.MonkeyPatch) -> bool:
    advance = search._advance
    patch.setattr(search, "_advance", lambda found, beams, options: advance(found, beams, replace(options, eos=-1)))
    return equal_to_enumeration(30, 2, [1.0], BottomlessRows) < 30


def _stops_all_with_the_first(patch: pytest.MonkeyPatch) -> bool:
    start, is_done, over = search._Beams.start, search._is_done, [False]

    def starts(*args: Any) -> Any:
        over[0] = False
        return start(*args)

    def stops(*args: Any) -> bool:
        over[0] = over[0] or is_done(*args)
        return over[0]

    patch.setattr(search._Beams, "start", starts)
    patch.setattr(search, "_is_done", stops)
    return equal_to_enumeration(30, 2, [1.0]) < 30


def _keeps_who_left_in_one_cache(patch: pytest.MonkeyPatch) -> bool:
    def broken(self: LayerCache, sentences: Tensor, moved: Tensor) -> None:
        self._buffer = self._buffer[:, : len(sentences)]

    patch.setattr(LayerCache, "keep_sentences", broken)
    return equal_alone_and_together(20) < 20


def _takes_a_slot_in_use(patch: pytest.MonkeyPatch) -> bool:
    oracle.take_a_slot_in_use(patch)
    return forced_score_difference(10)[0] > 1e-3


def bits_that_company_changes(precision: Precision, fixed_rows: bool) -> int:
    """Lines whose hypotheses are others, or other by a bit, alone and among 30."""
    bundle = random_bundle()
    prepare(bundle.model, precision, fixed_rows)
    translator = Translator(bundle)
    lines = sentences(30)[0]
    together = translator.translations(lines)
    return sum(translator.translations([line])[0] != found for line, found in zip(lines, together, strict=True))


@pytest.mark.parametrize(("precision", "fixed_rows"), [("int8", False), ("fp32", True)])
def test_company_changes_no_bit(
    precision: Precision, fixed_rows: bool, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = bits_that_company_changes(precision, fixed_rows)
    for name in ("_WIDTH_STEP", "_LEAST_WIDTH", "_LEAST_PRODUCTS"):  # as wide as the longest neighbour
        monkeypatch.setattr(kv_cache, name, 1)
    control = bits_that_company_changes(precision, False)
    shown = f"{changed} of 30 lines, to the bit; {control} as wide as the longest neighbour"
    figure(f"company_changes_{precision}", shown, "0; > 0", changed == 0 < control)


def test_seven_faults_of_batching_are_seen(figure: Figure) -> None:
    faults = (
        _forgets_to_reorder,
        _attends_to_padding,
        _drops_the_causal_mask,
        _goes_on_after_the_end,
        _stops_all_with_the_first,
        _keeps_who_left_in_one_cache,
        _takes_a_slot_in_use,
    )
    unseen = []
    for fault in faults:
        with pytest.MonkeyPatch.context() as patch:
            if not fault(patch):
                unseen.append(fault.__name__)
    figure("batching_faults_seen", f"{7 - len(unseen)} of 7 detected {unseen or ''}".strip(), "7 of 7", not unseen)
