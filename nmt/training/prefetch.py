"""Batches read ahead: a thread draws and collates those of the next update while the present one is computed.

On a CPU nothing is read ahead: collating takes about 0.2 % of the smallest model's update there, and a second thread
would take that time from the same cores.
"""

import time
from collections import deque
from collections.abc import Container, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from nmt.data.batching import Batch, BatchStream, Drawn, Ids, Position, epoch_of


@dataclass(frozen=True)
class _Ahead:
    """A micro-batch that was drawn.

    Attributes:
        batch: None where another rank computes it.
        position, batches_in_epoch: of the stream, behind it.
    """

    pairs: Drawn
    batch: Batch | None
    position: Position
    batches_in_epoch: int


class Prefetch:
    """A `BatchStream` with the same batches in the same order, whose next ones are made while others are computed.

    `position` is behind the last batch that was drawn from here, however far ahead the thread has read. What it could
    not do is raised as it is by the `draw` that comes to it.

    Args:
        stream: nobody else may draw from it.
        per_update: micro-batches of an update, of all ranks; as many are read ahead.
        mine: which of them this rank computes, by place in the update. The first draw is an update's first.
        device: on `cuda` batches are read ahead, in memory that the GPU can copy from by itself; else they are not.
    """

    def __init__(self, stream: BatchStream, per_update: int, mine: Container[int], device: torch.device) -> None:
        self.position, self.batches_in_epoch = stream.position, stream.batches_in_epoch
        self._stream, self._per_update, self._mine = stream, per_update, mine
        self._pinned = device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch") if self._pinned else None
        self._pending: deque[Future[_Ahead]] = deque()
        self._read, self._drawn = 0, 0  # micro-batches: handed to the thread, taken from it
        self._collated: dict[tuple[int, bytes], Batch] = {}  # of those drawn, until they are asked for
        self._stalled_s = 0.0

    @property
    def samples(self) -> bool:
        """See `BatchStream`."""
        return self._stream.samples

    def draw(self) -> Drawn:
        """The pairs of the next batch; moves `position` on. Raises: whatever went wrong in the thread."""
        with self._stalling():
            ahead = self._next()
        self.position, self.batches_in_epoch = ahead.position, ahead.batches_in_epoch
        if ahead.batch is not None:
            self._collated[_key(ahead.pairs)] = ahead.batch
        return ahead.pairs

    def num_tokens(self, pairs: Ids) -> int:
        """Real target tokens of these pairs."""
        if not self._stream.samples:
            return self._stream.num_tokens(pairs)
        with self._stalling():
            if _key(pairs) not in self._collated:
                self._collated[_key(pairs)] = self._stream.batch(pairs)
        return self._collated[_key(pairs)].num_tokens

    def batch(self, pairs: Ids) -> Batch:
        """These pairs collated: beforehand, if they are a whole batch of this rank that is asked for once."""
        with self._stalling():
            return self._collated.pop(_key(pairs), None) or self._stream.batch(pairs)

    def take_stalled_s(self) -> float:
        """Seconds in which training waited for data since this was last asked."""
        stalled_s, self._stalled_s = self._stalled_s, 0.0
        return stalled_s

    def close(self) -> None:
        """End the thread, once it has made what it is making. Nothing can be drawn any more."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _next(self) -> _Ahead:
        if self._drawn % self._per_update == 0:
            self._collated.clear()  # an update that ran out of memory asks for parts instead
        self._drawn += 1
        if self._thread is None:
            return self._make(collate=False)
        while len(self._pending) <= self._per_update:
            mine = self._read % self._per_update in self._mine
            self._pending.append(self._thread.submit(self._make, mine))
            self._read += 1
        return self._pending.popleft().result()

    def _make(self, collate: bool) -> _Ahead:
        """In the thread, if there is one."""
        pairs = self._stream.draw()
        batch = self._stream.batch(pairs) if collate else None
        if batch is not None and self._pinned:
            batch = pinned(batch)
        return _Ahead(pairs, batch, self._stream.position, self._stream.batches_in_epoch)

    @contextmanager
    def _stalling(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._stalled_s += time.monotonic() - began


def _key(pairs: Ids) -> tuple[int, bytes]:
    return epoch_of(pairs), pairs.tobytes()


def pinned(batch: Batch) -> Batch:
    """The batch in page-locked memory, from where `.to("cuda", non_blocking=True)` copies while the CPU goes on."""
    src, tgt_in, tgt_out = (
        torch.from_numpy(ids).pin_memory().numpy() for ids in (batch.src, batch.tgt_in, batch.tgt_out)
    )
    return replace(batch, src=src, tgt_in=tgt_in, tgt_out=tgt_out)
