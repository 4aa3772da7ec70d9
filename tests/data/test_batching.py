"""Batches: every pair once an epoch, within the budget, in an order that any position resumes."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nmt.data.batching import (
    Batch,
    BatchPlan,
    BatchStream,
    Position,
    _sorted_by,
    make_batch,
    once_each,
    pad,
    widest_batch,
)
from nmt.data.cache import TokenCache
from nmt.text.tokenizer import SpecialIds

Figure = Callable[..., None]
SPECIAL = SpecialIds(pad=0, unk=1, bos=2, eos=3)


def cache_of(src: list[list[int]], tgt: list[list[int]], dtype: Any = np.uint16) -> TokenCache:
    """A cache that lies in memory."""
    cache = TokenCache.__new__(TokenCache)
    sides = {"src": src, "tgt": tgt}
    counts = {side: np.array([len(ids) for ids in rows], dtype=np.int32) for side, rows in sides.items()}
    cache._tokens = {side: np.array([piece for ids in rows for piece in ids], dtype) for side, rows in sides.items()}
    cache._offsets = {side: np.cumsum([0, *counts[side]]).astype(np.uint64) for side in sides}
    cache.src_lengths, cache.tgt_lengths = counts["src"], counts["tgt"]
    return cache


def random_cache(pairs: int, seed: int, longest: int = 30) -> TokenCache:
    rng = np.random.default_rng(seed)
    src, tgt = (
        [[*rng.integers(4, 100, size=n).tolist(), SPECIAL.eos] for n in rng.integers(0, longest, size=pairs)]
        for _ in range(2)
    )
    return cache_of(src, tgt)


def lengths(values: Any) -> Any:
    return np.array(values, dtype=np.int32)


def plan_is_sound(plan: Any, src: Any, tgt: Any, budget: int) -> bool:
    """Whether every pair is there exactly once and no batch of several rows is over the budget."""
    batches = [plan.indices(number) for number in range(len(plan))]
    widths = [max(src[batch].max(), tgt[batch].max()) for batch in batches]
    within = all(len(b) == 1 or len(b) * width <= budget for b, width in zip(batches, widths, strict=True))
    return within and sorted(np.concatenate(batches).tolist()) == list(range(len(src)))


def following(stream: BatchStream) -> Batch:
    return stream.batch(stream.draw())


def same(first: Batch, second: Batch) -> bool:
    arrays = ("src", "tgt_in", "tgt_out", "indices")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in arrays)


def test_every_epoch_is_a_permutation_and_resumes_anywhere(figure: Figure) -> None:
    sound: list[bool] = []
    resumed: list[bool] = []

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(
        pairs=st.integers(1, 60),
        longest=st.integers(1, 40),
        budget=st.integers(1, 400),
        seed=st.integers(0, 2**31 - 1),
        epoch=st.integers(0, 10**6),
        stop=st.integers(0, 30),
    )
    def check(pairs: int, longest: int, budget: int, seed: int, epoch: int, stop: int) -> None:
        cache = random_cache(pairs, seed, longest)
        plan = BatchPlan(cache.src_lengths, cache.tgt_lengths, budget, seed, epoch)
        sound.append(plan_is_sound(plan, cache.src_lengths, cache.tgt_lengths, budget))
        assert sound[-1]
        whole = BatchStream(cache, SPECIAL, budget, seed, Position(epoch, 0))
        for _ in range(stop):
            following(whole)
        tail = BatchStream(cache, SPECIAL, budget, seed, whole.position)
        resumed.append(
            all(same(following(whole), following(tail)) and whole.position == tail.position for _ in range(8))
        )
        assert resumed[-1]

    check()
    # Negative controls: a plan that loses a pair, one that repeats a pair, and one over the budget are not sound.
    ten = lengths([3] * 10)
    for batches in ([range(9)], [range(10), range(1)], [range(10)]):
        broken = SimpleNamespace(indices=[np.array(b) for b in batches].__getitem__)
        fake = type("Plan", (SimpleNamespace,), {"__len__": lambda self, b=batches: len(b)})(**vars(broken))
        assert not plan_is_sound(fake, ten, ten, budget=29)
    figure(
        "data_order",
        f"{sum(sound)} permutations and {sum(resumed)} equal tails of {len(sound)}",
        "all",
        all(sound) and all(resumed) and len(sound) >= 200,
    )


def test_order_is_a_function_of_seed_and_epoch() -> None:
    cache = random_cache(200, seed=1)

    def order(seed: int, epoch: int) -> list[int]:
        plan = BatchPlan(cache.src_lengths, cache.tgt_lengths, 100, seed, epoch)
        return np.concatenate([plan.indices(number) for number in range(len(plan))]).tolist()

    assert order(1, 0) == order(1, 0)
    orders = [order(seed, epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0), (0, 1))]
    assert len(set(map(tuple, orders))) == 4


def test_sorting_in_blocks_equals_sorting_at_once(monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    """The order of an epoch is that of NumPy's permutation and lexsort."""
    equal: list[bool] = []

    @settings(max_examples=500, deadline=None, database=None, derandomize=True)
    @given(
        pairs=st.integers(1, 80),
        longest=st.integers(1, 40),
        block=st.integers(1, 90),
        seed=st.integers(0, 2**31 - 1),
        epoch=st.integers(0, 99),
    )
    def check(pairs: int, longest: int, block: int, seed: int, epoch: int) -> None:
        monkeypatch.setattr("nmt.data.batching._SORT_BLOCK", block)
        src, tgt = (
            lengths(np.random.default_rng([seed, side]).integers(1, longest + 1, size=pairs)) for side in (0, 1)
        )
        permutation = np.random.default_rng([seed, epoch]).permutation(pairs)
        longer, excess = np.maximum(src, tgt)[permutation], (tgt - src)[permutation]
        at_once = permutation[np.lexsort((np.where(longer % 2, excess, -excess), longer))]
        order = BatchPlan(src, tgt, 100, seed, epoch)._order
        equal.append(order.dtype == np.uint32 and np.array_equal(order, at_once))
        assert equal[-1]

    check()
    swapped = _sorted_by(lengths([1, 2, 1]), _sorted_by(lengths([2, 1, 1]), np.arange(3, dtype=np.uint32)))
    assert swapped.tolist() == [2, 0, 1] != np.lexsort((lengths([1, 2, 1]), lengths([2, 1, 1]))).tolist()  # the control
    figure("sorted_in_blocks", f"{sum(equal)} of {len(equal)} orders equal", "all", all(equal) and len(equal) >= 500)


def traced(work: Callable[[], object]) -> tuple[object, float, float]:
    """What `work` returns, the bytes it holds on to, and the most that were there while it ran."""
    tracemalloc.start()
    try:
        result = work()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, held, peak


def test_a_plan_takes_four_bytes_a_pair(figure: Figure) -> None:
    pairs = 2_000_000
    src, tgt = (np.random.default_rng(side).integers(1, 60, size=pairs, dtype=np.int32) for side in (0, 1))
    _, held, peak = traced(lambda: BatchPlan(src, tgt, 4096, seed=1, epoch=0))
    _, held_by_numpy, peak_of_numpy = traced(lambda: np.lexsort((src, tgt)))
    assert held_by_numpy > 7 * pairs < peak_of_numpy  # the control: this is what is counted
    held, peak = held / pairs, peak / pairs
    figure("plan_bytes_a_pair", f"{held:.1f} held, {peak:.1f} at most", "<= 5; <= 20", held <= 5 and peak <= 20)


def test_equal_sources_need_no_mask(figure: Figure) -> None:
    rng = np.random.default_rng(1)
    src = (2 + rng.gamma(4, 5, 50_000)).astype(np.int32)
    tgt = np.maximum(2, src + rng.normal(0, 3, len(src))).astype(np.int32)

    def batches(equal_sources: bool) -> list[NDArray[np.int64]]:
        plan = BatchPlan(src, tgt, 4096, 1, 0, equal_sources)
        return [plan.indices(number) for number in range(len(plan))]

    def masked(of: list[NDArray[np.int64]]) -> float:
        """The share of pairs in batches with padded sources."""
        return sum(len(pairs) for pairs in of if np.ptp(src[pairs])) / len(src)

    equal, alike = batches(True), batches(False)
    assert sorted(np.concatenate(equal).tolist()) == list(range(len(src)))
    sizes = [len(pairs) * int(max(src[pairs].max(), tgt[pairs].max())) for pairs in equal]
    assert max(sizes) <= 4096
    assert sum(size < 2048 for size in sizes) <= 1  # small ones were mixed
    figure(
        "masked_pairs",
        f"{masked(equal):.1%} ({masked(alike):.0%} otherwise)",
        "<= 15 %",
        masked(equal) <= 0.15 < masked(alike),
    )


@pytest.mark.parametrize("equal_sources", [False, True])
@given(data=st.data())
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_every_pair_is_in_one_batch(equal_sources: bool, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    pairs, longest = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 30))
    src, tgt = (rng.integers(1, longest + 1, size=pairs, dtype=np.int32) for _ in range(2))
    plan = BatchPlan(src, tgt, data.draw(st.integers(1, 300)), 1, 0, equal_sources)
    assert sorted(np.concatenate([plan.indices(number) for number in range(len(plan))]).tolist()) == list(range(pairs))


@pytest.mark.parametrize(("budget", "sizes"), [(30, [3, 3, 3, 1]), (9, [1] * 10), (1, [1] * 10), (1000, [10])])
def test_batches_fill_the_budget(budget: int, sizes: list[int]) -> None:
    ten = lengths([10] * 10)
    plan = BatchPlan(ten, lengths([7] * 10), budget, seed=1, epoch=0)
    assert sorted((len(plan.indices(number)) for number in range(len(plan))), reverse=True) == sizes


def test_batches_are_hardly_padded(figure: Figure) -> None:
    rng = np.random.default_rng(1)
    src = rng.integers(2, 40, 20_000).astype(np.int32)
    tgt = np.maximum(2, src + rng.normal(0, 3, len(src))).astype(np.int32)  # translations are about as long
    plan = BatchPlan(src, tgt, 4096, seed=1, epoch=0)
    in_batches = [plan.indices(number) for number in range(len(plan))]
    at_random = np.array_split(rng.permutation(len(src)), len(plan))  # the control

    def padding(batches: list[NDArray[np.int64]]) -> float:
        padded = sum(len(pairs) * int(side[pairs].max()) for pairs in batches for side in (src, tgt))
        return 1 - int(src.sum() + tgt.sum()) / padded

    found, control = padding(in_batches), padding(at_random)
    figure("padding", f"{found:.1%} (at random {control:.0%})", "<= 5 %", found <= 0.05 < control)


def test_stream_counts_epochs_and_batches() -> None:
    cache = random_cache(40, seed=3)
    stream = BatchStream(cache, SPECIAL, 100, seed=1)
    assert stream.position == Position(0, 0)
    for epoch in range(3):
        count = stream.batches_in_epoch
        assert count > 1
        seen = []
        for index in range(count):
            assert stream.position == Position(epoch, index)
            seen += following(stream).indices.tolist()
        assert sorted(seen) == list(range(40))
    assert stream.position == Position(3, 0)


def test_one_pair_makes_an_endless_stream() -> None:
    stream = BatchStream(cache_of([[5, 3]], [[6, 7, 3]]), SPECIAL, 16, seed=1)
    assert [following(stream).indices.tolist() for _ in range(3)] == [[0]] * 3
    assert stream.position == Position(3, 0)


def test_collate_by_hand() -> None:
    batch = make_batch(cache_of([[4, 5, 3], [6, 3]], [[7, 3], [8, 9, 1, 3]]), np.array([1, 0]), SPECIAL)
    assert batch.src.tolist() == [[6, 3, 0], [4, 5, 3]]
    assert batch.tgt_in.tolist() == [[2, 8, 9, 1], [2, 7, 0, 0]]
    assert batch.tgt_out.tolist() == [[8, 9, 1, 3], [7, 3, 0, 0]]
    assert batch.num_tokens == 6
    assert batch.indices.tolist() == [1, 0]
    assert {array.dtype for array in (batch.src, batch.tgt_in, batch.tgt_out)} == {np.dtype(np.int64)}


def collated_right(batch: Batch, src: list[list[int]], tgt: list[list[int]], special: SpecialIds) -> bool:
    """D6, row by row: the shift, one EOS at the end, one BOS in front, padding on the right alone."""
    for row, (source, target) in enumerate(zip(src, tgt, strict=True)):
        end, width = len(target), batch.tgt_out.shape[1]
        right = (
            batch.src[row].tolist() == source + [special.pad] * (batch.src.shape[1] - len(source))
            and batch.tgt_out[row].tolist() == target + [special.pad] * (width - end)
            and batch.tgt_in[row].tolist() == [special.bos, *target[:-1]] + [special.pad] * (width - end)
            and batch.tgt_in[row, 1:end].tolist() == batch.tgt_out[row, : end - 1].tolist()
            and batch.tgt_out[row, end - 1] == special.eos
        )
        if not right:
            return False
    return batch.num_tokens == sum(map(len, tgt))


def test_collate_round_trip(figure: Figure) -> None:
    right: list[bool] = []

    @settings(max_examples=1000, deadline=None, database=None, derandomize=True)
    @given(
        st.integers(1, 12),
        st.integers(0, 2**31 - 1),
        st.sampled_from([SPECIAL, SpecialIds(pad=9, unk=0, bos=1, eos=3), SpecialIds(pad=3, unk=0, bos=3, eos=3)]),
    )
    def check(rows: int, seed: int, special: SpecialIds) -> None:
        rng = np.random.default_rng(seed)  # ids 0..9: special ones inside too, which real text never gives
        src, tgt = ([[*rng.integers(0, 10, size=n).tolist(), 3] for n in rng.integers(0, 9, size=rows)] for _ in "st")
        batch = make_batch(cache_of(src, tgt), np.arange(rows), special)
        right.append(collated_right(batch, src, tgt, special))
        assert right[-1]

    check()
    src = [[4, 5, 3], [6, 3]]
    batch = make_batch(cache_of(src, src), np.arange(2), SPECIAL)
    for array in (batch.src, batch.tgt_in, batch.tgt_out):  # negative controls: one id changed is seen
        for place in np.ndindex(array.shape):
            array[place] += 1
            assert not collated_right(batch, src, src, SPECIAL)
            array[place] -= 1
    assert collated_right(batch, src, src, SPECIAL)
    failed = len(right) - sum(right)
    figure("collate", f"{failed} wrong of {len(right)} batches", "0", not failed and len(right) >= 1000)


def collated_by_row(cache: TokenCache, indices: Any, special: SpecialIds) -> Batch:
    """What `make_batch` gives, the slow way."""
    src, targets = [cache.src(int(i)) for i in indices], [cache.tgt(int(i)) for i in indices]
    arrays = [np.full((len(indices), max(map(len, rows))), special.pad, np.int64) for rows in (src, targets, targets)]
    for row in range(len(indices)):
        arrays[0][row, : len(src[row])] = src[row]
        arrays[1][row, : len(targets[row])] = [special.bos, *targets[row][:-1]]
        arrays[2][row, : len(targets[row])] = targets[row]
    return Batch(arrays[0], arrays[1], arrays[2], sum(map(len, targets)), indices)


def bit_equal(first: Batch, second: Batch) -> bool:
    pairs = [(getattr(first, name), getattr(second, name)) for name in ("src", "tgt_in", "tgt_out", "indices")]
    return first.num_tokens == second.num_tokens and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs
    )


def test_collating_at_once_equals_collating_row_by_row(figure: Figure) -> None:
    equal: list[bool] = []

    @settings(max_examples=1000, deadline=None, database=None, derandomize=True)
    @given(
        pairs=st.integers(1, 15),
        rows=st.integers(1, 20),
        longest=st.integers(1, 40),
        dtype=st.sampled_from([np.uint16, np.uint32]),
        special=st.sampled_from([SPECIAL, SpecialIds(pad=9, unk=0, bos=1, eos=3), SpecialIds(pad=3, bos=3, eos=3)]),
        seed=st.integers(0, 2**31 - 1),
    )
    def check(pairs: int, rows: int, longest: int, dtype: Any, special: SpecialIds, seed: int) -> None:
        rng = np.random.default_rng(seed)
        largest = np.iinfo(dtype).max
        src, tgt = (
            [rng.integers(0, largest, size=n, endpoint=True).tolist() for n in rng.integers(1, longest + 1, size=pairs)]
            for _ in "st"
        )
        cache, indices = cache_of(src, tgt, dtype), rng.integers(0, pairs, size=rows)
        equal.append(bit_equal(make_batch(cache, indices, special), collated_by_row(cache, indices, special)))
        assert equal[-1]

    check()
    cache = random_cache(10, seed=8)
    batch, other = make_batch(cache, np.arange(4), SPECIAL), collated_by_row(cache, np.arange(4), SPECIAL)
    for array in (batch.src, batch.tgt_in, batch.tgt_out):  # negative controls: one id changed, another type
        array[-1, 0] += 1
        assert not bit_equal(batch, other)
        array[-1, 0] -= 1
    assert not bit_equal(replace(batch, src=batch.src.astype(np.int32)), other)
    assert not bit_equal(make_batch(cache, np.array([0, 1, 2, 4]), SPECIAL), other)
    assert bit_equal(batch, other)
    figure("collate_at_once", f"{sum(equal)} of {len(equal)} bit-equal", "all", all(equal) and len(equal) >= 1000)


def test_in_order_gives_every_pair_once_and_always_the_same() -> None:
    cache = random_cache(100, seed=4)
    first, second = (list(once_each(cache, SPECIAL, 120)) for _ in range(2))
    assert sorted(np.concatenate([batch.indices for batch in first]).tolist()) == list(range(100))
    assert len(first) == len(second) and all(map(same, first, second))


def test_widest_batch_is_the_largest_of_all() -> None:
    cache = random_cache(300, seed=5)

    def size(batch: Batch) -> int:
        return batch.src.size + batch.tgt_out.size

    widest = widest_batch(cache, SPECIAL, 150)
    assert size(widest) == max(map(size, once_each(cache, SPECIAL, 150)))
    assert size(widest) > min(map(size, once_each(cache, SPECIAL, 150)))


@pytest.mark.parametrize(
    ("rows", "padded"), [([[1]], [[1]]), ([[1, 2, 3], [4]], [[1, 2, 3], [4, 9, 9]]), ([[], [5]], [[9], [5]])]
)
def test_pad(rows: list[list[int]], padded: list[list[int]]) -> None:
    assert pad(rows, pad_id=9).tolist() == padded


def test_reading_the_stream_does_not_depend_on_who_reads() -> None:
    cache = random_cache(60, seed=6)
    streams = [BatchStream(cache, SPECIAL, 80, seed=1) for _ in range(2)]
    batches = [[following(stream) for stream in streams] for _ in islice(range(50), 50)]
    assert all(same(a, b) for a, b in batches)
