"""Shared by all tests: where real data lies, and the FIGURE lines that back the README's promises."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from figures import REAL_DATA, figure_line

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job, whose children could not be stopped
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """`figure(name, value, asked, ok)`: record a measured figure, printed when the run ends; fail if it is not ok."""

    def record(name: str, value: object, asked: str, ok: bool) -> None:
        line = figure_line(name, value, asked, ok)
        record_property("figure", line)  # which reaches the end of the run from pytest-xdist's workers too
        assert ok, line

    return record


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tensors of tiny models are slower with more."""
    import tiny  # and torch, which not all tests need

    with tiny.one_thread():
        yield


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
