"""Sampling, forced paths, several models together, and the coverage penalty."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.bundle import Bundle
from nmt.decoding.options import Limits, SearchOptions
from nmt.decoding.paths import Sampling, greedy_search, sample
from nmt.decoding.rows import ModelRows
from nmt.decoding.search import Hypothesis, beam_search
from nmt.decoding.translator import Translator
from nmt.model.inference import int8_works, prepare
from oracle import BOS, EOS, ModelBatch, TableRows, Tables, is_same, random_tables, run
from tiny import one_thread, random_bundle, sentences

Figure = Callable[..., None]
DRAWS = 20_000


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def sampled(tables: Tables, seed: int = 0, **sampling: float) -> list[list[Hypothesis]]:
    seeds = tuple(range(seed, seed + len(tables.limits)))
    return sample(TableRows(tables), tables.limits, tables.options, Sampling(**sampling, seeds=seeds))


@pytest.mark.parametrize("sampling", [{"temperature": 1e-6}, {"top_k": 1}, {"top_p": 1e-9}])
def test_where_nothing_is_left_to_chance_it_is_greedy(sampling: dict[str, float], figure: Figure) -> None:
    rng, equal, control = np.random.default_rng(1), 0, 0
    for case in range(200):
        tables = random_tables(rng, 0.6, rules=case % 2 == 1)
        greedy = run(tables, greedy_search)
        possible = [b for b, [best] in enumerate(greedy) if best.score > -math.inf]
        drawn, freely = sampled(tables, **sampling), sampled(tables)
        equal += all(is_same(drawn[b], greedy[b]) for b in possible)
        control += all(is_same(freely[b], greedy[b]) for b in possible)
    [(name, value)] = sampling.items()
    shown = f"{equal} of 200 tables; {control} at temperature 1"
    figure(f"sampling_{name}_{value:g}_is_greedy", shown, "200, <= 150", equal == 200 and control <= 150)


LOGITS = [-9.0, -9.0, 0.3, 1.2, -0.4, 0.9, -1.5]


def frequencies(**sampling: float) -> Tensor:
    """Of the first token over DRAWS paths, BOS and EOS being impossible."""
    limits = Limits.of([2], [2])
    nodes = 1 + len(LOGITS)
    tables = Tables(torch.tensor(LOGITS).double().expand(1, nodes, -1), limits, SearchOptions(BOS, EOS, (BOS,)))
    tables.options = replace(tables.options, n_best=DRAWS)
    tokens = [hypothesis.ids[0] for hypothesis in sampled(tables, seed=5, **sampling)[0]]
    return torch.bincount(torch.tensor(tokens), minlength=len(LOGITS)) / DRAWS


def chi_square(observed: Tensor, expected: Tensor) -> float:
    there = expected > 0
    return float(DRAWS * ((observed - expected)[there] ** 2 / expected[there]).sum())


def by_hand(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """The distribution that is drawn from, written out."""
    weights = {token: math.exp(LOGITS[token] / temperature) for token in range(2, len(LOGITS))}
    ranked = sorted(weights, key=weights.__getitem__, reverse=True)[: top_k or None]
    kept, mass, total = [], 0.0, sum(weights[token] for token in ranked)
    for token in ranked:
        if mass < top_p * total:
            kept.append(token)
        mass += weights[token]
    total = sum(weights[token] for token in kept)
    return torch.tensor([weights[token] / total if token in kept else 0.0 for token in range(len(LOGITS))])


def test_what_is_drawn_is_distributed_as_asked(figure: Figure) -> None:
    settings: tuple[dict[str, float], ...] = (
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"top_p": 0.71, "temperature": 2.0},
        {"top_k": 4, "top_p": 0.6, "temperature": 1.5},
    )
    worst, outside = 0.0, 0.0
    for sampling in settings:
        observed, expected = frequencies(**sampling), by_hand(**sampling)
        worst = max(worst, chi_square(observed, expected))
        outside += float(observed[expected == 0].sum())
        assert torch.equal(observed > 0, expected > 0), sampling  # exactly the nucleus
    figure(
        "sampling_chi_square",
        f"{worst:.1f} over {len(settings)} settings of {DRAWS} draws, {outside:g} outside",
        "<= 18.5 (4 degrees of freedom, p = 0.001), 0",
        worst <= 18.5 and outside == 0,
    )


def test_the_chi_square_sees_another_temperature(figure: Figure) -> None:
    value = chi_square(frequencies(temperature=1.1), by_hand())
    figure("sampling_chi_square_control", f"{value:.0f} at temperature 1.1", "> 18.5", value > 18.5)


def test_a_path_is_drawn_alike_whatever_is_around_it(figure: Figure) -> None:
    """Alone, in any batch and order, and when more paths are drawn."""
    bundle, lines = random_bundle(), sentences(30)[0]

    def drawn(texts: list[str], **decoding: object) -> list[list[tuple[int, ...]]]:
        translator = Translator(bundle, decoding={"sample": True, **decoding}, batch_rows=32)
        return [[h.ids for h in found.hypotheses] for found in translator.translations(texts)]

    together = drawn(lines)
    alone = [drawn([line])[0] for line in lines]
    backwards = drawn(lines[::-1])[::-1]
    more = drawn(lines, n_best=4)
    other = drawn(lines, seed=2)
    differing = sum(
        not (one == two == three and one[0] in four)
        for one, two, three, four in zip(together, alone, backwards, more, strict=True)
    )
    changed = sum(one != two for one, two in zip(together, other, strict=True))
    several = sum(len(set(paths)) > 1 for paths in more)
    assert all(len(paths) == 4 for paths in more)
    figure(
        "sampling_company_changes",
        f"{differing} of 30 lines; {changed} by another seed; {several} with several paths",
        "0; >= 25; >= 25",
        differing == 0 and min(changed, several) >= 25,
    )


def test_a_model_with_itself_is_the_model(figure: Figure) -> None:
    rng, equal = np.random.default_rng(3), 0
    for _ in range(30):
        batch = ModelBatch.random(rng)
        width = batch.options.beam_size
        rows = ModelRows([batch.model] * 2, batch.src, batch.lengths, width)
        how = beam_search if width > 1 else greedy_search
        equal += all(map(is_same, how(rows, batch.limits, batch.options), batch.search()))
    figure("ensemble_of_one_model", f"{equal} of 30 batches, fp64 scores <= 1e-10", "30 of 30", equal == 30)


def test_two_models_give_the_mean_of_their_probabilities(figure: Figure) -> None:
    rng, worst, single, count = np.random.default_rng(4), 0.0, math.inf, 0
    for _ in range(20):
        one, two = ModelBatch.random(rng), ModelBatch.random(rng)
        rows = ModelRows([one.model, two.model], one.src, one.lengths, one.options.beam_size)
        for b, hypotheses in enumerate(beam_search(rows, one.limits, one.options)):
            for best in hypotheses:
                each = torch.stack([replace(one, model=x.model).forced_steps(b, best.ids) for x in (one, two)])
                worst = max(worst, abs(float(each.exp().mean(0).log().sum()) - best.log_prob))
                single = min(single, abs(float(each[0].sum()) - best.log_prob))
                count += 1
    figure(
        "ensemble_of_two_models",
        f"{worst:.0e} from the mean over {count} hypotheses, {single:.0e} from the first model",
        "fp64 <= 1e-10, > 1e-6",
        worst <= 1e-10 and single > 1e-6,
    )


class LookingRows(TableRows):
    """Looks at both words first, then after A at the first one, after B at the second."""

    def step(self, tokens_BW: Tensor) -> Tensor:
        self.looked_BWS = torch.tensor([[0.5, 0.5], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()[tokens_BW]
        return super().step(tokens_BW)

    def attention(self) -> Tensor:
        return self.looked_BWS


@pytest.mark.parametrize(
    ("beta", "ids", "score"),
    [
        (0.0, (2,), math.log(0.4 * 0.2)),
        (1.0, (2,), math.log(0.4 * 0.2) + math.log(0.5)),  # looked 1.5 and 0.5: 0.04; A B is worth 0.4 * 0.4 * 0.2
        (2.0, (2, 3), math.log(0.4 * 0.4 * 0.2)),  # looked 1.5 and 1.5: nothing to lose; A 0.02
    ],
)
def test_coverage_penalty_by_hand(beta: float, ids: tuple[int, ...], score: float) -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.4, 0.3]).double().repeat(1, 21, 1)
    probabilities[0, 3] = torch.tensor([0.05, 0.2, 0.35, 0.4])  # after A
    options = SearchOptions(BOS, EOS, (BOS,), beam_size=20, length_penalty=0.0, coverage_penalty=beta)
    tables = Tables(probabilities.log(), Limits.of([2], [3]), options)
    [[best]] = run(tables, rows_class=LookingRows)
    assert best.ids == ids
    assert best.score == pytest.approx(score, abs=1e-7)


def forced_differs(bundle: Bundle, **decoding: object) -> tuple[float, int, int]:
    """How far forced hypotheses are from the scores of their search at most; how many are others; of how many."""
    translator = Translator(bundle, decoding={"beam_size": 4, "n_best": 4, **decoding})
    src_ids = bundle.tokenizer.encode_src(sentences(40)[0])
    worst, others, count = 0.0, 0, 0
    found = translator.search(src_ids)
    for rank in range(4):
        ranked = [hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in found]
        for ours, [forced] in zip(ranked, translator.force(src_ids, [h.ids for h in ranked]), strict=True):
            assert forced.ids == ours.ids
            worst = max(worst, abs(forced.score - ours.score), abs(forced.log_prob - ours.log_prob))
            others += (forced.score, forced.log_prob) != (ours.score, ours.log_prob)
            count += 1
    return worst, others, count


def test_a_forced_path_has_the_score_of_the_search(figure: Figure) -> None:
    for dtype, most in ((torch.double, 1e-10), (torch.float, 1e-5)):
        bundle = random_bundle()
        bundle.model.to(dtype)
        worst, _, count = forced_differs(bundle)
        name = str(dtype).removeprefix("torch.")
        figure(f"forced_score_{name}", f"{worst:.0e} over {count} hypotheses", f"<= {most:g}", worst <= most)


@pytest.mark.skipif(not int8_works(), reason="no int8 kernel here")
def test_a_forced_path_has_the_score_of_the_search_in_int8(figure: Figure) -> None:
    bundle = random_bundle()
    prepare(bundle.model, "int8")
    _, others, count = forced_differs(bundle, beam_size=1, n_best=1)
    figure("forced_score_int8_greedy", f"{others} of {count} differ by a bit", "0", others == 0)
    worst, others, count = forced_differs(bundle)
    # Attention sums what a beam cached in another order than a single path: one float32 rounding may move a byte.
    figure("forced_score_int8_beam", f"{worst:.0e}, {others} of {count} differ", "<= 2e-2", worst <= 2e-2)
