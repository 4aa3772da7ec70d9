import numpy as np
import pytest

from nmt.alignment.words import merge_to_words, word_spans
from nmt.errors import DataError


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([], []),
        (["▁the", "▁c", "at", "</s>"], [(0, 1), (1, 3), (3, 4)]),
        (["▁", "你好", "吗", "</s>"], [(0, 3), (3, 4)]),
        (["no", "mark", "▁x"], [(0, 2), (2, 3)]),
        (["▁a", "<0xE2>", "<0x82>", "<0xAC>", "b", "▁c"], [(0, 5), (5, 6)]),
        (["<0xF0>", "<0x9F>", "▁c"], [(0, 2), (2, 3)]),
        (["<2de>", "ab", "c", "<unk>", "d", "</s>", "</s>"], [(0, 1), (1, 5), (5, 6), (6, 7)]),
        (["▁", "▁", "▁x"], [(0, 1), (1, 2), (2, 3)]),
        (["</s>"], [(0, 1)]),
    ],
)
def test_word_spans(pieces: list[str], words: list[tuple[int, int]]) -> None:
    assert word_spans(pieces) == words


def test_target_pieces_are_averaged_and_source_pieces_summed() -> None:
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3], [0.0, 0.0, 1.0]])
    merged, src, tgt = merge_to_words(weights, ["▁c", "at", "</s>"], ["▁Kat", "ze", "</s>"])
    np.testing.assert_allclose(merged, [[0.5, 0.5], [0.0, 1.0]])
    assert (src, tgt) == (["cat", "</s>"], ["Katze", "</s>"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_still_sum_to_one(dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(1)
    pool = np.array(["▁a", "b", "▁", "<0xE4>", "</s>", "<unk>", "▁cd", "好"])
    for _ in range(50):
        src, tgt = list(rng.choice(pool, rng.integers(1, 40))), list(rng.choice(pool, rng.integers(1, 40)))
        raw = rng.random((len(tgt), len(src)))
        weights = (raw / raw.sum(1, keepdims=True)).astype(dtype)
        before = weights.copy()
        merged, src_words, tgt_words = merge_to_words(weights, src, tgt)
        assert merged.shape == (len(tgt_words), len(src_words)) == (len(word_spans(tgt)), len(word_spans(src)))
        np.testing.assert_allclose(merged.sum(1), 1.0, atol=1e-2 if dtype is np.float16 else 1e-6)
        np.testing.assert_array_equal(weights, before)


def test_one_piece_a_word_changes_nothing() -> None:
    weights = np.array([[0.25, 0.75], [0.5, 0.5]])
    merged, src, tgt = merge_to_words(weights, ["▁a", "</s>"], ["▁b", "</s>"])
    np.testing.assert_array_equal(merged, weights)
    assert (src, tgt) == (["a", "</s>"], ["b", "</s>"])


def test_labels_decode_bytes() -> None:
    src = ["▁5", "<0xE2>", "<0x82>", "<0xAC>", "▁x", "<0xE2>", "<0x82>", "▁", "▁y", "<0x1B>", "</s>"]
    _, words, _ = merge_to_words(np.ones((1, len(src))), src, ["▁a"])
    assert words == ["5€", "x�", "▁", "y�", "</s>"]


def test_no_pieces_and_wrong_shapes() -> None:
    merged, src, tgt = merge_to_words(np.zeros((0, 2)), ["▁a", "▁b"], [])
    assert (merged.shape, src, tgt) == ((0, 2), ["a", "b"], [])
    assert merge_to_words(np.zeros((2, 0)), [], ["▁a", "▁b"])[0].shape == (2, 0)
    with pytest.raises(DataError, match=r"\(2, 3\).*3 target and 2 source"):
        merge_to_words(np.zeros((2, 3)), ["a", "b"], ["a", "b", "c"])
