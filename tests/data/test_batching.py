"""Batches: every pair once an epoch, within the budget, in an order that any position resumes."""

from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nmt.data.batching import Batch, BatchPlan, BatchStream, Position, make_batch, once_each, pad, widest_batch
from nmt.text.tokenizer import SpecialIds

Figure = Callable[..., None]
SPECIAL = SpecialIds(pad=0, unk=1, bos=2, eos=3)


def cache_of(src: list[list[int]], tgt: list[list[int]]) -> Any:
    """What batching asks of a TokenCache."""
    return SimpleNamespace(
        src=lambda i: np.array(src[i], dtype=np.uint16),
        tgt=lambda i: np.array(tgt[i], dtype=np.uint16),
        src_lengths=np.array([len(ids) for ids in src], dtype=np.int32),
        tgt_lengths=np.array([len(ids) for ids in tgt], dtype=np.int32),
    )


def random_cache(pairs: int, seed: int, longest: int = 30) -> Any:
    rng = np.random.default_rng(seed)
    src, tgt = (
        [[*rng.integers(4, 100, size=n).tolist(), SPECIAL.eos] for n in rng.integers(0, longest, size=pairs)]
        for _ in range(2)
    )
    return cache_of(src, tgt)


def lengths(values: list[int]) -> Any:
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

    @settings(max_examples=500, deadline=None, database=None, derandomize=True)
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
        all(sound) and all(resumed) and len(sound) >= 500,
    )


def test_order_is_a_function_of_seed_and_epoch() -> None:
    cache = random_cache(200, seed=1)

    def order(seed: int, epoch: int) -> list[int]:
        plan = BatchPlan(cache.src_lengths, cache.tgt_lengths, 100, seed, epoch)
        return np.concatenate([plan.indices(number) for number in range(len(plan))]).tolist()

    assert order(1, 0) == order(1, 0)
    orders = [order(seed, epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0), (0, 1))]
    assert len(set(map(tuple, orders))) == 4


@pytest.mark.parametrize(("budget", "sizes"), [(30, [3, 3, 3, 1]), (9, [1] * 10), (1, [1] * 10), (1000, [10])])
def test_batches_fill_the_budget(budget: int, sizes: list[int]) -> None:
    ten = lengths([10] * 10)
    plan = BatchPlan(ten, lengths([7] * 10), budget, seed=1, epoch=0)
    assert sorted((len(plan.indices(number)) for number in range(len(plan))), reverse=True) == sizes


def test_batches_are_hardly_padded(figure: Callable[..., None]) -> None:
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
