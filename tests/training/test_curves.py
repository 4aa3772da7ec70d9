import json
import re
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import ConfigError, DataError
from nmt.training import curves
from nmt.training.curves import plot_curves, read_curve


def write_run(run: Path, *validations: tuple[int, float, float, float, bool]) -> Path:
    keys = ("update", "minutes", "bleu", "loss", "best")
    records = [{"kind": "valid", **dict(zip(keys, values, strict=True))} for values in validations]
    run.mkdir()
    lines = [json.dumps(each) for each in ({"kind": "update", "update": 1, "loss": 9.0}, *records)]
    (run / "log.jsonl").write_text("\n".join([*lines, '{"kind": "valid", "upda']))  # torn by a kill
    return run


RISING = ((100, 1.0, 5.0, 4.0, True), (200, 2.5, 9.0, 3.0, True), (300, 4.0, 8.0, 3.5, False))


def test_a_curve_is_what_the_log_says(tmp_path: Path) -> None:
    curve = read_curve(write_run(tmp_path / "run", *RISING))
    assert [tuple(each) for each in curve.validations] == [*RISING]


@pytest.mark.parametrize("suffix", ["svg", *(pytest.param(each, marks=pytest.mark.slow) for each in ("png", "pdf"))])
def test_two_runs_are_drawn_over_one_another_and_again_alike(suffix: str, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, *RISING) for name in ("_one", "$x_2$ ℊ")]
    pictures = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for picture in pictures:
        assert plot_curves([read_curve(run) for run in runs], picture) == []
    first, second = (picture.read_bytes() for picture in pictures)
    assert first == second
    if suffix == "svg":
        said = re.findall("<!-- (.*) -->", first.decode())
        assert len([name for name in said if name.endswith(("/_one", "/$x_2$ ℊ"))]) == 2


def test_the_lines_go_through_the_validations_and_the_ring_is_on_the_best(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(curves, "save", lambda figure, path: figures.append(figure))
    plot_curves([read_curve(write_run(tmp_path / "run", *RISING))], tmp_path / "a.png")
    drawn = [[line.get_xydata().tolist() for line in axes.lines] for axes in figures[0].axes]
    assert drawn == [
        [[[1.0, 5.0], [2.5, 9.0], [4.0, 8.0]], [[2.5, 9.0]]],
        [[[1.0, 4.0], [2.5, 3.0], [4.0, 3.5]], [[2.5, 3.0]]],
    ]


def test_a_run_that_ran_away_and_a_short_one(tmp_path: Path) -> None:
    nan = float("nan")
    curve = read_curve(write_run(tmp_path / "run", (1, 0.1, 0.0, 9.0, True), (2, 0.2, 0.0, nan, True)))
    assert plot_curves([curve], tmp_path / "a.png") == []


@pytest.mark.parametrize(
    "line", ['"update": Infinity', f'"minutes": {"9" * 401}', '"minutes": -1e308', '"minutes": 1e308', "[" * 100_000]
)
def test_a_line_that_is_no_measurement_is_left_out(line: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *RISING)
    good = (run / "log.jsonl").read_text().splitlines()[1]
    (run / "log.jsonl").write_text(f"{good}\n{good[:-1]}, {line}}}\n")
    assert len(read_curve(run).validations) == 1


def test_a_value_that_no_axis_holds_is_a_gap(tmp_path: Path) -> None:
    curve = read_curve(write_run(tmp_path / "run", *RISING, (400, 5.0, 1e308, -1e308, True)))
    assert plot_curves([curve], tmp_path / "a.png") == []


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no .*log\.jsonl"):
        read_curve(tmp_path)
    with pytest.raises(DataError, match="no validation yet"):
        read_curve(write_run(tmp_path / "run"))
    curve = read_curve(write_run(tmp_path / "other", *RISING))
    with pytest.raises(ConfigError, match=r"must end in \.png, \.svg or \.pdf"):
        plot_curves([curve], tmp_path / "a.gif")
    assert not (tmp_path / "a.gif").exists()
