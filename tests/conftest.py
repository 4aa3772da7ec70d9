"""Shared by all tests: where real data lies, and the FIGURE lines that back the README's promises."""

from collections.abc import Callable
from pathlib import Path

import pytest

from figures import REAL_DATA, figure_line

_figures: list[str] = []


@pytest.fixture
def figure() -> Callable[..., None]:
    """`figure(name, value, asked, ok)`: record a measured figure, printed when the run ends; fail if it is not ok."""

    def record(name: str, value: object, asked: str, ok: bool) -> None:
        _figures.append(figure_line(name, value, asked, ok))
        assert ok, _figures[-1]

    return record


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora; skips the test where it is absent."""
    if not REAL_DATA.is_dir():
        pytest.skip("real corpora are not here (../shared/data)")
    return REAL_DATA


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        for line in _figures:
            terminalreporter.write_line(line)
