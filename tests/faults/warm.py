"""A fork server: the real command line in a fresh process, without three seconds of imports each time.

`python -m faults.warm` imports torch and nmt once, then forks a child for every request. It never runs a backward pass
itself, since autograd's threads do not survive a fork. `Warm` is its client.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND_LINE = "nmt.cli:main"
Hook = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Result:
    """How a child ended; a negative code is the signal that killed it."""

    code: int
    stdout: str
    stderr: str
    seconds: float


class Child:
    """A process of the server's; it leads its own process group."""

    def __init__(self, warm: "Warm", number: int, files: tuple[Path, Path]) -> None:
        self._warm, self._number, self._files = warm, number, files
        self._began = time.monotonic()
        self.pid = warm.answer("started", number, 30.0)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the child's group, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._warm.has_answer("ended", self._number)

    def wait(self, timeout_s: float = 60.0) -> Result:
        """Wait for its end. Raises: TimeoutError, after killing it."""
        try:
            code = self._warm.answer("ended", self._number, timeout_s)
        except TimeoutError:
            self.kill()
            self._warm.answer("ended", self._number, 30.0)
            raise TimeoutError(f"still running after {timeout_s} s:\n{self._files[1].read_text()}") from None
        seconds = time.monotonic() - self._began
        return Result(code, *(path.read_text(errors="replace") for path in self._files), seconds)


class Warm:
    """The client; a context manager. `folder` keeps what the children print."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._answers: dict[tuple[str, int], int] = {}
        self._buffer = b""
        self._count = 0

    def __enter__(self) -> "Warm":
        self._folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        self._server = subprocess.Popen(
            [sys.executable, "-m", "faults.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
        )
        self.answer("ready", 0, 120.0)
        return self

    def __exit__(self, *exception: object) -> None:
        """Closing its stdin ends the server, which kills what still runs."""
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server.stdout.close()

    def start(
        self,
        args: Iterable[object],
        hooks: Iterable[Hook] = (),
        *,
        call: str = COMMAND_LINE,
        keywords: Mapping[str, Any] | None = None,
        stdin: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Fork a child that calls the hooks, then the command line with `args`.

        Args:
            hooks: functions of modules of this folder with their keywords, such as ("shim:kill_at", {"operation": 3}).
            call: another function than the command line, called with `keywords`.
            stdin: a file to read from.
            env: variables beside the server's own.
        """
        self._count += 1
        files = (self._folder / f"{self._count}.out", self._folder / f"{self._count}.err")
        request = {
            "number": self._count,
            "args": [str(arg) for arg in args],
            "hooks": [[name, dict(options)] for name, options in hooks],
            "call": call,
            "keywords": dict(keywords or {}),
            "files": [str(path) for path in (stdin or os.devnull, *files)],
            "cwd": str(self._folder),
            "env": dict(env or {}),
        }
        assert self._server.stdin
        self._server.stdin.write(json.dumps(request, default=str).encode() + b"\n")
        self._server.stdin.flush()
        return Child(self, self._count, files)

    def run(
        self, args: Iterable[object], hooks: Iterable[Hook] = (), timeout_s: float = 60.0, **options: Any
    ) -> Result:
        """`start`, and wait for the end."""
        return self.start(args, hooks, **options).wait(timeout_s)

    def call(self, function: str, hooks: Iterable[Hook] = (), timeout_s: float = 60.0, **keywords: Any) -> Result:
        """Run a function of this folder's modules instead of the command line."""
        return self.start((), hooks, call=function, keywords=keywords).wait(timeout_s)

    def has_answer(self, kind: str, number: int) -> bool:
        """Whether the server has said this, without waiting."""
        self._receive(0.0)
        return (kind, number) in self._answers

    def answer(self, kind: str, number: int, timeout_s: float) -> int:
        """Wait until the server says this. Raises: TimeoutError, RuntimeError if it died."""
        deadline = time.monotonic() + timeout_s
        while (kind, number) not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no word of {kind} within {timeout_s} s")
            self._receive(left)
        return self._answers[kind, number]

    def _receive(self, timeout_s: float) -> None:
        assert self._server.stdout
        if not select.select([self._server.stdout], [], [], timeout_s)[0]:
            return
        received = os.read(self._server.stdout.fileno(), 1 << 16)
        if not received:
            raise RuntimeError("the fork server died")
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        for line in lines:
            kind, number, value = json.loads(line)
            self._answers[kind, number] = value


# The server


class _Server:
    def __init__(self) -> None:
        self.running: dict[int, int] = {}  # number of the request by pid
        self.requests = os.dup(0)
        self.replies = os.dup(1)
        os.dup2(2, 1)  # what a library prints while it is imported is no reply
        self.woken, self.waker = os.pipe()
        for descriptor in (self.woken, self.waker):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self.waker)

    def serve(self) -> None:
        """Until the client goes away."""
        self._say("ready", 0, os.getpid())
        buffer = b""
        try:
            while True:
                readable = select.select([self.requests, self.woken], [], [])[0]
                if self.woken in readable:
                    os.read(self.woken, 1 << 16)
                    self._reap()
                if self.requests in readable:
                    received = os.read(self.requests, 1 << 20)
                    if not received:
                        return
                    *lines, buffer = (buffer + received).split(b"\n")
                    for line in lines:
                        self._fork(json.loads(line))
        finally:
            for pid in self.running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _fork(self, request: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(request)
        with contextlib.suppress(OSError):  # child and parent both, so that neither is too early
            os.setpgid(pid, pid)
        self.running[pid] = request["number"]
        self._say("started", request["number"], pid)

    def _become(self, request: dict[str, Any]) -> None:
        """In the child: run the request and exit, as a process of its own would."""
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self.requests, self.replies, self.woken, self.waker):
                os.close(descriptor)
            for descriptor, path in enumerate(request["files"]):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY), descriptor)
            os.chdir(request["cwd"])
            os.environ.update(request["env"])
            sys.argv = ["nmt", *request["args"]]
            for name, options in request["hooks"]:
                _function(name)(**options)
            _function(request["call"])(**request["keywords"])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            threading._shutdown()  # type: ignore[attr-defined]  # wait for threads, as the interpreter's end does
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._say("ended", self.running.pop(pid), os.waitstatus_to_exitcode(status))

    def _say(self, kind: str, number: int, value: int) -> None:
        os.write(self.replies, json.dumps([kind, number, value]).encode() + b"\n")


def _function(name: str) -> Any:
    """Of "shim:kill_at" in this folder, or "nmt.cli:main"."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module if "." in module else f"faults.{module}"), function)


def _import_everything() -> None:
    """All that the commands import on their way, so that no child has to."""
    import torch

    torch.set_num_threads(1)
    for name in (
        "faults.children",
        "faults.shim",
        "nmt.cli",
        "nmt.data.prepare",
        "nmt.decoding.translator",
        "nmt.evaluation.metrics",
        "nmt.training.presets",
        "nmt.training.run",
        "sacrebleu",
        "sentencepiece",
        "torch._dynamo",
        "torch.distributed.fsdp",
    ):
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.utils.tensorboard.writer")
    from faults.children import SCORES, made_up

    for update in SCORES:
        made_up(update)  # kept for the children; and the first optimiser imports more of torch
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    server = _Server()
    _import_everything()
    server.serve()
