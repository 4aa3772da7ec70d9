import html
import os
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from alignment.cases import SCRIPTS, maps
from nmt.alignment import plot
from nmt.alignment.plot import plot_attention
from nmt.alignment.view import Link
from nmt.errors import ConfigError, DataError, StorageError
from nmt.pictures import NO_FONT, choose_fonts

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}
HARD = ["$x_1$", "50%", "\\frac{a}{b}", "a_b^c", "-->", "<&>", "new\nline", "\x1b[31m", "\ud800", "", "مرحبا"]


def attention(rows: int, columns: int) -> NDArray[np.float64]:
    raw = np.random.default_rng(0).random((rows, columns)) ** 8
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("suffix", MAGIC)
def test_draws_whole_deterministic_files_and_leaves_settings_alone(suffix: str, tmp_path: Path) -> None:
    matplotlib.rcParams["font.size"] = 13.5  # a user's own setting must neither change nor matter
    settings = dict(matplotlib.rcParams)
    path, again = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix.upper()}"
    weights = attention(len(HARD), len(HARD))
    try:
        assert plot_attention(weights, HARD, HARD, path, title="line 3, $layer$ 5") == []
        assert dict(matplotlib.rcParams) == settings
    finally:
        matplotlib.rcParams["font.size"] = matplotlib.rcParamsDefault["font.size"]
    plot_attention(weights, HARD, HARD, again, title="line 3, $layer$ 5")
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert path.read_bytes() == again.read_bytes()
    assert sorted(os.listdir(tmp_path)) == [path.name, again.name]  # nothing half-written stays behind


def test_svg_is_valid_and_holds_the_labels_as_they_are(tmp_path: Path) -> None:
    plot_attention(attention(1, len(HARD)), HARD, ["z"], tmp_path / "a.svg")
    ET.parse(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")  # matplotlib writes each text as a comment
    for label in ("$x_1$", "50%", "\\frac{a}{b}", "a_b^c", "new�line", "source", "target"):
        assert f"<!-- {label} -->" in text


def test_the_darkest_cell_is_where_the_weight_is(tmp_path: Path) -> None:
    weights = np.zeros((2, 3))
    weights[0, 2] = weights[1, 0] = 1.0
    plot_attention(weights, list("abc"), list("xy"), tmp_path / "a.png")
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).astype(int)
    dark = np.argwhere((np.abs(pixels - [8, 48, 107]) < 4).all(axis=2))  # the end of the "Blues" scale
    # The colour bar's own dark end lies right of the map: of the columns left of it, keep the map's.
    map_right = dark[:, 1].min() + 3 * plot.CELL_IN * plot.DPI
    cells = dark[dark[:, 1] < map_right]
    right = cells[cells[:, 1] > map_right - 1.2 * plot.CELL_IN * plot.DPI]
    left = cells[cells[:, 1] < map_right - 1.8 * plot.CELL_IN * plot.DPI]
    assert len(right) > 500 and len(left) > 500
    assert right[:, 0].mean() < left[:, 0].mean()  # the first target row is on top


@pytest.mark.parametrize("suffix", MAGIC)
def test_one_cell(suffix: str, tmp_path: Path) -> None:
    assert plot_attention(np.ones((1, 1)), ["a"], ["b"], tmp_path / f"a.{suffix}") == []


@pytest.mark.slow
def test_300_by_300_shows_every_label_within_a_bounded_picture(tmp_path: Path) -> None:
    labels = [f"w{i}" for i in range(300)]
    assert plot_attention(attention(300, 300).astype(np.float32), labels, labels, tmp_path / "a.png") == []
    width, height = Image.open(tmp_path / "a.png").size
    assert 3000 < width < 6000 and 3000 < height < 6000


def test_too_many_and_too_long_labels_are_thinned_and_cut_with_a_note(tmp_path: Path) -> None:
    labels = ["x" * 5000, *(f"w{i}" for i in range(699))]
    notes = plot_attention(attention(2, 700), labels, ["a", "b"], tmp_path / "a.svg")
    assert notes == [
        "1 source labels cut to 40 characters",
        "700 source labels are too many to read: 1 in 3 is shown",
    ]
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<!-- w2 -->" in text and "<!-- w0 -->" not in text
    assert f"<!-- {notes[1]}. -->" in text and notes[0] not in text


def test_glyphs_come_from_any_installed_font_else_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    from matplotlib import font_manager

    def install(*families: str) -> None:
        monkeypatch.setattr(font_manager.fontManager, "ttflist", [f for f in fonts if f.name in families])

    fonts = font_manager.fontManager.ttflist
    # DejaVu Sans lacks U+210A; STIXGeneral, which comes with matplotlib, has it.
    install("DejaVu Sans", "STIXGeneral")
    assert plot_attention(np.ones((1, 1)), ["ℊ"], ["\u200d é ️"], tmp_path / "a.png") == []
    assert choose_fonts("aℊ") == (["DejaVu Sans", "STIXGeneral"], "")
    install("DejaVu Sans")
    (note,) = plot_attention(np.ones((1, 2)), ["你好", "b"], ["🙂"], tmp_path / "a.png")
    assert note.startswith(f"{NO_FONT} 你 好 🙂;") and "Noto Sans CJK" in note and "-o FILE.html" in note
    assert not recwarn.list  # said in the note, not by matplotlib


def test_needs_no_display_and_never_loads_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from pathlib import Path; from nmt.alignment.plot import plot_attention;"
        "assert 'matplotlib' not in sys.modules;"
        "plot_attention(np.ones((1, 1)), ['a'], ['b'], Path(sys.argv[1]));"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")}
    env["PYTHONPATH"] = str(Path(plot.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], env=env, check=True)
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_errors(tmp_path: Path) -> None:
    one = np.ones((1, 1))
    for name in ("a.jpg", "a", "png"):
        with pytest.raises(ConfigError, match=r"\.png, \.svg or \.pdf"):
            plot_attention(one, ["a"], ["b"], tmp_path / name)
    with pytest.raises(DataError, match="0 source, 1 target"):
        plot_attention(np.ones((1, 0)), [], ["b"], tmp_path / "a.png")
    with pytest.raises(DataError, match="1 source, 0 target"):
        plot_attention(np.ones((0, 1)), ["a"], [], tmp_path / "a.png")
    with pytest.raises(DataError, match=r"shape \(1, 1\).*1 target and 2 source"):
        plot_attention(one, ["a", "b"], ["b"], tmp_path / "a.png")
    with pytest.raises(DataError, match="NaN"):
        plot_attention(one * np.nan, ["a"], ["b"], tmp_path / "a.png")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", MAGIC)
def test_an_unwritable_path_names_the_file_and_keeps_what_was_there(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / f"folder.{suffix}").mkdir()
    for bad in (tmp_path / f"file/a.{suffix}", tmp_path / f"none/a.{suffix}", tmp_path / f"folder.{suffix}"):
        with pytest.raises(StorageError, match=bad.name):
            plot_attention(np.ones((1, 1)), ["a"], ["b"], bad)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", f"folder.{suffix}"]


@pytest.mark.parametrize("suffixes", [("svg",), pytest.param(tuple(MAGIC), marks=pytest.mark.slow)])
def test_every_script_is_written_and_matplotlib_is_left_as_it_was(
    suffixes: tuple[str, ...], tmp_path: Path, figure: Callable[..., None]
) -> None:
    from matplotlib import font_manager

    def state() -> tuple[object, ...]:
        return dict(matplotlib.rcParams), [*map(str, font_manager.fontManager.ttflist)], [*warnings.filters]

    def draw(kind: str, labels: list[str], path: Path) -> None:
        found = maps(labels, labels, kind)
        plot_attention(found.weights.mean((0, 1)), labels, labels, path, seen=found.seen, links=found.links, foot="f")

    before, backend = state(), sys.modules.get("matplotlib.pyplot")
    cases = [(labels.split(), suffix) for labels in SCRIPTS.values() for suffix in suffixes]
    for number, (labels, suffix) in enumerate(cases):
        path = tmp_path / f"{number}.{suffix}"
        draw(("cross", "decoder")[number % 2], labels, path)
        if suffix == "svg":
            ET.parse(path)
            text = path.read_text("utf-8")  # each label as it was given, not as some library shaped it
            assert all(f"<!-- {html.escape(label, quote=False).replace('--', '- -')} -->" in text for label in labels)
    written = len(list(tmp_path.iterdir()))
    figure("attention_pictures", f"{written} of {len(cases)}", "all", written == len(cases))
    same = state() == before and sys.modules.get("matplotlib.pyplot") is backend
    figure("matplotlib_state", "unchanged" if same else "changed", "unchanged", same)
    with matplotlib.rc_context({"font.size": 3}):
        assert state() != before  # the control


def test_right_to_left_text_is_shaped_and_ordered_once(tmp_path: Path) -> None:
    labels = ["א", "ב", "אב", "ل", "ا", "لا"]
    plot_attention(np.ones((len(labels), 1)), ["x"], labels, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text("utf-8")

    def glyphs(label: str) -> list[str]:
        """The outlines that are drawn for a label, from left to right."""
        drawn = text.split(f"<!-- {label} -->")[1].split("<!--")[0]
        uses = re.findall(r'<use xlink:href="(#DejaVu[^"]*)"(?: transform="translate\(([-0-9.]+))?', drawn)
        return [name for name, _ in sorted(uses, key=lambda use: float(use[1] or 0))]

    alef, bet, both, lam, arabic_alef, ligature = map(glyphs, labels)
    assert len(alef) == len(bet) == 1 and both == bet + alef
    assert len(lam) == len(arabic_alef) == len(ligature) == 1 and ligature not in (lam, arabic_alef)


def test_a_grid_has_its_labels_once_and_a_caption_each(tmp_path: Path) -> None:
    found = maps(["x", "y", "zz"], ["<s>", "x", "y"], "decoder", (2, 3))
    captions = [[f"L{layer} H{head}" for head in range(3)] for layer in range(2)]
    notes = plot_attention(
        found.weights, found.columns, found.rows, tmp_path / "a.svg", seen=found.seen, captions=captions, foot="a foot"
    )
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert notes == [] and text.count("<!-- zz -->") == 2 and text.count("<!-- &lt;s&gt; -->") == 3
    assert all(f"<!-- {caption} -->" in text for row in captions for caption in row) and "<!-- a foot -->" in text


def test_a_long_title_makes_a_small_picture_no_wider(tmp_path: Path) -> None:
    def width(title: str, foot: str) -> int:
        plot_attention(np.eye(3), list("abc"), list("xyz"), tmp_path / "a.png", title=title, foot=foot)
        return Image.open(tmp_path / "a.png").size[0]

    assert width("mean entropy of 8 heads " * 5, "weights are no explanation " * 6) < 1.4 * width("", "")
    assert width("m" * 120, "") > 1.4 * width("", "")  # the control: letters wider than reckoned with


def test_a_faint_map_of_a_grid_goes_by_its_own_peak(tmp_path: Path) -> None:
    clear, faint = np.eye(4), np.full((4, 4), 0.2) + 0.2 * np.eye(4)
    plot_attention(
        np.array([[clear, faint]]), list("abcd"), list("wxyz"), tmp_path / "a.svg", captions=[["L1 H1", "L1 H2"]]
    )
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert text.count("darkest 0.4") == 1 and "darkest: 1, or as said" in text
    plot_attention(np.array([[clear, clear]]), list("abcd"), list("wxyz"), tmp_path / "b.svg", captions=[["", ""]])
    assert "darkest" not in (tmp_path / "b.svg").read_text("utf-8")


def test_hidden_cells_are_grey_and_gold_links_outlined(tmp_path: Path) -> None:
    def colours(**look: object) -> set[tuple[int, ...]]:
        plot_attention(np.array([[1.0, 0.0], [0.5, 0.5]]), ["a", "b"], ["x", "y"], tmp_path / "a.png", **look)
        pixels = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).reshape(-1, 3)
        found, counts = np.unique(pixels, axis=0, return_counts=True)
        return {tuple(colour) for colour, count in zip(found.tolist(), counts, strict=True) if count > 100}

    grey, orange = (220, 220, 220), (217, 95, 2)
    assert colours().isdisjoint({grey, orange})
    assert {grey, orange} <= colours(seen=np.tril(np.ones((2, 2), dtype=bool)), links=[Link(1, 0, True)])
    dashed = plot_attention(np.ones((1, 1)), ["a"], ["x"], tmp_path / "a.svg", links=[Link(0, 0, False)])
    assert dashed == [] and "stroke-dasharray" in (tmp_path / "a.svg").read_text()
