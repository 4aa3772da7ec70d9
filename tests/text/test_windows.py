"""Windows over a live stream: complete, in order, and nobody waits."""

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.text.windows import windows

NEVER = 60.0  # seconds of idling that no test reaches


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=3), max_size=50), st.integers(1, 12))
def test_every_line_once_and_in_order(lines: list[str], size: int) -> None:
    gathered = list(windows(lines, size, idle_s=NEVER))
    assert [line for window in gathered for line in window] == lines
    assert all(len(window) == size for window in gathered[:-1])
    assert all(0 < len(window) <= size for window in gathered)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1]), (6, [3, 3])])
def test_windows_are_full_but_for_the_last(count: int, sizes: list[int]) -> None:
    assert [len(window) for window in windows(map(str, range(count)), 3, idle_s=NEVER)] == sizes


def test_a_line_is_answered_before_the_next_is_sent() -> None:
    answered = threading.Event()

    def dialogue() -> Iterator[str]:
        yield "first"
        assert answered.wait(10), "the first line was held back"
        yield "second"

    gathered = []
    for window in windows(dialogue(), 100, idle_s=0.01):
        gathered.append(window)
        answered.set()
    assert gathered == [["first"], ["second"]]


def test_without_idling_the_dialogue_would_wait() -> None:
    """The negative control: with a long idle time the first line is held back."""
    answered = threading.Event()
    waited = []

    def dialogue() -> Iterator[str]:
        yield "first"
        waited.append(not answered.wait(0.2))
        yield "second"

    gathered = []
    for window in windows(dialogue(), 100, idle_s=NEVER):
        gathered.append(window)
        answered.set()
    assert gathered == [["first", "second"]]
    assert waited == [True]


def test_an_idle_stream_gives_no_empty_window() -> None:
    def slow() -> Iterator[str]:
        time.sleep(0.1)
        yield "a"
        time.sleep(0.1)

    assert list(windows(slow(), 5, idle_s=0.01)) == [["a"]]


@pytest.mark.parametrize("error", [ValueError("broken"), OSError(5, "input/output error"), KeyboardInterrupt()])
def test_errors_of_the_reader_reach_the_consumer_after_its_lines(error: BaseException) -> None:
    def failing() -> Iterator[str]:
        yield "a"
        yield "b"
        raise error

    gathered = []
    with pytest.raises(type(error)) as caught:
        for window in windows(failing(), 10, idle_s=NEVER):
            gathered.append(window)
    assert caught.value is error
    assert gathered == [["a", "b"]]


def test_an_error_before_the_first_line() -> None:
    def failing() -> Iterator[str]:
        raise ValueError("broken")
        yield ""

    with pytest.raises(ValueError, match="broken"):
        list(windows(failing(), 10))


def test_reading_stays_about_a_window_ahead() -> None:
    read = []

    def endless() -> Iterator[str]:
        while True:
            read.append(1)
            yield "x"

    stream = windows(endless(), 10, idle_s=NEVER)
    assert next(stream) == ["x"] * 10
    time.sleep(0.1)
    assert len(read) <= 10 + 10 + 1  # the window given out, the queue, and the line in the reader's hand
