"""The processes of one run, as torchrun starts them: who does what, and what they tell one another.

A run of one process is rank 0 of 1; then nothing here communicates. Rank 0 prepares data, writes checkpoints and talks
to the user; every rank computes its share of each update. Shared sums are taken in an order that does not depend on
timing, so that a resumed run repeats an uninterrupted one.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from nmt import errors
from nmt.errors import NmtError, RankError, StorageError

BUCKET_BYTES = 32 * 2**20  # gradients summed in one message
_ANSWER_S = 3.0  # how long a rank that still lives has to say so when another one ends or is lost
_POLL_S = 0.05


class Ranks:
    """This process among the processes of its run.

    Attributes:
        rank: its number; rank 0 is `first`.
        world: how many there are.
        local_rank: its number on its machine, which is the number of its GPU.
    """

    def __init__(self, rank: int = 0, world: int = 1, local_rank: int = 0) -> None:
        self.rank, self.world, self.local_rank = rank, world, local_rank
        self._store: Store | None = None
        self._timeout_s = math.inf

    @classmethod
    def from_environment(cls) -> "Ranks":
        """The place that torchrun gave this process by RANK, WORLD_SIZE and LOCAL_RANK; alone without them."""
        rank, world, local = (int(os.environ.get(key, unset)) for key, unset in _ENVIRONMENT.items())
        return cls(rank, world, local) if world > 1 else cls()

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device, timeout_s: float) -> Iterator[None]:
        """Within the block the ranks can talk; one that keeps the others waiting for `timeout_s` is given up.

        Raises: RankError (not all came).
        """
        if self.world == 1:
            yield
            return
        self._timeout_s = timeout_s
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # else a lost rank aborts the others without a word
        with self.talking("to start"):
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
            # A restart by torchrun meets at the same store, where what the dead attempt left must not be read.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._store = PrefixStore(f"nmt/{attempt}", store)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.world,
                timeout=timedelta(seconds=timeout_s),
            )
        yield
        dist.destroy_process_group()

    def from_first(self, name: str, make: Callable[[], str]) -> str:
        """What rank 0 makes; the others wait as long as that takes. `name` is used once.

        Raises: in every rank the error of rank 0, with its message in rank 0 alone.
        """
        if self._store is None:
            return make()
        if not self.first:
            with self.talking("for rank 0"):
                while not self._store.check([name]):
                    time.sleep(_POLL_S)
                kind, text = json.loads(self._store.get(name))
                self._store.set(f"{name}/{self.rank}", "")
            if kind:
                raise getattr(errors, kind)("")
            return str(text)
        try:
            text = make()
        except Exception as error:
            known = type(error) if isinstance(error, NmtError) else NmtError
            kind = StorageError if isinstance(error, OSError) else known  # the code it will end with
            self._tell(self._store, name, [kind.__name__, ""])
            raise
        self._tell(self._store, name, ["", text])
        return text

    def _tell(self, store: Store, name: str, answer: list[str]) -> None:
        """Answer, and wait a moment until all have heard it: the store may end with this process."""
        with suppress(RuntimeError):
            store.set(name, json.dumps(answer))
            self._without([f"{name}/{rank}" for rank in range(1, self.world)])

    def agreed(self, error: NmtError) -> NmtError:
        """The error that all ranks raise now, with its message in rank 0 alone."""
        return error if self.first else type(error)("")

    def share(self, count: int) -> range:
        """Which of `count` things are this rank's: every world-th."""
        return range(self.rank, count, self.world)

    def sum_gradients(self, model: nn.Module) -> None:
        """Add up the gradients of all ranks in place, in buckets of a fixed layout.

        Not `DistributedDataParallel`: that one lays its buckets out anew after the first update, which changes the
        order of additions between a resumed and an uninterrupted run of more than two ranks. Raises: RankError.
        """
        if self.world == 1:
            return
        parameters = list(model.parameters())
        for parameter in parameters:
            if parameter.grad is None:  # a rank without a micro-batch of this update
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets(parameters):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            with self.talking("for the gradients"):
                dist.all_reduce(flat)
            for gradient, summed in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                gradient.copy_(summed.view_as(gradient))

    def total(self, values: Sequence[float]) -> list[float]:
        """The sum over ranks of each value, in float64. Raises: RankError."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest over ranks of each value. Raises: RankError."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def collect(self, lines: Sequence[str]) -> list[list[str]]:
        """Every rank's lines, by rank. Raises: RankError."""
        if self.world == 1:
            return [list(lines)]
        mine = np.frombuffer(json.dumps(list(lines)).encode(), dtype=np.uint8)
        longest = int(self.largest([len(mine)])[0])
        padded = torch.full((longest,), ord(" "), dtype=torch.uint8)  # JSON may end in blanks
        padded[: len(mine)] = torch.from_numpy(mine.copy())
        gathered = [torch.empty_like(padded) for _ in range(self.world)]
        with self.talking("for the lines of the others"):
            dist.all_gather(gathered, padded)
        return [json.loads(text.numpy().tobytes()) for text in gathered]

    def _reduced(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        with self.talking("for a decision"):
            dist.all_reduce(tensor, operation)
        return [float(value) for value in tensor]

    @contextmanager
    def talking(self, purpose: str, *, computing: bool = False) -> Iterator[None]:
        """Name the ranks that are lost when communication fails.

        Args:
            computing: whether the block does more than communicate; an error that comes of something else then stays.
        Raises: RankError.
        """
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:  # torch.distributed raises several kinds of it
            if computing and not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            waited_s = time.monotonic() - began
            why = (
                f"gave no answer within {self._timeout_s:g} s"
                if waited_s >= 0.9 * self._timeout_s
                else "ended or cannot be reached"
            )
            raise RankError(
                f"Rank {self.rank} of {self.world} waited {purpose}, and {self._lost()} {why}. What was saved "
                f"stands; the same command goes on from there (torchrun --max-restarts does that by itself)."
            ) from error

    def _lost(self) -> str:
        """The ranks that do not say, within a moment, that they have noticed it too."""
        silent = [rank for rank in range(self.world) if rank != self.rank]
        found: list[list[int]] = []

        def ask(store: Store) -> None:
            with suppress(RuntimeError):
                store.set(f"lost-company/{self.rank}", "")
                found.append([silent[at] for at in self._without([f"lost-company/{rank}" for rank in silent])])

        if self._store is not None:
            asking = threading.Thread(target=ask, args=(self._store,), daemon=True)  # a store that hangs never answers
            asking.start()
            asking.join(_ANSWER_S + 1)
        if not found:  # no word of the store, which is on rank 0's machine
            found.append(silent if self.first else [0])
        return f"rank {', '.join(map(str, found[0]))}" if found[0] else "another rank"

    def _without(self, keys: Sequence[str]) -> list[int]:
        """Wait a moment for others to set all keys. Returns: the places of those that are not set."""
        assert self._store is not None
        missing, until = list(range(len(keys))), time.monotonic() + _ANSWER_S
        while missing and time.monotonic() < until:
            missing = [place for place in missing if not self._store.check([keys[place]])]
            time.sleep(_POLL_S)
        return missing


_ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


def checksum(model: nn.Module) -> int:
    """A number that changes with any one bit of the weights: the sum of their bits, read as integers."""
    sums = [p.detach().view(torch.int16).sum(dtype=torch.int64) for p in model.parameters()]
    return int(torch.stack(sums).sum())  # the device is waited for once


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[Tensor]]:
    """The gradients, a few at a time."""
    bucket: list[Tensor] = []
    for parameter in parameters:
        assert parameter.grad is not None
        bucket.append(parameter.grad)
        if sum(gradient.nbytes for gradient in bucket) >= BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
