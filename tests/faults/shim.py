"""One shim that sees every file-system operation below a folder, and records it, dies before it or lets it fail.

It replaces the functions of `os`, `io` and `safetensors.torch` by which nmt changes files. An operation is one call
that changes what is on disk: mkdir, create (an open for writing), write (what reaches the kernel, not what waits in
Python's buffer), truncate, fsync, rename, unlink, rmdir. Reads are none.
"""

import builtins
import errno as errno_names
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

FAILS_ON_A_FULL_DISK = ("mkdir", "create", "write", "fsync", "rename")  # deleting works
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Operation:
    """One change of the file system; paths are relative to the folder.

    Attributes:
        target: of a rename.
        data, offset: of a write.
    """

    kind: str
    path: str
    target: str = ""
    data: bytes = b""
    offset: int = 0


Before = Callable[[int, Operation], int | None]  # a number of bytes: write only these


class Shim:
    """Calls `before(number, operation)` ahead of each operation below `folder`, from any thread."""

    def __init__(self, folder: str | Path, before: Before) -> None:
        self._folder = os.path.realpath(folder)
        self._before = before
        self._count = 0
        self._paths: dict[int, str] = {}  # of open descriptors
        self._lock = threading.RLock()
        self._undo: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        for module, name, replacement in (
            (os, "open", self._os_open),
            (os, "close", self._os_close),
            (os, "write", self._os_write),
            (os, "fsync", self._fsync_like(os.fsync)),
            (os, "fdatasync", self._fsync_like(os.fdatasync)),
            (os, "rename", self._rename_like(os.rename)),
            (os, "replace", self._rename_like(os.replace)),
            (os, "unlink", self._path_like("unlink", os.unlink)),
            (os, "remove", self._path_like("unlink", os.remove)),
            (os, "rmdir", self._path_like("rmdir", os.rmdir)),
            (os, "mkdir", self._path_like("mkdir", os.mkdir)),
            (io, "open", self._open),
            (builtins, "open", self._open),
            (safetensors.torch, "serialize_file", self._serialize_file),
        ):
            self._undo.append((module, name, getattr(module, name)))
            setattr(module, name, replacement)

    def remove(self) -> None:
        while self._undo:
            module, name, real = self._undo.pop()
            setattr(module, name, real)

    def relative(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path within the folder; None if it is elsewhere."""
        if isinstance(path, int):
            found = self._paths.get(path)
        else:
            found = os.fsdecode(path)
            if dir_fd is not None:
                found = os.path.join(self._paths.get(dir_fd, ""), found)
            # The last part itself may be a link, which is what is changed.
            found = os.path.join(os.path.realpath(os.path.dirname(found)), os.path.basename(found))
        if found is None or not (found + os.sep).startswith(self._folder + os.sep):
            return None
        return os.path.relpath(found, self._folder)

    def tell(self, operation: Operation, argument: object = None) -> int | None:
        """Count an operation that is about to happen; an error names `argument`, as the real call's does."""
        with self._lock:
            number = self._count
            self._count += 1
            try:
                return self._before(number, operation)
            except OSError as error:
                error.filename = argument
                raise

    # The replacements. Each keeps the real function it replaces.

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self.relative(path, dir_fd)
        if name is not None and flags & _WRITING:
            self._tell_create(path, name, truncates=bool(flags & os.O_TRUNC))
        descriptor = _real_os_open(path, flags, mode, dir_fd=dir_fd)
        if name is not None:
            self._paths[descriptor] = os.path.normpath(os.path.join(self._folder, name))
        return descriptor

    def _os_close(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        _real_os_close(descriptor)

    def _os_write(self, descriptor: int, data: Any) -> int:
        name = self.relative(descriptor)
        if name is not None:
            offset = os.lseek(descriptor, 0, os.SEEK_CUR)
            short = self.tell(Operation("write", name, data=bytes(data), offset=offset))
            if short is not None:
                return _real_os_write(descriptor, bytes(data)[:short])
        return _real_os_write(descriptor, data)

    def _tell_create(self, path: Any, name: str, *, truncates: bool) -> None:
        if not os.path.lexists(os.path.join(self._folder, name)):
            self.tell(Operation("create", name), path)
        elif truncates:
            self.tell(Operation("truncate", name), path)

    def _fsync_like(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def fsync(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            name = self.relative(descriptor)
            if name is not None:
                self.tell(Operation("fsync", name))
            real(descriptor)

        return fsync

    def _rename_like(self, real: Callable[..., None]) -> Callable[..., None]:
        def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            names = self.relative(src, src_dir_fd), self.relative(dst, dst_dir_fd)
            if names[0] is not None or names[1] is not None:
                self.tell(Operation("rename", names[0] or "", target=names[1] or ""), src)
            real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        return rename

    def _path_like(self, kind: str, real: Callable[..., None]) -> Callable[..., None]:
        def change(path: Any, *arguments: Any, dir_fd: int | None = None) -> None:
            name = self.relative(path, dir_fd)
            # What changes nothing, such as mkdir of what is there, is no operation.
            if name is not None and os.path.lexists(os.path.join(self._folder, name)) == (kind != "mkdir"):
                self.tell(Operation(kind, name), path)
            real(path, *arguments, dir_fd=dir_fd)

        return change

    def _open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        name = self.relative(file) if not set(mode).isdisjoint("wax+") and opener is None else None
        if name is None:
            return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            self._tell_create(file, name, truncates="w" in mode)
        raw = _Raw(self, name, file, mode.replace("b", "").replace("t", ""), closefd)
        self._paths[raw.fileno()] = os.path.join(self._folder, name)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)

    def _serialize_file(self, tensors: Any, filename: Any, metadata: Any = None) -> None:
        """Rust writes behind Python's back: serialise to bytes and write these."""
        with self._open(filename, "wb") as file:
            file.write(bytes(safetensors.serialize(tensors, metadata)))


class _Raw(io.FileIO):
    """An unbuffered file whose writes are operations."""

    def __init__(self, shim: Shim, name: str, file: Any, mode: str, closefd: bool) -> None:
        super().__init__(file, mode, closefd)
        self._shim, self._name = shim, name

    def write(self, data: Any) -> int:
        content = bytes(data)
        offset = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
        short = self._shim.tell(Operation("write", self._name, data=content, offset=offset))
        return super().write(content if short is None else content[:short])

    def close(self) -> None:
        if not self.closed:
            self._shim._paths.pop(self.fileno(), None)
        super().close()


_real_open = io.open
_real_os_open, _real_os_close, _real_os_write = os.open, os.close, os.write


# What it is used for


@contextmanager
def recording(folder: str | Path) -> Iterator[list[Operation]]:
    """Within the block all operations below `folder` are appended to the list."""
    log: list[Operation] = []
    shim = Shim(folder, lambda number, operation: log.append(operation))
    shim.install()
    try:
        yield log
    finally:
        shim.remove()


def count(folder: str, file: str) -> None:
    """For a child: one letter and the path of each operation, a line each, into `file`."""
    descriptor = _real_os_open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(number: int, operation: Operation) -> None:
        _real_os_write(descriptor, f"{operation.kind} {operation.path}\n".encode())

    Shim(folder, note).install()


def kill_at(folder: str, operation: int, half: bool = False) -> None:
    """For a child: SIGKILL itself before an operation; with `half` after writing half of it."""
    half_done = threading.Event()

    def kill(number: int, what: Operation) -> int | None:
        if number == operation and half and what.kind == "write":
            half_done.set()  # the buffer comes back with the other half, which is the next operation
            return len(what.data) // 2
        if number == operation or half_done.is_set():
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    Shim(folder, kill).install()


def fail_at(folder: str | Path, operation: int, errno: int, once: bool = False) -> Shim:
    """Operations fail from that one on, or that one alone. On a full disk deleting still works."""

    def fail(number: int, what: Operation) -> None:
        applies = number == operation if once else number >= operation
        if applies and (errno != errno_names.ENOSPC or what.kind in FAILS_ON_A_FULL_DISK):
            raise OSError(errno, os.strerror(errno))

    shim = Shim(folder, fail)
    shim.install()
    return shim
