"""Lines in and results out, for commands that answer line by line: pairs of streams, JSON lines, bad lines."""

import json
import math
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from nmt.cli.turns import Turns
from nmt.errors import BundleError, DataError, Interrupted, StorageError
from nmt.storage.atomic import atomic_stream
from nmt.text.lines import LineNotes, Numbers, open_stdin, open_text, read_lines
from nmt.text.windows import windows

if TYPE_CHECKING:
    from nmt.decoding.search import Hypothesis
    from nmt.decoding.translator import Translation
    from nmt.text.tokenizer import Tokenizer

Item = TypeVar("Item")
_SHOWN = 5  # warnings of bad lines
_SHORT_RATIO = 0.4  # target pieces a source piece
_TELLING_PIECES = 20  # of a source, ends included; the ratio of a shorter one says little
_MAX_DEPTH = 100  # of JSON: what could be read must be sure to be written, too
_MAX_DIGITS = 4000  # of an integer; Python reads 4,300
_SURROGATES = re.compile("[\ud800-\udfff]")
# Not those that JSON escapes anyway; some readers break lines at them, and a lone surrogate is no UTF-8.
_TO_ESCAPE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def say(text: str) -> None:
    """A line on stderr; a full or closed one must not end the work."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class Source:
    """A stream of lines with its name, and notes of what had to be mended.

    Attributes:
        live: whether it is stdin or a pipe, which can be read once, and whose writer may wait for answers.
    """

    def __init__(self, path: Path | None, max_line_bytes: int) -> None:
        self.name = "stdin" if path is None else str(path)
        self._notes = LineNotes()
        self.lines = read_lines(open_stdin() if path is None else open_text(path), self._notes, max_line_bytes)
        self.live = path is None or not path.is_file()

    def warn(self, quiet: bool) -> None:
        """Say on stderr what had to be mended."""
        for warning in [] if quiet else self._notes.warnings(self.name):
            say(f"warning: {warning}")

    def check(self, strict: bool) -> None:
        """Raises: DataError, with `strict` and if anything had to be mended."""
        warnings = self._notes.warnings(self.name)
        if strict and warnings:
            raise DataError(f"{' '.join(warnings)} All lines have a result; --strict makes this an error.")


class BadLines:
    """Lines that get no result: they keep their place, the rest goes on, and the command ends with exit code 3."""

    def __init__(self, name: str, quiet: bool) -> None:
        self._name, self._quiet = name, quiet
        self._count = self._first = 0

    def add(self, number: int, reason: str) -> None:
        """Note line `number`, from 1, with a warning for the first ones."""
        self._count += 1
        self._first = self._first or number
        if self._count <= _SHOWN and not self._quiet:
            say(f"warning: {self._name}, line {number}: {reason}.")

    def check(self) -> None:
        """Raises: DataError, if there were any."""
        if self._count:
            raise DataError(
                f"{self._name}: {self._count:,} line(s) have no result, the first is line {self._first:,}; each kept "
                f"its place. All others are done."
            )


@contextmanager
def results_to(output: Path | None) -> Iterator[BinaryIO]:
    """Where results go: stdout, or a file that appears when all is done, and of which a signal leaves nothing."""
    if output is None:
        yield sys.stdout.buffer
        return
    with interruptible(), atomic_stream(output) as out:
        yield out


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is done here as an error does, so that it leaves nothing behind."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number, "")


class Sink(Protocol):
    """Where the answers of a window go."""

    def write(self, data: bytes, /) -> object:
        """Take some lines."""

    def flush(self) -> None:
        """Pass them on."""


class Beside:
    """Gives what stands before the last tab of each line to one stream, and what stands behind it to another.

    Args:
        second: a file at `path`.
    """

    def __init__(self, first: Sink, second: Sink, path: Path) -> None:
        self._first, self._second, self._path = first, second, path

    def write(self, data: bytes, /) -> None:
        """See `Sink`; whole lines, each with a tab. Raises: StorageError, for the second stream."""
        halves = [line.rpartition(b"\t")[::2] for line in data.split(b"\n")[:-1]]
        first, second = (b"".join(line + b"\n" for line in lines) for lines in zip(*halves, strict=True))
        self._first.write(first)
        with self._named():
            self._second.write(second)

    def flush(self) -> None:
        """See `Sink`. Raises: StorageError, for the second stream."""
        self._first.flush()
        with self._named():
            self._second.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A reader of the second stream who went away has not seen enough, as one of results may have."""
        try:
            yield
        except OSError as error:
            raise StorageError(f"Cannot write {self._path}: {error.strerror}.") from error


def gather(items: Iterable[Item], max_lines: int, line_buffered: bool, shared: bool = False) -> Iterator[list[Item]]:
    """Windows of a stream; with `line_buffered` each of one line, before the next is read.

    With `shared` they do not depend on when lines come, so that every process has the same ones.
    """
    if line_buffered:
        return ([item] for item in items)
    return windows(items, max_lines, idle_s=None) if shared else windows(items, max_lines)


class Overflows:
    """Lines for which the model computed no numbers: the command ends with exit code 5."""

    def __init__(self) -> None:
        self._count = 0

    def look(self, hypotheses: Iterable["Hypothesis"]) -> None:
        """Count a line whose results hold NaN or infinity."""
        self._count += any(not math.isfinite(hypothesis.log_prob) for hypothesis in hypotheses)

    def check(self) -> None:
        """Raises: BundleError, if there were any."""
        if self._count:
            raise BundleError(
                f"The model gave no probabilities for {self._count:,} line(s), whose results mean nothing: its numbers "
                f"overflow. --precision fp32 may help."
            )


class Doubtful:
    """Lines whose translations are to be looked at, for one counted warning.

    Args:
        doubts: whether a translation is.
        why: what is said of these lines; `{lines}` stands for how many and which.
    """

    def __init__(self, doubts: "Callable[[Translation], bool]", why: str) -> None:
        self._doubts, self._why, self._lines = doubts, why, Numbers()

    def look(self, number: int, translation: "Translation") -> None:
        """Count line `number`, from 1, if its translation is doubtful."""
        if self._doubts(translation):
            self._lines.add(number)

    def warn(self, name: str, quiet: bool) -> None:
        """Say on stderr how many there were."""
        if self._lines.count and not quiet:
            say(f"warning: {name}: {self._why.format(lines=self._lines)}")


def short_translations() -> Doubtful:
    """Lines long enough to tell, whose translations are so short that something must be missing."""

    def is_short(translation: "Translation") -> bool:
        pieces = len(translation.hypotheses[0].token_log_probs) if translation.hypotheses else 0
        return translation.src_pieces >= _TELLING_PIECES and pieces < _SHORT_RATIO * translation.src_pieces

    return Doubtful(
        is_short,
        f"the translations of {{lines}} have fewer than {_SHORT_RATIO} pieces a piece of source: something may be "
        f"missing. Look at them; --split-sentences always translates the sentences of a line one by one.",
    )


def lost_items() -> Doubtful:
    """Lines that were to keep something which they lost."""
    return Doubtful(
        lambda translation: translation.protected == "lost",
        "{lines} lost placeholders, tags or addresses, or have them in disorder.",
    )


class Asking(Protocol):
    """What a line asks for; with an `error` it gets no result."""

    @property
    def error(self) -> str:
        """Why there is nothing to do, or an empty string."""


Asked = TypeVar("Asked", bound=Asking)
Result = TypeVar("Result")


def answer(
    asked: Iterable[Asked],
    out: Sink,
    bad: BadLines,
    find: Callable[[list[Asked]], Sequence[Result]],
    say: Callable[[Asked, Result], str],
    turns: Turns,
    *,
    line_buffered: bool = False,
) -> None:
    """Answer a stream window by window: `find` has a result for each of a window, `say` makes it a line."""
    from nmt.decoding.translator import WINDOW_LINES

    def lines(window: list[Asked]) -> str:
        return "".join(f"{say(each, result)}\n" for each, result in zip(window, find(window), strict=True))

    number = 0
    for turn, window in enumerate(gather(asked, WINDOW_LINES, line_buffered, turns.shared)):
        text = turns.take(turn, partial(lines, window))
        if text is None:
            continue
        for each in window:
            number += 1
            if each.error:
                bad.add(number, each.error)
        with turns.or_over():
            out.write(text.encode())
            out.flush()


def in_step(first: Source, second: Source) -> Iterator[tuple[str, str]]:
    """Line k of one with line k of the other. Raises: DataError, after the shorter one's last line."""
    for number, (one, other) in enumerate(zip_longest(first.lines, second.lines)):
        if one is None or other is None:
            # Who still writes to stdin may be waiting for an answer: those lines are not counted.
            uncounted = other is None and first.live
            longer = first if other is None else second
            count = "more" if uncounted else f"{number + 1 + sum(1 for _ in longer.lines):,}"
            shorter = second if other is None else first
            raise DataError(
                f"{shorter.name} has {number:,} line(s), {longer.name} has {count}; line k of one belongs to line k of "
                f"the other."
            )
        yield one, other


def parse_object(line: str) -> dict[str, Any]:
    """A JSON object. Raises: ValueError, with a reason for the user (also for numbers that JSON cannot write again)."""
    try:
        found = json.loads(line, parse_constant=_refuse, parse_float=_finite_float, parse_int=_short_int)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg}, at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels") from None
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    if _is_deep(found):
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    return found


def string_field(fields: dict[str, Any], key: str, max_bytes: int, default: str | None = None) -> str:
    """A field as text without lone surrogates. Raises: ValueError, with a reason for the user."""
    value = fields.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f'no string "{key}"')
    value = _SURROGATES.sub("\ufffd", value)
    if len(value.encode()) > max_bytes:
        raise ValueError(f'"{key}" is longer than {max_bytes:,} bytes')
    return value


def to_json(record: dict[str, Any]) -> str:
    """A record as one line for every reader. Raises: ValueError (NaN, infinity)."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return _TO_ESCAPE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def facts(hypothesis: "Hypothesis | None", tokenizer: "Tokenizer") -> dict[str, Any]:
    """A hypothesis as fields of JSON; tokens end with EOS, so that each has its log-probability."""
    if hypothesis is None:
        return {"score": None, "log_prob": None, "tokens": [], "token_log_probs": []}
    pieces = tokenizer.tgt_pieces([*hypothesis.ids, tokenizer.special.eos])
    return {
        "score": _finite(hypothesis.score),
        "log_prob": _finite(hypothesis.log_prob),
        "tokens": pieces[: len(hypothesis.token_log_probs)],
        "token_log_probs": [_finite(log_prob) for log_prob in hypothesis.token_log_probs],
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        nested = [list(v.values()) if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [child for children in nested for child in children]
        if not level:
            return False
    return True


def _short_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:20]}… is out of range")
    return int(text)


def _finite_float(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text[:20]} is out of range")
    return float(text)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")
