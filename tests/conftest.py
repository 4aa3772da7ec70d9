"""Shared by all tests: where real data lies, and the FIGURE lines that back the README's promises."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from figures import REAL_DATA, figure_line


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """`figure(name, value, asked, ok)`: record a measured figure, printed when the run ends; fail if it is not ok."""

    def record(name: str, value: object, asked: str, ok: bool) -> None:
        line = figure_line(name, value, asked, ok)
        record_property("figure", line)  # which reaches the end of the run from pytest-xdist's workers too
        assert ok, line

    return record


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether a proof about text runs in full (`make test-text`) or in its short form (`make test`)."""
    return os.environ.get("NMT_TEXT") == "full"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora; skips the test where it is absent."""
    if not REAL_DATA.is_dir():
        pytest.skip("real corpora are not here (../shared/data)")
    return REAL_DATA


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    properties = [pair for report in reports if report.when == "call" for pair in report.user_properties]
    lines = [line for name, line in properties if name == "figure"]
    if lines:
        terminalreporter.section("figures")
        for line in sorted(lines):
            terminalreporter.write_line(line)
