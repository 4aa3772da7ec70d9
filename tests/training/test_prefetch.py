"""Reading ahead changes when batches are made, and nothing else: not which, not their order, not where a run stands."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from nmt.data.batching import Batch, BatchStream, Ids, Position
from nmt.errors import Interrupted
from nmt.text.tokenizer import SpecialIds
from nmt.training import prefetch, run
from nmt.training.checkpoint import load_state
from nmt.training.interrupt import StopRequest
from nmt.training.prefetch import Prefetch, pinned
from nmt.training.trainer import Trainer
from tiny import Tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
Figure = Callable[..., None]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def stream_from(corpus: Tiny) -> Callable[[Position], BatchStream]:
    prepared = run.prepare(corpus.config, corpus.cache, lambda text: None)
    return lambda position: BatchStream(prepared.train, SpecialIds(), 300, 1, position)


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Page-locked memory needs CUDA; a copy does here. Afterwards no thread is left that read ahead."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    with tiny.one_thread():
        yield
    assert reading() == []


def reading() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def made(stream: Any, updates: int, per_update: int, mine: range) -> list[tuple[Any, ...]]:
    """What a trainer sees of a stream: pairs, tokens, position, batches of the epoch, and the batches of this rank."""
    seen = []
    for _ in range(updates):
        drawn = [stream.draw() for _ in range(per_update)]
        batches = [stream.batch(drawn[place]) for place in mine]
        arrays = [
            getattr(batch, name).tolist() for batch in batches for name in ("src", "tgt_in", "tgt_out", "indices")
        ]
        tokens = [stream.num_tokens(pairs) for pairs in drawn]
        seen.append(([p.tolist() for p in drawn], tokens, stream.position, stream.batches_in_epoch, arrays))
    return seen


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize(("per_update", "mine"), [(1, range(1)), (3, range(3)), (4, range(1, 4, 2))])
def test_the_stream_is_the_same(stream_from: Any, device: Any, per_update: int, mine: range, figure: Figure) -> None:
    position, updates = Position(0, 3), 30
    ahead = Prefetch(stream_from(position), per_update, mine, device)
    seen, plain = made(ahead, updates, per_update, mine), made(stream_from(position), updates, per_update, mine)
    ahead.close()
    assert ahead.position.epoch > 1  # over the end of epochs
    assert plain != made(stream_from(Position(0, 4)), updates, per_update, mine)  # negative control
    equal = sum(a == b for a, b in zip(seen, plain, strict=True))
    name = f"prefetch_{device.type}_{per_update}_{len(mine)}"
    figure(name, f"{equal} of {updates} updates equal", "all", equal == updates)


def test_a_thread_makes_the_batches_of_this_rank_beforehand(stream_from: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made_by: list[tuple[str, list[int]]] = []
    collate = BatchStream.batch

    def noting(self: BatchStream, pairs: Ids) -> Batch:
        made_by.append((threading.current_thread().name.partition("_")[0], pairs.tolist()))
        return collate(self, pairs)

    monkeypatch.setattr(BatchStream, "batch", noting)
    ahead = Prefetch(stream_from(Position()), 2, range(1), CUDA)
    drawn = [ahead.draw() for _ in range(4)]
    ahead.batch(drawn[2])
    ahead.batch(drawn[2][:1])  # a part, because memory ran out: collated here
    ahead.batch(drawn[2])  # and so is what was given away
    ahead.close()
    here = [pairs for name, pairs in made_by if name != "prefetch"]
    there = [pairs for name, pairs in made_by if name == "prefetch"]
    assert here == [drawn[2][:1].tolist(), drawn[2].tolist()]
    assert there[:2] == [drawn[0].tolist(), drawn[2].tolist()]  # of another rank's none
    assert len(there) <= 4  # an update further, not the whole epoch
    made_by.clear()
    plain = Prefetch(stream_from(Position()), 2, range(1), CPU)
    plain.batch(plain.draw())
    assert [name for name, _ in made_by] == ["MainThread"]


def test_an_error_reaches_the_draw_that_comes_to_it(stream_from: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, count = BatchStream.draw, iter(range(99))

    def breaking(self: BatchStream) -> Ids:
        if next(count) == 3:
            raise OSError(5, "Input/output error", "tgt.tokens")
        return draw(self)

    monkeypatch.setattr(BatchStream, "draw", breaking)
    ahead = Prefetch(stream_from(Position()), 2, range(2), CUDA)
    for _ in range(3):
        ahead.draw()
    with pytest.raises(OSError, match=r"Input/output error.*tgt\.tokens"):
        ahead.draw()
    ahead.close()


def test_waiting_is_counted(stream_from: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = BatchStream.draw
    monkeypatch.setattr(BatchStream, "draw", lambda self: time.sleep(0.05) or draw(self))
    for device in (CPU, CUDA):
        ahead = Prefetch(stream_from(Position()), 1, range(1), device)
        ahead.draw()
        assert ahead.take_stalled_s() >= 0.05
        assert ahead.take_stalled_s() == 0
        ahead.close()
    ahead = Prefetch(stream_from(Position()), 1, range(1), CUDA)
    ahead.draw()
    while not all(future.done() for future in ahead._pending):  # the model is at work
        time.sleep(0.01)
    ahead.take_stalled_s()
    ahead.draw()
    assert ahead.take_stalled_s() < 0.05  # it was there
    ahead.close()


def test_pinned_is_the_same_batch(stream_from: Any) -> None:
    stream = stream_from(Position())
    batch = stream.batch(stream.draw())
    copy = pinned(batch)
    for name in ("src", "tgt_in", "tgt_out"):
        assert getattr(copy, name).dtype == np.int64 and np.array_equal(getattr(copy, name), getattr(batch, name))
        assert not np.shares_memory(getattr(copy, name), getattr(batch, name))
    assert copy == replace(batch, src=copy.src, tgt_in=copy.tgt_in, tgt_out=copy.tgt_out)


# Whole runs, reading ahead on a CPU


@pytest.fixture
def reading_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prefetch, "__init__", _as_on_cuda(Prefetch.__init__))


def _as_on_cuda(init: Callable[..., None]) -> Callable[..., None]:
    return lambda self, stream, per_update, mine, device: init(self, stream, per_update, mine, CUDA)


def fit(corpus: Tiny, folder: Any) -> Any:
    training = {"accumulation": 2, "max_updates": 12}
    return run.train(
        corpus.config.replace(training=training),
        folder,
        device="cpu",
        cache=corpus.cache,
        quiet=True,
        stop=StopRequest(),
    )


def outcome(folder: Any) -> tuple[bytes, Any]:
    state = load_state(folder / "checkpoints" / "ckpt-000012")
    return (folder / "bundle" / "model.safetensors").read_bytes(), replace(state, minutes=0.0)


@pytest.mark.slow  # the faults' R1 stops runs that read ahead, too
def test_a_run_that_reads_ahead_and_is_stopped_ends_the_same(
    corpus: Tiny, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    fit(corpus, tmp_path / "plain")
    monkeypatch.setattr(Prefetch, "__init__", _as_on_cuda(Prefetch.__init__))
    fit(corpus, tmp_path / "ahead")
    differences = outcome(tmp_path / "plain") != outcome(tmp_path / "ahead")
    stopped = 0
    for update in (1, 5, 6):
        folder, one_update = tmp_path / str(update), Trainer.one_update

        def stopping(self: Trainer, update: int = update, one_update: Any = one_update) -> dict[str, float]:
            rates = one_update(self)
            self.stop.signal_number = 15 if self.state.update == update else None
            return rates

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "one_update", stopping)
            with pytest.raises(Interrupted):
                fit(corpus, folder)
        assert reading() == []
        fit(corpus, folder)
        stopped += 1
        differences += outcome(folder) != outcome(tmp_path / "plain")
    with monkeypatch.context() as patch:  # negative control: the position that the thread has reached is saved
        patch.setattr(
            Prefetch, "position", property(lambda self: self._stream.position, lambda self, value: None), raising=False
        )
        fit(corpus, tmp_path / "wrong")
    assert outcome(tmp_path / "wrong") != outcome(tmp_path / "plain")
    figure("prefetch_resume", f"{differences} differences, {stopped} times stopped", "0", differences == 0)


def test_a_run_that_fails_leaves_no_thread(
    corpus: Tiny, tmp_path: Any, reading_ahead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(99))

    def broken(batch: Batch) -> Batch:
        if next(calls) == 5:
            raise MemoryError("no page left to lock")
        return batch

    monkeypatch.setattr(prefetch, "pinned", broken)
    with pytest.raises(MemoryError, match="no page left to lock"):
        fit(corpus, tmp_path / "run")
    assert reading() == []


def test_a_thread_at_work_does_not_hold_up_the_end_of_the_process() -> None:
    code = """
import os, time, torch
from nmt.data.batching import Position
from nmt.training.prefetch import Prefetch

class Slow:
    position, batches_in_epoch = Position(), 9
    def draw(self):
        print("under way", flush=True)
        time.sleep(600)

import threading
ahead = Prefetch(Slow(), 1, range(1), torch.device("cuda"))
threading.Thread(target=ahead.draw, daemon=True).start()
time.sleep(0.2)
os._exit(143)
"""
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (143, "under way\n")
    assert time.monotonic() - began < 120
