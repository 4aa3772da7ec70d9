"""The page as a file: its numbers, its policy, its text. What it does in a browser: test_browser.py."""

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from alignment.cases import HOSTILE, view
from nmt.alignment import page
from nmt.alignment.page import write_page
from nmt.alignment.view import Choice, Maps, entropy_bits
from nmt.errors import StorageError


def written(path: Path) -> tuple[str, dict[str, object]]:
    text = path.read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return text, json.loads(data)


def numbers(record: dict[str, object], maps: Maps) -> np.ndarray:
    raw = zlib.decompress(base64.b64decode(record["weights"]))
    steps = record["steps"]
    return np.frombuffer(raw, "<u2" if steps > 255 else "u1").reshape(maps.weights.shape) / steps


def test_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = view(["a", "b", "c"], ["x", "y"])
    for most_fine, error in ((page._MOST_FINE, 1e-5), (0, 0.5 / 255)):
        monkeypatch.setattr(page, "_MOST_FINE", most_fine)
        write_page([pair], tmp_path / "a.html", "decoder", Choice(2, 1))
        _, record = written(tmp_path / "a.html")
        assert (record["kind"], record["layer"], record["head"]) == ("decoder", 2, 1)
        for kind, maps in pair.maps.items():
            of_kind = record["models"][0]["kinds"][kind]
            assert np.abs(numbers(of_kind, maps) - maps.weights).max() <= error + 1e-9
            entropy = np.array(of_kind["entropy"])
            np.testing.assert_allclose(entropy[1:, 1:], entropy_bits(maps.weights), atol=1e-4)
            np.testing.assert_allclose(entropy[0, 0], entropy_bits(maps.weights).mean(), atol=1e-4)
        assert record["models"][0]["kinds"]["decoder"]["causal"] == [0, 1, 2]
        assert record["models"][0]["kinds"]["cross"]["causal"] is None


def test_the_policy_allows_this_script_and_style_alone(tmp_path: Path) -> None:
    write_page([view(["a"], ["x"])], tmp_path / "a.html", "cross", Choice())
    text, _ = written(tmp_path / "a.html")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    for tag in ("style", "script"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"https?:|\beval\b|innerHTML|insertAdjacent|document\.write| style=| on\w+=", text)


def test_hostile_labels_stay_in_the_data(tmp_path: Path) -> None:
    pair = view(HOSTILE, HOSTILE[::-1], name=HOSTILE[0])
    write_page([pair], tmp_path / "a.html", "cross", Choice())
    write_page([view(["a"], ["x"])], tmp_path / "b.html", "cross", Choice())
    (text, record), (plain, _) = written(tmp_path / "a.html"), written(tmp_path / "b.html")
    assert record["models"][0]["kinds"]["cross"]["columns"] == [*HOSTILE, "</s>"]
    assert text.count("<") == plain.count("<") and "window.hit=1" in text


def test_models_are_named_as_short_as_tells_them_apart(tmp_path: Path) -> None:
    def names(*paths: str) -> list[str]:
        write_page([view(["a"], ["x"], name=path) for path in paths], tmp_path / "a.html", "cross", Choice())
        record = written(tmp_path / "a.html")[1]
        assert [model["path"] for model in record["models"]] == list(paths)
        return [model["name"] for model in record["models"]]

    assert names("/long/way/runs/one", "two") == ["runs/one", "two"]
    assert names("/a/runs/one", "/b/runs/one") == ["/a/runs/one", "/b/runs/one"]
    assert names("/a/runs/one", "/a/runs/one") == ["runs/one", "runs/one"]


def test_an_unwritable_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a\.html"):
        write_page([view(["a"], ["x"])], tmp_path / "none" / "a.html", "cross", Choice())


@pytest.mark.slow
def test_a_page_of_300_words_is_sensible(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(299)]
    write_page([view(words, words, shape=(6, 8))], tmp_path / "a.html", "cross", Choice())
    assert (tmp_path / "a.html").stat().st_size < 10_000_000
