"""Labels that are hard to draw, and made-up maps over them: what the tests of pictures and of pages share."""

from collections.abc import Sequence

import numpy as np

from nmt.alignment.view import Link, Maps, PairView

SCRIPTS = {
    "Arabic": "السلام عليكم يا صديقي",
    "Hebrew": "שלום world 12",
    "Chinese": "今天 天气 很好",
    "emoji": "ok 🙂 👩‍👩‍👧",
    "markup": r"$x_1$ 50% \alpha \frac{a}{b} a_b^c <&> -->",
    "one": "a",
}
HOSTILE = [
    "</script><script>window.hit=1</script>",
    "<img src=x onerror=window.hit=2>",
    '"><svg onload=window.hit=3>',
    "';window.hit=4;'",
    "<!--<script>",
    "]]>${window.hit=5}{{data}}",
    "javascript:window.hit=6",
    "\u2028window.hit=7\u2029",
    "\u202eevil\x1b[31m",
    "__proto__",
]


def maps(rows: Sequence[str], columns: Sequence[str], kind: str = "cross", shape: tuple[int, int] = (2, 2)) -> Maps:
    """Random maps, a gold link in the first cell and one that is only possible in the last."""
    seen = np.ones((len(rows), len(columns)), dtype=bool)
    seen = np.tril(seen) if kind == "decoder" else seen
    weights = np.random.default_rng(len(rows)).random((*shape, *seen.shape)) ** 8 * seen + 1e-6 * seen
    weights /= weights.sum(-1, keepdims=True)
    links = (Link(0, 0, True), Link(len(rows) - 1, len(columns) - 1, False)) if kind == "cross" else ()
    return Maps(list(rows), list(columns), (f"{kind} rows", f"{kind} columns"), weights, seen, links)


def view(
    source: Sequence[str], target: Sequence[str], name: str = "model", shape: tuple[int, int] = (2, 2)
) -> PairView:
    """All kinds of attention of a pair."""
    src, tgt = [*source, "</s>"], [*target, "</s>"]
    kinds = {"cross": (tgt, src), "encoder": (src, src), "decoder": (tgt, ["<s>", *target])}
    found = {kind: maps(*labels, kind, shape) for kind, labels in kinds.items()}
    return PairView(name, " ".join(source), " ".join(target), found)
