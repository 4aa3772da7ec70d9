"""Streams in odd states, under the locale of the environment: forks `nmt translate` from one process that has torch.

`python -m hostile.stream_child MODEL FOLDER` prints for each case of `CASES` exit code, output and stderr as JSON;
with `memory LINE_BYTES BLANK_LINES` after it the most private memory of three heavy inputs, above that of a light one.
"""

import json
import os
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nmt.decoding.translator  # noqa: F401  (before the forks)
from nmt.cli import main

TEXT = "the dog\n\nGrün \u2028 漢字\u0085 cat\r\n".encode() + b"bad \xff\xfe\n\xed\xa0\x80 the\n" + "last ü".encode()


class Child:
    """A forked command; `prepare` arranges its streams, which are devnull at first; what it says on stderr is kept."""

    def __init__(self, arguments: list[str], folder: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self._said = folder / "stderr"
        self.peak_mb = 0.0
        self.pid = os.fork()
        if self.pid == 0:
            for number in (0, 1):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.dup2(os.open(self._said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
            prepare()
            sys.argv = ["nmt", *arguments]
            code = 1
            try:
                main()
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 1
            os._exit(code)

    def wait(self) -> tuple[int, str]:
        """Exit code and stderr; a hang ends as a signal. The most private memory is noted."""
        until = time.monotonic() + 400
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status), self._said.read_text("utf-8", errors="surrogateescape")
            self.peak_mb = max(self.peak_mb, private_mb(self.pid))
            if time.monotonic() > until:
                os.kill(self.pid, 9)
            time.sleep(0.005)


def private_mb(pid: int) -> float:
    """Private memory of a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) / 1024


def stdin_of(data: bytes, path: Path) -> Callable[[], None]:
    """Stdin is a file that holds this."""
    path.write_bytes(data)
    return lambda: void(os.dup2(os.open(path, os.O_RDONLY), 0))


def void(_: object) -> None:
    """Nothing."""


def cases(model: str, folder: Path) -> dict[str, list[Any]]:
    """Exit code, output (None: not looked at) and stderr of each case."""
    found: dict[str, list[Any]] = {}
    base = ["translate", "-m", model, "--precision", "fp32"]
    out = folder / "out"

    def run(name: str, *arguments: str, prepare: Callable[[], None] = lambda: None, keep: bool = True) -> None:
        def streams() -> None:
            os.dup2(os.open(out, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 1)
            prepare()

        code, said = Child([*base, *arguments], folder, streams).wait()
        found[name] = [code, out.read_bytes().hex() if keep else None, said]

    text = stdin_of(TEXT, folder / "text")
    run("empty stdin", prepare=stdin_of(b"", folder / "empty"))
    run("no final newline", prepare=text)
    run("a final newline", prepare=stdin_of(TEXT + b"\n", folder / "ended"))
    run("closed stdin", prepare=lambda: void(setattr(sys, "stdin", None)))
    run("closed stdout", prepare=lambda: (text(), void(setattr(sys, "stdout", None)))[1])
    run("full", prepare=lambda: (text(), void(os.dup2(os.open("/dev/full", os.O_WRONLY), 1)))[1], keep=False)
    odd = os.path.join(os.fsencode(folder), "Grün".encode())
    Path(os.fsdecode(odd)).write_bytes(TEXT)
    run("a file", "-i", os.fsdecode(odd))
    found["head -1"] = _head(base, folder)
    found["terminal"] = _terminal(base, folder)
    return found


def _head(base: list[str], folder: Path) -> list[Any]:
    """The reader leaves after a line, of an input that never ends."""
    feed, feed_end = os.pipe()
    reader, writer = os.pipe()
    child = Child(
        [*base, "--max-length", "2"],
        folder,
        lambda: void([os.dup2(feed, 0), os.dup2(writer, 1), *map(os.close, (feed_end, reader, writer, feed))]),
    )
    os.close(feed)
    os.close(writer)
    _feed(feed_end, b"the dog\n" * 500)
    with os.fdopen(reader, "rb") as pipe:
        line = pipe.readline()
    return [*child.wait()[:1], line.hex(), ""]


def _feed(end: int, block: bytes) -> None:
    def write() -> None:
        try:
            while True:
                os.write(end, block)
        except OSError:
            os.close(end)

    threading.Thread(target=write, daemon=True).start()


def _terminal(base: list[str], folder: Path) -> list[Any]:
    """Who types a line sees its translation before the next."""
    master, slave = os.openpty()
    mode = termios.tcgetattr(slave)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    child = Child(base, folder, lambda: void([os.dup2(slave, 0), os.dup2(slave, 1)]))
    answers = b""
    for line in ("the dog\n", "\n", "Grün\n"):
        os.write(master, line.encode())
        while answers.count(b"\n") < 3 and not answers.endswith(b"\n"):
            answers += os.read(master, 1000)
        answers += b"|"
    os.write(master, b"\x04")
    return [*child.wait()[:1], answers.hex(), ""]


def memory(model: str, folder: Path, line_bytes: int, blank_lines: int) -> dict[str, Any]:
    """MB above a light input's, output lines and exit code of: one long line, blank lines, a slow reader."""
    base = ["translate", "-m", model, "--precision", "fp32", "--num-workers", "1", "--quiet"]
    out = folder / "out"
    filler = b"the dog " if line_bytes > 2**25 else bytes([32] * 8)  # 16,000 pieces take seconds
    with (folder / "long").open("wb") as file:
        file.write(b"a cat ")
        for start in range(0, line_bytes, 1 << 20):
            file.write(filler * (min(1 << 20, line_bytes - start) // 8))
    (folder / "blank").write_bytes(b"\n" * blank_lines)
    (folder / "light").write_bytes(b"the dog\n")
    found: dict[str, Any] = {}
    before = private_mb(os.getpid())
    block = b"x" * (64 << 20)
    assert private_mb(os.getpid()) - before > 60  # the negative control
    del block
    light = 0.0
    for name in ("light", "long", "blank"):
        child = Child([*base, "-i", str(folder / name), "-o", str(out)], folder)
        code, _ = child.wait()
        light = light or child.peak_mb
        found[name] = [child.peak_mb - light, out.read_bytes().count(b"\n"), code]
    feed, feed_end = os.pipe()
    reader, writer = os.pipe()
    child = Child(
        base,
        folder,
        lambda: void([os.dup2(feed, 0), os.dup2(writer, 1), *map(os.close, (feed_end, reader, writer, feed))]),
    )
    os.close(feed)
    os.close(writer)
    _feed(feed_end, b"\n" * 4096)

    def read_slowly() -> None:
        for _ in range(100):
            os.read(reader, blank_lines // 100)
            time.sleep(0.01)
        os.close(reader)

    threading.Thread(target=read_slowly, daemon=True).start()
    code, _ = child.wait()
    found["slow reader"] = [child.peak_mb - light, None, code]
    return found


if __name__ == "__main__":
    model, folder, sizes = sys.argv[1], Path(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    found = {"cases": cases(model, folder), "memory": memory(model, folder, *sizes) if sizes else {}}
    print(json.dumps({**found, "encoding": sys.stdout.encoding}))
