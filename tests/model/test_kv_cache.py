"""Decoding step by step, as the search does, against decoding all at once."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.model.kv_cache import DecoderState, LayerCache, Slots
from nmt.model.recurrent import RecurrentState
from nmt.model.transformer import Transformer
from oracle import skip_reorder, take_a_slot_in_use

Make = Callable[..., Transformer]
Source = Callable[[np.random.Generator, int], tuple[Tensor, Tensor]]


@torch.no_grad()
def cache_difference(
    make: Make, source: Source, cases: int, dtype: torch.dtype = torch.double, longest: int = 130
) -> float:
    """The largest difference of a stepwise logit from that of the full decoder on the prefix's own history.

    After every step prefixes are reordered, as many as before or others, and sentences leave. Every sixtieth case runs
    over the `longest` positions, for which buffers grow.
    """
    rng, worst = np.random.default_rng(1), 0.0
    for case in range(cases):
        model, batch, width = make(rng).to(dtype), int(rng.integers(1, 6)), int(rng.integers(1, 5))
        src, keep = source(rng, batch)
        memory, state = model.encode(src, keep), model.prefill(src, keep, width)
        history_BWT = torch.empty(batch, 1, 0, dtype=torch.long)
        for _ in range(longest if case % 60 == 0 else int(rng.integers(2, 9))):
            batch, prefixes, _ = history_BWT.shape
            newest_BW = torch.from_numpy(rng.integers(0, 11, (batch, prefixes)))
            history_BWT = torch.cat([history_BWT, newest_BW[..., None]], dim=2)
            logits = model.decode_step(newest_BW, state)
            repeated = (t.repeat_interleave(prefixes, dim=0) for t in (memory, keep))
            expected = model.output(model.decode(history_BWT.flatten(0, 1), *repeated)[:, -1]).view_as(logits)
            assert 0.1 < expected.std() < 10  # an absolute difference means something
            worst = max(worst, float((logits - expected).abs().max()))
            prefixes = int(rng.integers(1, width + 1)) if rng.random() < 0.3 else prefixes
            parents_BW = torch.from_numpy(rng.integers(0, history_BWT.shape[1], (batch, prefixes)))
            state.reorder(parents_BW)
            history_BWT = history_BWT.gather(1, parents_BW[..., None].expand(-1, -1, history_BWT.shape[2]))
            if rng.random() < 0.3:
                staying = torch.from_numpy(np.flatnonzero(rng.random(batch) < 0.7))
                staying = staying if len(staying) else torch.tensor([int(rng.integers(batch))])
                state.keep_sentences(staying)
                history_BWT, memory, keep = history_BWT[staying], memory[staying], keep[staying]
    return worst


@pytest.mark.parametrize(
    ("name", "kind", "cases", "longest"),
    [
        ("kv_cache", "transformer", 60, 130),
        pytest.param("kv_cache", "transformer", 300, 130, marks=pytest.mark.slow),
        ("recurrent_state", "rnn", 20, 9),
    ],
)
def test_steps_equal_the_full_decoder(
    name: str,
    kind: str,
    cases: int,
    longest: int,
    figure: Callable[..., None],
    random_model: Make,
    random_source: Source,
) -> None:
    worst = cache_difference(partial(random_model, type=kind), random_source, cases, longest=longest)
    figure(
        f"{name}_max_difference",
        f"{worst:.0e} over {cases} cases",
        "fp64 <= 1e-12, every step, prefixes reordered and sentences dropped",
        worst <= 1e-12,
    )


@pytest.mark.parametrize("cases", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_steps_equal_the_full_decoder_in_float32(
    cases: int, figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    worst = cache_difference(random_model, random_source, cases, torch.float)
    figure("kv_cache_max_difference_fp32", f"{worst:.0e} over {cases} cases", "<= 1e-5", worst <= 1e-5)


def keep_wrong_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_sentences = DecoderState.keep_sentences

    def broken(self: DecoderState, sentences: Tensor) -> None:
        cross = [(k.clone(), v.clone()) for k, v in self.cross]
        keep_sentences(self, sentences)
        self.cross = [(k[: len(sentences)], v[: len(sentences)]) for k, v in cross]

    monkeypatch.setattr(DecoderState, "keep_sentences", broken)


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    embed = Transformer._embed_tgt
    monkeypatch.setattr(Transformer, "_embed_tgt", lambda self, ids, start, positions: embed(self, ids, 0, positions))


def lose_all_when_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    grow = LayerCache._grow

    def broken(self: LayerCache, like: Tensor) -> None:
        if self._buffer is not None:
            self._buffer.zero_()
        grow(self, like)

    monkeypatch.setattr(LayerCache, "_grow", broken)


@pytest.mark.parametrize(
    "breakage", [skip_reorder, keep_wrong_memory, stand_still, lose_all_when_growing, take_a_slot_in_use]
)
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


@pytest.mark.parametrize("forgotten", ["reorder", "keep_sentences"])
def test_the_comparison_of_recurrent_states_sees(
    forgotten: str,
    figure: Callable[..., None],
    random_model: Make,
    random_source: Source,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A state of which the cells stay where they were."""
    move = getattr(RecurrentState, forgotten)

    def broken(self: RecurrentState, places: Tensor) -> None:
        before = self.layers
        move(self, places)
        stayed = [tuple(each[: len(self.fed_BWD)] for each in state) for state in before]
        if stayed[0][0].shape == self.layers[0][0].shape:
            self.layers = stayed

    monkeypatch.setattr(RecurrentState, forgotten, broken)
    difference = cache_difference(partial(random_model, type="rnn"), random_source, 10, longest=9)
    figure(f"recurrent_state_{forgotten}_difference", f"{difference:.2f}", "> 1e-2", difference > 1e-2)


def slots_after(steps: int) -> int:
    """Of four prefixes that always go on from the best one."""
    slots = Slots(4, 64)
    for _ in range(steps):
        slots.advance(torch.zeros(3, 4, dtype=torch.long))
        slots.reorder(torch.zeros(3, 4, dtype=torch.long))
    return int(slots.newest_BW.max()) + 1


def test_slots_are_written_again(figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    count = slots_after(20)

    def never_again(self: Slots, like_BW: Tensor) -> Tensor:
        first = 0 if self._table_BWT is None else 4 * self._table_BWT.shape[2]
        return torch.arange(first, first + 4).expand(like_BW.shape)

    monkeypatch.setattr(Slots, "_lowest_free", never_again)
    shown = f"{count} for 20 positions; {slots_after(20)} if none were"
    figure("kv_cache_slots", shown, "<= 23; > 23", count <= 23 < slots_after(20))


@torch.no_grad()
def poison_changes(make: Make, source: Source, cases: int, poison: float) -> int:
    """Cases in which filling all slots that no prefix needs, passed ones and those to come, moves a logit by a bit."""
    rng, changes = np.random.default_rng(2), 0
    for _ in range(cases):
        model = make(rng)
        src, keep = source(rng, 3)
        clean, poisoned = model.prefill(src, keep, 2), model.prefill(src, keep, 2)
        equal = True
        for _ in range(6):
            tokens_BW = torch.from_numpy(rng.integers(0, 11, (3, 2)))
            equal &= torch.equal(model.decode_step(tokens_BW, clean), model.decode_step(tokens_BW, poisoned))
            parents_BW = torch.from_numpy(rng.integers(0, 2, (3, 2)))
            for state in (clean, poisoned):
                state.reorder(parents_BW)
            needed_BWT = poisoned.slots._table_BWT
            for layer in poisoned.layers:
                needed_BC = torch.zeros(3, layer._buffer.shape[3]).scatter(1, needed_BWT.flatten(1), 1.0)
                layer._buffer.masked_fill_(needed_BC[:, None, :, None] == 0, poison)
        changes += not equal
    return changes


def test_a_slot_that_is_not_needed_has_no_weight(
    figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    changes = poison_changes(random_model, random_source, 30, 1e4)
    figure("kv_cache_poison_changes", f"{changes} of 30", "0 of 30", changes == 0)


def test_the_poison_check_sees_a_missing_mask(
    figure: Callable[..., None], random_model: Make, random_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slots, "bias", lambda self, dtype: None)
    changes = poison_changes(random_model, random_source, 10, 1e4)
    figure("kv_cache_poison_control_changes", f"{changes} of 10", "10 of 10 without a mask", changes == 10)


@torch.no_grad()
def test_steps_beyond_256_positions_equal_the_full_decoder(random_model: Make, random_source: Source) -> None:
    rng = np.random.default_rng(3)
    model = random_model(rng, num_decoder_layers=2)
    (src, keep), tokens = random_source(rng, 2), torch.from_numpy(rng.integers(0, 11, (2, 300)))
    state = model.prefill(src, keep)
    stepwise = torch.cat([model.decode_step(tokens[:, t : t + 1], state) for t in range(300)], dim=1)
    torch.testing.assert_close(stepwise, model(src, tokens, keep), rtol=0, atol=1e-12)
