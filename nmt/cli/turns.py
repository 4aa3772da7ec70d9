"""Several processes of one command, as torchrun starts them: each answers windows in turn, and rank 0 writes them all.

All of them read all of the input, so that each knows where its windows lie. Answers travel as text through torchrun's
key-value store.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_PART_CHARACTERS = 2**20  # of a message; the store takes 8 MB
_AHEAD = 2  # windows that a process may have answered and rank 0 not yet written
_START = timedelta(minutes=10)  # for all to come
_LOOK_S = 0.02  # between two looks for a message; torchrun ends all processes when one dies


class Turns:
    """Which process answers which window. Alone it answers all of them.

    Args:
        live: whether the input is a stream that only one process can read.
        line_buffered: whether each line waits for the answer to the last.
    Raises: ConfigError, if several processes cannot share such an input.
    """

    def __init__(self, live: bool, line_buffered: bool = False) -> None:
        self.world, self.rank = _world_size(), 0
        self._store: Store | None = None
        if self.world > 1:
            if live or line_buffered:
                raise ConfigError(
                    "Under torchrun every process reads the text: give files instead of stdin or pipes, and no "
                    "--line-buffered."
                )
            self.rank, self._store = _meet()

    @property
    def shared(self) -> bool:
        """Whether there are several processes."""
        return self.world > 1

    @property
    def first(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def output(self, path: Path | None) -> Path | None:
        """The path in rank 0; None in the others, so that no second process opens the file."""
        return path if self.first else None

    def take(self, turn: int, answer: Callable[[], str]) -> str | None:
        """The answer to window number `turn` in rank 0, whoever gave it; None in the others."""
        if self._store is None:
            return answer()
        mine = turn % self.world == self.rank
        if self.first:
            return answer() if mine else self._receive(self._store, turn)
        if mine:
            earlier = turn - _AHEAD * self.world
            if earlier >= 0:
                self._await(self._store, f"{earlier}/written")
                self._store.delete_key(f"{earlier}/written")
            self._send(self._store, turn, answer())
        return None

    @contextmanager
    def or_over(self) -> Iterator[None]:
        """Within the block rank 0 writes; if nobody reads it any more, all processes end as it does."""
        try:
            yield
        except BrokenPipeError:
            if self._store is not None:
                self._store.set("over", "")
            raise

    @staticmethod
    def _await(store: "Store", key: str) -> None:
        """Not `Store.wait`, which no signal interrupts. Raises: BrokenPipeError, if rank 0 writes no more."""
        while not store.check([key]):
            if store.check(["over"]):
                raise BrokenPipeError
            time.sleep(_LOOK_S)

    @staticmethod
    def _send(store: "Store", turn: int, text: str) -> None:
        parts = [text[start : start + _PART_CHARACTERS] for start in range(0, len(text), _PART_CHARACTERS)]
        for number, part in enumerate(parts):
            store.set(f"{turn}/{number}", part)
        store.set(f"{turn}/parts", str(len(parts)))

    @classmethod
    def _receive(cls, store: "Store", turn: int) -> str:
        cls._await(store, f"{turn}/parts")
        keys = [f"{turn}/{number}" for number in range(int(store.get(f"{turn}/parts")))]
        text = b"".join(store.get(key) for key in keys)
        for key in [*keys, f"{turn}/parts"]:
            store.delete_key(key)
        store.set(f"{turn}/written", "")
        return text.decode()


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or (int(text) > 1 and "RANK" not in os.environ):
        raise ConfigError(f"WORLD_SIZE is {text}, but torchrun did not start this process: unset it, or use torchrun.")
    return int(text)


def own_device(name: str) -> str:
    """The device of that name; where torchrun gave every process a GPU, that one."""
    if name not in ("auto", "cuda") or "LOCAL_RANK" not in os.environ:
        return name
    import torch

    return f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else name


def _meet() -> tuple[int, "Store"]:
    """This process's rank, and the store that all share."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, _ = next(rendezvous("env://", timeout=_START))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # what a dead attempt left must not be read
    return rank, PrefixStore(f"nmt-lines/{attempt}", store)
