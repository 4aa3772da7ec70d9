"""The page in a real browser: every control is used, and labels that are code stay labels.

Needs Chromium and the package playwright (`pip install .[browser]`); skips without them.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alignment.cases import HOSTILE, SCRIPTS, view
from nmt.alignment.page import write_page
from nmt.alignment.view import Choice, Maps, entropy_text

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]
QUIET = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
MORE_QUIET = "--disable-component-update --disable-sync"
SRC, TGT = ["the", "small", "dog", "sleeps"], ["der", "kleine", "hund", "schläft", "."]


class Opened:
    """A page in the browser, with all that went wrong in it."""

    def __init__(self, browser: Any, path: Path, scheme: str = "light") -> None:
        self.tab = browser.new_context(color_scheme=scheme, viewport={"width": 1100, "height": 900}).new_page()
        self.tab.set_default_timeout(15_000)
        self.faults: list[str] = []
        self.tab.on("console", lambda message: self.faults.append(message.text))
        self.tab.on("pageerror", lambda error: self.faults.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.faults.append("dialog"), dialog.dismiss()))
        self.tab.on("request", lambda request: self.faults.append(request.url) if "#" not in request.url else None)
        self.tab.goto(f"file://{path}")
        self.faults.remove(f"file://{path}")  # the one request that is right

    def panel(self, number: int = 0) -> Any:
        """Of one model."""
        return self.tab.locator("section").nth(number)

    def word(self, side: str, index: int, panel: int = 0) -> Any:
        """A word of what is looked at ("columns") or of what looks ("rows")."""
        return self.panel(panel).locator(".words").nth(int(side == "rows")).locator("span").nth(index)

    def classes(self, side: str, index: int) -> str:
        """How a word is marked."""
        return self.word(side, index).get_attribute("class") or ""

    def looks(self, panel: int = 0) -> str:
        """What the page says of the word pointed at."""
        return re.sub("[\u2068\u2069]", "", self.panel(panel).locator(".looks").inner_text()).replace("\xa0", " ")

    def shades(self, side: str) -> list[float]:
        """How dark each word is."""
        spans = self.panel().locator(".words").nth(int(side == "rows")).locator("span").all()
        colours = [span.evaluate("span => span.style.background") for span in spans]
        return [float(colour.rstrip(")").split("/")[1]) if "/" in colour else _alpha(colour) for colour in colours]


def _alpha(colour: str) -> float:
    return float(colour.rstrip(")").split(",")[3]) if colour.count(",") == 3 else 0.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=[*QUIET.split(), *MORE_QUIET.split()])
        yield chromium
        chromium.close()


def best_of(maps: Maps, weights: np.ndarray, row: int) -> str:
    """As the page says it: the first of what a row looks at."""
    column = int(weights[row].argmax())
    weight = 100 * weights[row, column]
    return f"{maps.rows[row]} looks at {maps.columns[column]} {weight:.{int(weight < 9.95)}f} %"


def test_every_control(browser: Any, tmp_path: Path, figure: Callable[..., None]) -> None:
    pairs = [view(SRC, TGT, "one", (3, 4)), view(SRC, TGT[::-1], "two", (2, 2))]
    write_page(pairs, tmp_path / "a.html", "cross", Choice(2, None))
    page = Opened(browser, tmp_path / "a.html")
    cross, decoder = pairs[0].maps["cross"], pairs[0].maps["decoder"]
    first = page.panel()
    done: dict[str, bool] = {}

    def entropy_is(maps: Maps, choice: Choice) -> bool:
        return bool(first.locator(".entropy").inner_text() == entropy_text(choice.of(maps)))

    page.word("rows", 1).hover()
    done["what is asked for is shown first"] = entropy_is(cross, Choice(2, None))
    weights = Choice(2, None).of(cross).mean((0, 1))
    done["hover a target word"] = page.looks().startswith(best_of(cross, weights, 1))
    shades = np.array(page.shades("columns"))
    done["shades go by weight"] = bool((np.argsort(shades) == np.argsort(weights[1])).all())
    page.word("columns", 2).hover()
    top = cross.rows[int(weights[:, 2].argmax())]
    done["hover a source word"] = page.looks().startswith(f"dog is looked at by {top} ")
    done["the other model shows the same source word"] = page.looks(1).startswith("dog is looked at by ")
    page.word("rows", 1).hover()
    done["and not another target word"] = page.looks(1) == ""

    top_weight = weights.max()
    most = first.locator(".scale").inner_text().replace("\xa0", " ").split("\n")[-1]
    done["the scale is told"] = most.endswith("100 %" if top_weight >= 0.5 else f"{100 * top_weight:.0f} %")
    first.locator(".layer").select_option("3")
    done["pick a layer"] = entropy_is(cross, Choice(3, None))
    first.locator(".head").select_option("2")
    done["pick a head"] = entropy_is(cross, Choice(3, 2))
    first.locator(".heads button").nth(4).click()
    done["pick from the overview"] = entropy_is(cross, Choice(2, 1))
    pressed = first.locator(".heads button[aria-pressed=true]")
    done["which is marked"] = pressed.count() == 1 and "L2 H1 " in pressed.inner_text()
    first.locator(".heads button").nth(4).click()
    done["a second click is the mean"] = entropy_is(cross, Choice())
    done["the other model keeps its own"] = page.panel(1).locator(".layer").input_value() == "2"

    page.word("rows", 0).hover()
    sure = page.classes("columns", 0)
    page.word("rows", 5).hover()
    done["gold links"] = "sure" in sure and "possible" in page.classes("columns", 4)

    page.tab.locator("#kind").select_option(label="decoder self-attention")
    page.word("rows", 1).hover()
    hidden = ["hidden" in page.classes("columns", column) for column in range(6)]
    done["pick a kind: later words are hidden"] = hidden == [False, False, True, True, True, True]
    done["its words"] = page.looks().startswith(best_of(decoder, Choice().of(decoder).mean((0, 1)), 1))
    page.tab.locator("#kind").select_option(label="encoder self-attention")
    done["another kind"] = entropy_is(pairs[0].maps["encoder"], Choice())
    page.tab.locator("#kind").select_option(label="cross-attention")

    page.word("rows", 0).focus()
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("ArrowRight")
    done["arrow keys"] = page.looks().startswith("hund looks at ")
    page.tab.keyboard.press("End")
    done["the last word"] = page.looks().startswith("</s> looks at ")
    page.tab.keyboard.press("Shift+Tab")
    done["a line is one stop"] = page.looks().startswith("the is looked at by ")

    canvas = first.locator(".map canvas")
    box = canvas.bounding_box()
    cell = 44  # the largest: there is room
    canvas.hover(position={"x": box["width"] - 10, "y": box["height"] - 1.5 * cell})  # last column, last row but one
    done["the map"] = page.looks().startswith(". looks at ") and canvas.get_attribute("title").startswith(". → </s>: ")
    done["no faults, nothing fetched"] = page.faults == []
    failed = [name for name, right in done.items() if not right]
    figure("page_clicks", f"{len(done) - len(failed)} of {len(done)} {failed or ''}".strip(), "all", not failed)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_and_right_to_left(browser: Any, tmp_path: Path, scheme: str) -> None:
    write_page([view(SCRIPTS["Arabic"].split(), SRC)], tmp_path / "a.html", "cross", Choice())
    page = Opened(browser, tmp_path / "a.html", scheme)
    look = page.tab.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    ink, paper = (sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in look)
    assert (paper > 200 and ink < 60) if scheme == "light" else (paper < 60 and ink > 200)
    first, second = (page.word("columns", place).bounding_box()["x"] for place in (0, 1))
    assert first > second and page.word("rows", 0).bounding_box()["x"] < page.word("rows", 1).bounding_box()["x"]
    page.word("columns", 0).focus()
    page.tab.keyboard.press("ArrowLeft")  # goes on to the left
    assert page.looks().startswith(SCRIPTS["Arabic"].split()[1]) and page.faults == []


def test_hostile_labels_run_nothing(browser: Any, tmp_path: Path, figure: Callable[..., None]) -> None:
    path = tmp_path / "a.html"
    write_page([view(HOSTILE, HOSTILE[::-1], HOSTILE[0]), view(HOSTILE, SRC, HOSTILE[1])], path, "cross", Choice())
    whole = path.read_text("utf-8")

    def executed(text: str) -> tuple[int, Opened]:
        path.write_text(text, "utf-8")
        page = Opened(browser, path)
        for side in ("columns", "rows"):
            for index in range(page.panel().locator(".words").nth(int(side == "rows")).locator("span").count()):
                page.word(side, index).hover()
        return int(page.tab.evaluate("window.hit !== undefined")), page

    hits, page = executed(whole)
    shown = [page.word("columns", index).inner_text() for index in range(2)]
    assert shown == HOSTILE[:2] and page.faults == [] and HOSTILE[0].endswith(page.panel().locator("h2").inner_text())
    without_policy = re.sub(r"<meta http-equiv[^>]*>", "", whole)
    raw = without_policy.replace("\\u003c", "<").replace("\\u003e", ">")
    controls = executed(without_policy)[0], executed(raw)[0]
    figure(
        "page_hostile_labels", f"{hits} of {len(HOSTILE)} executed, unescaped without policy {controls[1]}", "0, 1",
        (hits, *controls) == (0, 0, 1),
    )  # fmt: skip
    held = whole.replace("\\u003c", "<").replace("\\u003e", ">")
    assert executed(held)[0] == 0  # the policy alone keeps scripts off, too


def test_300_words_in_six_layers_of_eight_heads(browser: Any, tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(299)]
    write_page([view(words, words, shape=(6, 8))], tmp_path / "a.html", "decoder", Choice(6, 8))
    page = Opened(browser, tmp_path / "a.html")
    page.word("rows", 40).hover()
    assert page.looks().startswith("w40 looks at ") and page.faults == []
    assert page.panel().locator(".heads button").count() == 48
