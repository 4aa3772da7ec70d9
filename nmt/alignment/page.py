"""One interactive page of attention maps that needs nothing else: page.html with the numbers in it.

Nothing but the page's own script and style may run (a Content-Security-Policy names their hashes), and the script puts
text in as text. The numbers stand in a block of JSON, in which "<" is escaped, so that no label can end it.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from nmt.alignment.view import CAUTION, NAMES, Choice, Maps, PairView, entropy_bits
from nmt.storage.atomic import replace_file

_FINE, _COARSE = 65535, 255  # steps of a weight
_MOST_FINE = 1_000_000  # weights; a page of more has coarse steps


def write_page(views: Sequence[PairView], path: Path, kind: str, choice: Choice) -> None:
    """Write the maps of a sentence pair, of one model or of several side by side, as a page.

    Args:
        kind, choice: what is shown at first.
    Raises: StorageError.
    """
    weights = sum(maps.weights.size for view in views for maps in view.maps.values())
    steps = _FINE if weights <= _MOST_FINE else _COARSE
    models = []
    for view, name in zip(views, _names([view.model for view in views]), strict=True):
        kinds = {name: _record(maps, steps) for name, maps in view.maps.items()}
        models.append({"name": name, "path": view.model, "source": view.source, "kinds": kinds})
    first = {"kind": kind, "layer": choice.layer or 0, "head": choice.head or 0}
    record = {"caution": CAUTION, "names": NAMES, "models": models, **first}
    template = files("nmt.alignment").joinpath("page.html").read_text("utf-8")
    replace_file(path, _filled(template, record).encode())


def _names(paths: Sequence[str]) -> list[str]:
    """The last two parts of each path; whole paths, if those are the same for different ones."""
    short = {path: "/".join(Path(path).parts[-2:]) for path in paths}
    return [short[path] if len(set(short.values())) == len(short) else path for path in paths]


def _filled(template: str, record: dict[str, Any]) -> str:
    """The template with its policy and its data."""
    (style,) = re.findall(r"<style>(.*?)</style>", template, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(record, allow_nan=False)  # in ASCII alone
    for char in "<>&":
        data = data.replace(char, f"\\u{ord(char):04x}")
    return template.replace("{{policy}}", policy, 1).replace("{{data}}", data, 1)


def _record(maps: Maps, steps: int) -> dict[str, Any]:
    numbers = np.rint(maps.weights * steps).astype("<u2" if steps > 255 else "u1")
    return {
        "rows": maps.rows,
        "columns": maps.columns,
        "axes": maps.axes,
        "layers": numbers.shape[0],
        "heads": numbers.shape[1],
        "steps": steps,
        "weights": base64.b64encode(zlib.compress(numbers.tobytes(), 6)).decode(),
        "entropy": _entropies(maps),
        "links": [[row, column, int(sure)] for row, column, sure in maps.links],
        # The last column that each row sees.
        "causal": None if maps.seen.all() else (maps.seen.sum(1) - 1).tolist(),
    }


def _entropies(maps: Maps) -> list[list[float]]:
    """Of each layer and head; 0 stands for all, whose entropies are averaged."""
    layers, heads = (range(size) for size in maps.weights.shape[:2])
    return [
        [
            round(float(entropy_bits(Choice(layer or None, head or None).of(maps)).mean()), 4)
            for head in (0, *(each + 1 for each in heads))
        ]
        for layer in (0, *(each + 1 for each in layers))
    ]


def _hash(text: str) -> str:
    """A source of the policy: this text and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
