"""A line lost or split on one side of a corpus is found by the lengths of the lines."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.config import DataConfig
from nmt.data.misfit import misfit
from nmt.data.sources import read_chunks
from nmt.errors import DataError


def break_one(sides: list[list[str]], rng: random.Random) -> int:
    """Lose or split a line of one side; which, from 1."""
    side, place = rng.choice(sides), rng.randrange(60, len(sides[0]) - 60)
    words = side[place].split()
    middle = rng.choice((0, len(words) // 2))
    side[place : place + 1] = [" ".join(words[:middle]), " ".join(words[middle:])] if middle else []
    return place + 1


@pytest.mark.parametrize(("name", "width"), [("tatoeba/dev", 50), ("tatoeba/train", 3000), ("multi30k/val", 50)])
def test_d3_the_first_region_that_does_not_fit(
    real_data: Path, name: str, width: int, full: bool, figure: Callable[..., None]
) -> None:
    """tatoeba/train is sorted, so that neighbours have one length and the region is wide."""
    whole = [(real_data / f"{name}.{code}").read_text("utf-8").split("\n")[:-1] for code in ("en", "de")]
    assert misfit(*whole) is None  # the negative controls: nothing is broken; only the last line is lost
    assert misfit(whole[0], whole[1][:-1]) is None
    rng = random.Random(1)
    found, widest = 0, 0
    count = (30, 2)[not full] if name == "tatoeba/train" else (100, 5)[not full]
    for _ in range(count):
        sides = [list(side) for side in whole]
        place = break_one(sides, rng)
        region = misfit(*sides)
        if region is not None and region[0] - 1 <= place <= region[1] + 1:
            found, widest = found + 1, max(widest, region[1] - region[0])
    value = f"{found} of {count} broken lines are inside; {widest} lines wide at most, of {len(whole[0]):,}"
    figure(f"d3_region {name}", value, f">= 95 %, <= {width}", found >= 0.95 * count and widest <= width)


def test_the_error_names_counts_and_region(tmp_path: Path) -> None:
    rng = random.Random(1)
    src = ["x" * rng.randint(1, 90) for _ in range(300)]
    for code, lines in (("en", src), ("de", src[:150] + src[151:])):
        (tmp_path / f"c.{code}").write_text("".join(f"{line}\n" for line in lines))
    config = DataConfig.model_validate({"dir": str(tmp_path), "train": "c"})
    with pytest.raises(DataError, match=r"has 300 lines but .* has 299.* between lines 14\d and 15\d\.$"):
        list(read_chunks(config.train[0], config))
    (tmp_path / "c.de").write_text("x\n")
    with pytest.raises(DataError, match=r"has 300 lines but .* has 1:.*look for the first line"):
        list(read_chunks(config.train[0], config))
