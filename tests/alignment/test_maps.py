"""Attention maps against weights computed by hand from the projections."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.alignment.maps import pair_maps
from nmt.bundle import Bundle
from nmt.decoding.translator import Translator
from nmt.model.attention import CrossAttention
from tiny import one_thread, random_bundle

SRC, TGT = "the small dog sees a red house", "haus rot ein sieht hund klein der"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return random_bundle(num_decoder_layers=3, num_heads=4)


def pair(bundle: Bundle) -> tuple[list[int], list[int]]:
    return bundle.tokenizer.encode_src([SRC])[0], bundle.tokenizer.encode_tgt([TGT])[0]


def test_shape_and_sums(bundle: Bundle) -> None:
    src_ids, tgt_ids = pair(bundle)
    maps = pair_maps(bundle, src_ids, tgt_ids).cross
    assert maps.shape == (3, 4, len(tgt_ids), len(src_ids))
    assert maps.dtype == np.float64 and (maps >= 0).all()
    np.testing.assert_allclose(maps.sum(-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("layer", [0, 2])
def test_maps_equal_weights_from_the_projections(bundle: Bundle, layer: int) -> None:
    src_ids, tgt_ids = pair(bundle)
    module = bundle.model.decoder[layer].cross_attention
    assert isinstance(module, CrossAttention)
    seen: dict[str, NDArray[np.float64]] = {}

    def note(name: str) -> object:
        def hook(_: object, inputs: tuple[Tensor, ...], __: object) -> None:
            seen[name] = inputs[0][0].double().numpy()

        return hook

    handles = [module.q.register_forward_hook(note("q")), module.kv.register_forward_hook(note("kv"))]
    maps = pair_maps(bundle, src_ids, tgt_ids).cross
    for handle in handles:
        handle.remove()

    def project(x: NDArray[np.float64], linear: torch.nn.Linear, rows: slice) -> NDArray[np.float64]:
        return x @ linear.weight[rows].detach().double().numpy().T + linear.bias[rows].detach().double().numpy()

    queries, keys = project(seen["q"], module.q, slice(None)), project(seen["kv"], module.kv, slice(0, 16))
    naive = np.zeros((4, len(tgt_ids), len(src_ids)))
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        for t in range(len(tgt_ids)):
            scores = np.array([queries[t, part] @ keys[s, part] / 2.0 for s in range(len(src_ids))])
            weights = np.exp(scores - scores.max())
            naive[head, t] = weights / weights.sum()
    np.testing.assert_allclose(maps[layer], naive, atol=1e-6)
    assert np.abs(maps[layer] - naive[::-1]).max() > 1e-3  # the control: other heads look elsewhere


def test_row_t_belongs_to_tgt_ids_t(bundle: Bundle) -> None:
    """Row t was computed before token t was seen: another token there changes later rows alone."""
    src_ids, tgt_ids = pair(bundle)
    other = [*tgt_ids[:3], tgt_ids[3] + 1, *tgt_ids[4:]]
    one, two = pair_maps(bundle, src_ids, tgt_ids).cross, pair_maps(bundle, src_ids, other).cross
    np.testing.assert_array_equal(one[:, :, :4], two[:, :, :4])
    assert np.abs(one[:, :, 4] - two[:, :, 4]).max() > 1e-4


def test_recording_leaves_the_translation_unchanged(bundle: Bundle) -> None:
    translator = Translator(bundle)
    before = translator.translate([SRC])
    src_ids, tgt_ids = pair(bundle)
    first = pair_maps(bundle, src_ids, tgt_ids).cross
    assert translator.translate([SRC]) == before
    np.testing.assert_array_equal(pair_maps(bundle, src_ids, tgt_ids).cross, first)
    assert all(module.recorded is None for module in bundle.model.modules() if isinstance(module, CrossAttention))
