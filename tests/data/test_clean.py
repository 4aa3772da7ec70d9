"""The rules that drop pairs, each with its count, and a sample that is fair."""

import tracemalloc
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.clean import Reservoir, first_of_equals, length_rules, scan

PAIRS = [("a", "b"), ("", "b"), ("a", ""), ("a", "b"), ("a", "c"), ("", ""), ("", "b"), ("a", "b"), ("b", "a")]


def batched(pairs: list[tuple[str, str]], size: int) -> list[tuple[list[str], list[str]]]:
    parts = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    return [([s for s, _ in part], [t for _, t in part]) for part in parts]


def test_counts_by_rule_and_the_first_is_kept() -> None:
    result = scan(batched(PAIRS, 3), remove_duplicates=True, sample_lines=100, seed=1)
    assert result.keep.tolist() == [True, False, False, False, True, False, False, False, True]
    assert result.dropped == {"empty": 4, "duplicate": 2}
    assert result.keep.sum() + result.dropped.total() == len(PAIRS)


def test_duplicates_may_stay() -> None:
    result = scan(batched(PAIRS, 3), remove_duplicates=False, sample_lines=100, seed=1)
    assert result.keep.tolist() == [bool(src and tgt) for src, tgt in PAIRS]
    assert result.dropped["duplicate"] == 0


def test_sides_are_not_confused() -> None:
    """A pair and its mirror, and a text that moves from one side to the other, are different pairs."""
    pairs = [("a b", "c"), ("a", "b c"), ("c", "a b")]
    assert scan(batched(pairs, 2), remove_duplicates=True, sample_lines=9, seed=1).keep.all()


def test_nothing_at_all() -> None:
    result = scan([], remove_duplicates=True, sample_lines=100, seed=1)
    assert len(result.keep) == 0 and result.dropped.total() == 0
    assert result.src_sample == result.tgt_sample == []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from(["", "x", "y"]))), st.integers(1, 5))
def test_scan_equals_the_plain_rule(pairs: list[tuple[str, str]], size: int) -> None:
    result = scan(batched(pairs, size), remove_duplicates=True, sample_lines=10_000, seed=1)
    keep = [bool(s and t) and pairs.index((s, t)) == i for i, (s, t) in enumerate(pairs)]
    assert result.keep.tolist() == keep
    assert result.dropped["empty"] == sum(not (s and t) for s, t in pairs)
    assert result.dropped.total() == len(pairs) - sum(keep)
    assert list(zip(result.src_sample, result.tgt_sample, strict=True)) == [pair for pair in pairs if all(pair)]


def test_equal_hashes_are_found_in_parts() -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, size=500, dtype=np.uint64)
    hashes = np.random.default_rng(2).choice(hashes, size=3000)
    first = np.zeros(3000, dtype=bool)
    first[np.unique(hashes, return_index=True)[1]] = True
    assert 300 < first.sum() <= 500
    assert np.array_equal(first_of_equals(hashes), first)


def test_no_sample_is_taken_where_none_is_wanted() -> None:
    result = scan(batched(PAIRS, 3), remove_duplicates=True, sample_lines=0, seed=1)
    assert result.src_sample == result.tgt_sample == []
    assert result.keep.sum() == 3


def test_scanning_takes_few_bytes_a_pair(figure: Callable[..., None]) -> None:
    """Of these 8 are the hashes, 1 is left; finding what is repeated all at once would take 40."""
    pairs, chunk = 150_000, 1000
    chunks = (([f"{i} {j}" for j in range(chunk)], ["x"] * chunk) for i in range(pairs // chunk))
    tracemalloc.start()
    try:
        result = scan(chunks, remove_duplicates=True, sample_lines=0, seed=1)
        held, peak = (size / pairs for size in tracemalloc.get_traced_memory())
        tracemalloc.reset_peak()
        np.unique(np.arange(pairs, dtype=np.uint64)[::-1], return_index=True)  # the control
        at_once = tracemalloc.get_traced_memory()[1] / pairs
    finally:
        tracemalloc.stop()
    assert result.keep.sum() == pairs and at_once > 25
    figure("scan_bytes_a_pair", f"{peak:.1f} at most, {held:.1f} held", "<= 20; <= 2", peak <= 20 and held <= 2)


def test_content_hash_knows_order_and_content_but_not_chunks() -> None:
    def content(pairs: list[tuple[str, str]], size: int = 3) -> str:
        return scan(batched(pairs, size), remove_duplicates=True, sample_lines=5, seed=1).content_hash

    assert content(PAIRS, 1) == content(PAIRS, 4)
    others = [PAIRS[::-1], PAIRS[:-1], [*PAIRS[:-1], ("b", "A")], [(t, s) for s, t in PAIRS], []]
    assert len({content(pairs) for pairs in [PAIRS, *others]}) == 6


def test_sample_is_of_the_size_asked_pairs_stay_together() -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(1000)]
    first, second, other = (
        scan(batched(pairs, size), remove_duplicates=True, sample_lines=100, seed=seed)
        for size, seed in ((10, 1), (37, 1), (10, 2))
    )
    assert len(first.src_sample) == len(first.tgt_sample) == 50  # 100 lines, both sides together
    assert [src[1:] for src in first.src_sample] == [tgt[1:] for tgt in first.tgt_sample]
    assert first.src_sample == second.src_sample != other.src_sample


def test_reservoir_is_uniform() -> None:
    """2,000 samples of 5 of 20: each item is expected 500 times, and chi-square stays below its 0.1 % point."""
    counts: Counter[int] = Counter()
    for seed in range(2000):
        sample = Reservoir[int](5, seed)
        for item in range(20):
            sample.offer(item)
        assert len(set(sample.items)) == 5
        counts.update(sample.items)
    chi_square = sum((counts[item] - 500) ** 2 / 500 for item in range(20))
    assert chi_square < 43.8  # 19 degrees of freedom


def test_reservoir_keeps_all_of_a_short_stream() -> None:
    sample = Reservoir[str](5, 1)
    for item in "abc":
        sample.offer(item)
    assert sample.items == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("src", "tgt", "rule"),
    [
        (5, 5, None),
        (10, 10, None),
        (11, 10, "too long"),
        (10, 11, "too long"),
        (1, 7, None),
        (1, 8, "length ratio"),
        (8, 1, "length ratio"),
        (2, 10, None),
        (1, 11, "too long"),
    ],
)
def test_length_rule(src: int, tgt: int, rule: str | None) -> None:
    """At most 10 pieces; the longer side at most 3 times the shorter and 4."""
    broken = length_rules(np.array([5, src]), np.array([5, tgt]), max_length=10, max_ratio=3.0)
    assert [name for name, pairs in broken.items() if pairs[1]] == ([rule] if rule else [])
    assert not any(pairs[0] for pairs in broken.values())


def test_keep_is_writable_and_bool() -> None:
    result = scan(batched(PAIRS, 3), remove_duplicates=True, sample_lines=5, seed=1)
    assert result.keep.dtype == np.bool_
    result.keep[0] = False


def test_a_sample_can_be_taken_of_kept_pairs_alone() -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(100)]
    found = scan(batched(pairs, 7), remove_duplicates=True, sample_lines=0, seed=1)
    keep = np.arange(100) % 10 == 3  # what filters left
    found.sample(batched(pairs, 11), keep, 12, seed=1)
    assert len(found.src_sample) == 6 and found.offered == 10
    assert {line[-1] for line in found.src_sample + found.tgt_sample} == {"3"}
