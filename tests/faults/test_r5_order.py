"""R5: the order of training is a permutation an epoch, resumes anywhere, and is dealt to ranks without loss."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.recipe import scale
from nmt.config import TrainingConfig
from nmt.data.batching import BatchStream, Position
from nmt.text.tokenizer import SpecialIds
from nmt.training.checkpoint import TrainState
from nmt.training.distributed import Ranks
from nmt.training.trainer import Trainer, _Sums


def stream_of(pairs: int, budget: int, seed: int, position: Position | None = None) -> BatchStream:
    rng = np.random.default_rng(seed)
    src, tgt = (rng.integers(1, 40, size=pairs).astype(np.int32) for _ in range(2))
    cache: Any = SimpleNamespace(src_lengths=src, tgt_lengths=tgt)
    return BatchStream(cache, SpecialIds(pad=0, unk=1, bos=2, eos=3), budget, seed, position)


class Rank:
    """The trainer of one rank, whose gradients are the notes of what they were asked of."""

    one_update = Trainer.one_update
    model = None
    sharded = False

    def __init__(self, stream: BatchStream, accumulation: int, rank: int, world: int, share: Any = Ranks.share) -> None:
        self.config = SimpleNamespace(training=TrainingConfig(max_updates=10))
        self.state = TrainState(batches_per_update=accumulation)
        self.stream, self._since_record = stream, _Sums()
        ranks = Ranks(rank, world)
        self.ranks = SimpleNamespace(share=lambda count: share(ranks, count), sum_gradients=lambda model: None)
        self.seen: dict[int, list[int]] = {}

    def _gradients(self, numbered: dict[int, Any], num_tokens: int) -> float:
        assert not self.seen.keys() & numbered.keys()
        self.seen.update({number: pairs.tolist() for number, pairs in numbered.items()})
        return 0.0

    def _step(self, rate: float, numbered: dict[int, Any]) -> float:
        return 0.0


def dealt_right(pairs: int, budget: int, seed: int, world: int, accumulation: int, updates: int, share: Any) -> bool:
    """Whether what the ranks see is together what one rank sees, in its order."""
    alone = Rank(stream_of(pairs, budget, seed), accumulation, 0, 1)
    ranks = [Rank(stream_of(pairs, budget, seed), accumulation, rank, world, share) for rank in range(world)]
    for trainer in (alone, *ranks):
        for _ in range(updates):
            trainer.one_update()
    together = [item for trainer in ranks for item in trainer.seen.items()]
    sizes = [len(trainer.seen) for trainer in ranks]
    fair = max(sizes) - min(sizes) <= updates
    return fair and sorted(together) == sorted(alone.seen.items()) and sorted(alone.seen) == list(alone.seen)


def test_r5_order(figure: Callable[..., None]) -> None:
    right: list[bool] = []

    @settings(max_examples=scale(150, 500), deadline=None, database=None, derandomize=True)
    @given(
        pairs=st.integers(1, 80),
        budget=st.integers(1, 400),
        seed=st.integers(0, 2**31 - 1),
        world=st.integers(1, 5),
        accumulation=st.integers(1, 6),
        stop=st.integers(0, 40),
    )
    def check(pairs: int, budget: int, seed: int, world: int, accumulation: int, stop: int) -> None:
        stream = stream_of(pairs, budget, seed)
        for _ in range(3):
            drawn = [pair for _ in range(stream.batches_in_epoch) for pair in stream.draw()]
            right.append(sorted(drawn) == list(range(pairs)))
            assert right[-1]
        whole = stream_of(pairs, budget, seed)
        for _ in range(stop):
            whole.draw()
        tail = stream_of(pairs, budget, seed, whole.position)
        right.append(all(np.array_equal(whole.draw(), tail.draw()) for _ in range(12)))
        assert right[-1]
        right.append(dealt_right(pairs, budget, seed, world, accumulation, 4, Ranks.share))
        assert right[-1]

    check()
    said = f"{len(right) // 5} cases, {right.count(False)} violations"
    figure("r5_order", said, "0", all(right) and len(right) >= 5 * scale(150, 500))


@pytest.mark.parametrize(
    "share",
    [
        lambda ranks, count: range(count),  # everybody does everything
        lambda ranks, count: range(ranks.rank, count - 1, ranks.world),  # the last one is lost
    ],
)
def test_r5_control(share: Any) -> None:
    assert dealt_right(50, 60, 1, 2, 4, 4, Ranks.share)
    assert not dealt_right(50, 60, 1, 2, 4, 4, share)
