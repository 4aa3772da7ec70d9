"""Decoding step by step, as the search does, against decoding all at once."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.model.kv_cache import DecoderState, LayerCache
from nmt.model.transformer import Transformer

Make = Callable[..., Transformer]
Source = Callable[[np.random.Generator, int], tuple[Tensor, Tensor]]


def random_survivors(rng: np.random.Generator, batch: int, width: int) -> tuple[Tensor, Tensor]:
    """What a search may do after a step: the sentences that go on, the rows that their new rows continue."""
    sentences = np.flatnonzero(rng.random(batch) < 0.9) if rng.random() < 0.3 else np.arange(batch)
    if not len(sentences):
        sentences = np.array([int(rng.integers(batch))])
    new_width = int(rng.integers(1, 5)) if rng.random() < 0.3 else width
    rows = sentences[:, None] * width + rng.integers(0, width, (len(sentences), new_width))
    return torch.from_numpy(sentences), torch.from_numpy(rows.flatten())


@torch.no_grad()
def cache_difference(make: Make, source: Source, cases: int, dtype: torch.dtype = torch.double) -> float:
    """The largest difference of a stepwise logit from that of the full decoder on the row's own history.

    Every sixtieth case runs over 70 positions: the buffers start with room for 32 and double.
    """
    rng, worst = np.random.default_rng(1), 0.0
    for case in range(cases):
        model, batch = make(rng).to(dtype), int(rng.integers(1, 5))
        src, keep = source(rng, batch)
        memory, state = model.encode(src, keep), model.prefill(src, keep)
        history, width = torch.empty(batch, 0, dtype=torch.long), 1
        for _ in range(70 if case % 60 == 0 else int(rng.integers(2, 9))):
            history = torch.cat([history, torch.from_numpy(rng.integers(0, 11, (len(history), 1)))], dim=1)
            logits = model.decode_step(history[:, -1], state)
            states = model.decode(history, memory.repeat_interleave(width, dim=0), keep.repeat_interleave(width, dim=0))
            expected = model.output(states[:, -1])
            assert 0.1 < expected.std() < 10  # an absolute difference means something
            worst = max(worst, float((logits - expected).abs().max()))
            sentences, rows = random_survivors(rng, len(memory), width)
            if len(sentences) < len(memory):
                state.keep_sentences(sentences, rows)
            else:
                state.reorder(rows)
            history, memory, keep, width = (
                history[rows],
                memory[sentences],
                keep[sentences],
                len(rows) // len(sentences),
            )
    return worst


def test_steps_equal_the_full_decoder(figure: Callable[..., None], random_model: Make, random_source: Source) -> None:
    worst = cache_difference(random_model, random_source, 300)
    figure(
        "kv_cache_max_difference",
        f"{worst:.0e} over 300 cases",
        "fp64 <= 1e-12, every step, rows reordered and sentences dropped",
        worst <= 1e-12,
    )


def test_steps_equal_the_full_decoder_in_float32(
    figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    worst = cache_difference(random_model, random_source, 30, torch.float)
    figure("kv_cache_max_difference_fp32", f"{worst:.0e} over 30 cases", "<= 1e-5", worst <= 1e-5)


def skip_reorder(monkeypatch: pytest.MonkeyPatch) -> None:
    select = LayerCache.select

    def broken(self: LayerCache, rows: Tensor) -> None:
        if self._buffer is not None and len(rows) != self._buffer.shape[1]:
            select(self, rows)

    monkeypatch.setattr(LayerCache, "select", broken)


def keep_wrong_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_sentences = DecoderState.keep_sentences

    def broken(self: DecoderState, sentences: Tensor, rows: Tensor) -> None:
        keep_sentences(self, torch.arange(len(sentences)), rows)

    monkeypatch.setattr(DecoderState, "keep_sentences", broken)


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecoderState, "step", property(lambda self: 0, lambda self, value: None))


def lose_the_first_32_when_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    grow = LayerCache._grow

    def broken(self: LayerCache, like: Tensor) -> None:
        grow(self, like)
        if self.length:
            self._buffer.zero_()

    monkeypatch.setattr(LayerCache, "_grow", broken)


@pytest.mark.parametrize("breakage", [skip_reorder, keep_wrong_memory, stand_still, lose_the_first_32_when_growing])
def test_the_cache_comparison_sees(
    breakage: Callable[[pytest.MonkeyPatch], None],
    figure: Callable[..., None],
    random_model: Make,
    random_source: Source,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breakage(monkeypatch)
    difference = cache_difference(random_model, random_source, 10)
    figure(f"kv_cache_{breakage.__name__}_difference", f"{difference:.1f}", "> 1e-2", difference > 1e-2)


@torch.no_grad()
def poison_changes(make: Make, source: Source, cases: int, poison: float) -> int:
    """Cases in which filling the unwritten part of the buffers moves a logit by a single bit."""
    rng, changes = np.random.default_rng(2), 0
    for _ in range(cases):
        model = make(rng)
        src, keep = source(rng, 3)
        clean, poisoned = model.prefill(src, keep), model.prefill(src, keep)
        equal = True
        for _ in range(6):
            tokens = torch.from_numpy(rng.integers(0, 11, 3))
            equal &= torch.equal(model.decode_step(tokens, clean), model.decode_step(tokens, poisoned))
            for layer in poisoned.layers:
                assert layer._buffer is not None
                layer._buffer[:, :, :, layer.length :] = poison
        changes += not equal
    return changes


@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_the_unwritten_cache_is_never_read(
    poison: float, figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    changes = poison_changes(random_model, random_source, 30, poison)
    figure(f"kv_cache_poison_{poison:g}_changes", f"{changes} of 30", "0 of 30", changes == 0)


def test_the_poison_check_sees_a_cache_read_too_far(
    figure: Callable[..., None], random_model: Make, random_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = LayerCache.append

    def broken(self: LayerCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        append(self, k, v)
        return self._buffer[0, :, :, : self.length + 1], self._buffer[1, :, :, : self.length + 1]

    monkeypatch.setattr(LayerCache, "append", broken)
    changes = poison_changes(random_model, random_source, 10, 1e4)
    figure("kv_cache_poison_control_changes", f"{changes} of 10", "10 of 10 when read one too far", changes == 10)


@torch.no_grad()
def test_steps_beyond_256_positions_equal_the_full_decoder(random_model: Make, random_source: Source) -> None:
    rng = np.random.default_rng(3)
    model = random_model(rng, num_decoder_layers=2)
    (src, keep), tokens = random_source(rng, 2), torch.from_numpy(rng.integers(0, 11, (2, 300)))
    state = model.prefill(src, keep)
    stepwise = torch.stack([model.decode_step(tokens[:, t], state) for t in range(300)], dim=1)
    torch.testing.assert_close(stepwise, model(src, tokens, keep), rtol=0, atol=1e-12)
