"""Subword sampling and weights of corpora in training: every rank, part and resumed run sees the same pieces."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from nmt.data.batching import Batch, BatchPlan, BatchStream, Position, epoch_of, once_each, weighted
from nmt.data.prepare import Prepared
from nmt.errors import ConfigError, Interrupted
from nmt.training import progress, run
from nmt.training.checkpoint import load_state
from nmt.training.interrupt import StopRequest
from nmt.training.prefetch import Prefetch
from nmt.training.trainer import Trainer, sampling_of
from tiny import Tiny

Figure = Callable[..., None]
UPDATES = 8
SAMPLED = {"bpe_dropout": 0.3, "accumulation": 2, "max_updates": UPDATES, "average_count": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Two corpora of 100 pairs, one with a weight and a tag."""
    folder = tmp_path_factory.mktemp("tiny")
    train = [{"prefix": "first", "weight": 1.5, "tag": "<one>"}, {"prefix": "second"}]
    corpus = tiny.write(
        folder, data={"train": train}, training=SAMPLED, validation={"every": UPDATES, "max_sentences": 2}
    )
    for language, lines in zip(("en", "de"), tiny.sentences(200), strict=True):
        for name, part in (("first", lines[:100]), ("second", lines[100:])):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in part))
    return corpus


@pytest.fixture(scope="module")
def prepared(corpus: Tiny) -> Prepared:
    return run.prepare(corpus.config, corpus.cache, lambda text: None)


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    monkeypatch.setattr(progress, "_tensorboard", lambda *_: None)
    with tiny.one_thread():
        yield


def stream_of(corpus: Tiny, prepared: Prepared, position: Position | None = None) -> BatchStream:
    special, sampling = prepared.tokenizer.special, sampling_of(corpus.config.training, prepared.tokenizer)
    weights = [source.weight for source in corpus.config.data.train]
    return BatchStream(prepared.train, special, 300, 1, position, sampling=sampling, weights=weights)


def rows(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch without padding, which is 0."""
    sides = [[[n for n in ids if n] for ids in side.tolist()] for side in (batch.src, batch.tgt_out)]
    return list(zip(*sides, strict=True))


def test_ranks_parts_and_reading_ahead_see_the_same_pieces(corpus: Tiny, prepared: Prepared, figure: Figure) -> None:
    plain = stream_of(corpus, prepared)
    drawn = [plain.draw() for _ in range(60)]
    whole = [plain.batch(pairs) for pairs in drawn]
    assert drawn[-1].epoch > 1
    wrong = sum(plain.num_tokens(p) != sum(len(tgt) for _, tgt in rows(b)) for p, b in zip(drawn, whole, strict=True))
    for pairs, batch in zip(drawn, whole, strict=True):  # memory ran out
        parts = [plain.batch(part) for part in np.array_split(pairs, min(3, len(pairs)))]
        wrong += [row for part in parts for row in rows(part)] != rows(batch)
    for device in ("cpu", "cuda"):
        for rank in range(2):
            ahead = Prefetch(stream_of(corpus, prepared), 4, range(rank, 4, 2), torch.device(device))
            for update in range(15):
                seen = [ahead.draw() for _ in range(4)]
                for place in range(rank, 4, 2):
                    expected = whole[4 * update + place]
                    wrong += ahead.num_tokens(seen[place]) != expected.num_tokens
                    wrong += rows(ahead.batch(seen[place])) != rows(expected)
            ahead.close()
    figure("sampling_same_pieces", f"{wrong} of {60 * 2 + 2 * 2 * 15 * 2 * 2} differ", "0", wrong == 0)
    # Negative controls: the epoch forgotten, and a pair in two epochs.
    assert rows(plain.batch(np.asarray(drawn[-1]))) != rows(whole[-1])
    assert epoch_of(np.array_split(drawn[-1], 2)[1]) == drawn[-1].epoch and epoch_of(np.arange(3)) == 0


def test_the_budget_holds_on_average(corpus: Tiny, prepared: Prepared, figure: Figure) -> None:
    def filled(stream: BatchStream) -> float:
        sizes = [stream.batch(stream.draw()).src.shape for _ in range(2 * stream.batches_in_epoch)]
        return sum(rows * width for rows, width in sizes) / len(sizes)

    sampled = stream_of(corpus, prepared)
    plain = BatchStream(prepared.train, prepared.tokenizer.special, 300, 1, weights=[1.5, 1])
    ratio = filled(sampled) / filled(plain)
    figure("sampling_budget", f"{ratio:.2f} of the tokens of plain batches", "0.8 to 1.2", 0.8 <= ratio <= 1.2)


def test_weights_are_repeats_by_epoch(corpus: Tiny, prepared: Prepared) -> None:
    first, second = prepared.train.source_sizes
    pairs_kept = len(prepared.train)
    assert first + second == pairs_kept and 80 < first < 100
    stream = stream_of(corpus, prepared)
    epochs = []
    for _ in range(3):
        pairs = np.concatenate([stream.draw() for _ in range(stream.batches_in_epoch)])
        epochs.append(np.bincount(pairs, minlength=pairs_kept))
    for counts in epochs:
        assert set(counts[:first]) == {1, 2} and set(counts[first:]) == {1}
        assert counts[:first].sum() == first + round(first / 2)
    assert all((a != b).any() for a, b in pairwise(epochs))
    resumed = stream_of(corpus, prepared, stream.position)
    assert all(np.array_equal(stream.draw(), resumed.draw()) for _ in range(80))
    assert np.bincount(weighted([4, 3], [2.0, 0.34], 1, 0), minlength=7).tolist()[:4] == [2] * 4
    assert weighted([4, 3], [2.0, 0.34], 1, 0).dtype == np.uint32
    with pytest.raises(ConfigError, match=r"with the weights \[0\.1\] no pair is left of 3"):
        weighted([3], [0.1], 1, 0)


def test_with_weights_of_one_the_order_is_that_of_earlier_versions() -> None:
    rng = np.random.default_rng(3)
    src, tgt = (rng.integers(1, 40, size=5000).astype(np.int32) for _ in range(2))
    for equal_sources, known in ((False, "0049b82c5f984cda"), (True, "68373b8d739b0920")):
        plan, digest = BatchPlan(src, tgt, 400, 7, 2, equal_sources), hashlib.sha256()
        for number in range(len(plan)):
            digest.update(plan.indices(number).tobytes() + b"|")
        assert digest.hexdigest()[:16] == known


def fit(corpus: Tiny, folder: Path, **training: Any) -> Path:
    config = corpus.config.replace(training=training)
    return run.train(config, folder, device="cpu", cache=corpus.cache, quiet=True, stop=StopRequest())


def outcome(folder: Path) -> tuple[bytes, int]:
    state = load_state(folder / "checkpoints" / f"ckpt-{UPDATES:06}")
    return (folder / "bundle" / "model.safetensors").read_bytes(), state.tokens


def test_a_run_that_is_stopped_ends_the_same(
    corpus: Tiny, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure, full: bool
) -> None:
    fit(corpus, tmp_path / "whole")
    expected, differences, one_update = outcome(tmp_path / "whole"), 0, Trainer.one_update
    points = range(1, UPDATES) if full else (5,)
    in_epochs: list[bool] = []
    for update in points:

        def stopping(self: Trainer, update: int = update) -> Any:
            rates = one_update(self)
            self.stop.signal_number = 15 if self.state.update == update else None
            return rates

        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(Trainer, "one_update", stopping)
            fit(corpus, tmp_path / str(update))
        in_epochs.append(load_state(tmp_path / str(update) / "checkpoints" / f"ckpt-{update:06}").batch_index > 0)
        fit(corpus, tmp_path / str(update))
        differences += outcome(tmp_path / str(update)) != expected
    assert any(in_epochs)
    figure("sampling_resume", f"{differences} differences, {len(points)} times stopped", "0", differences == 0)
    # The controls: pieces were sampled; with other weights the run is not gone on with.
    plain = BatchStream(prepared.train, prepared.tokenizer.special, 300, 1)
    stream = stream_of(corpus, prepared)
    drawn = [stream.draw() for _ in range(2 * UPDATES)]
    assert expected[1] == sum(map(stream.num_tokens, drawn)) > 1.1 * sum(map(plain.num_tokens, drawn))
    train = [{"prefix": "first", "weight": 2.0, "tag": "<one>"}, {"prefix": "second"}]
    with pytest.raises(ConfigError, match=r"began with another training text or tokenizer .*x \[1\.5, 1\.0\]; now "):
        run.train(corpus.config.replace(data={"train": train}), tmp_path / "whole", cache=corpus.cache, quiet=True)
    with pytest.raises(ConfigError, match=r"training\.bpe_dropout = 0\.2 .*--allow-changed config"):
        fit(corpus, tmp_path / "whole", bpe_dropout=0.2)


def test_validation_is_never_sampled(corpus: Tiny, prepared: Prepared) -> None:
    """And its text stands behind the tags of its sources."""
    tokenizer, seen = prepared.tokenizer, {}
    for batch in once_each(prepared.valid, tokenizer.special, 300):
        seen.update(zip(batch.indices.tolist(), rows(batch), strict=True))
    sides = tokenizer.encode_src(prepared.valid_src), tokenizer.encode_tgt(prepared.valid_tgt)
    assert [seen[number] for number in sorted(seen)] == list(zip(*sides, strict=True))
    assert {line.startswith("<one> ") for line in prepared.valid_src} == {True, False}
