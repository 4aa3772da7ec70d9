"""Atomic writes: a file or folder appears under its final name complete, or not at all.

A folder is filled under a temporary name, every file is fsynced, the manifest is written last, then one rename
commits it (the ordering argument is that of "All File Systems Are Not Created Equal", OSDI 2014).
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nmt.errors import StorageError
from nmt.storage.manifest import MANIFEST, manifest_of

_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors that only writing has


def write_file(path: Path, data: bytes) -> None:
    """Write and fsync a file in place."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old content or the new. Raises: StorageError.

    A device or pipe, such as /dev/null, is written to and not replaced.
    """
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        write_file(temporary, data)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StorageError(f"Cannot write {path} ({len(data):,} bytes): {error.strerror}.") from error


@contextmanager
def atomic_stream(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream; what was written to it becomes the file at the end, on an error nothing changes.

    A device or pipe is written to at once. Raises: StorageError, when it cannot be opened, or the disk is full.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        stream = path.open("wb")
        try:
            yield stream
            stream.flush()
        finally:
            with suppress(OSError):  # of what could not be written, which was told
                stream.close()
        return
    final = Path(os.path.realpath(path))  # what a link points to; resolve() fails on a link to itself
    temporary = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    try:  # around the opening too: a signal may come at once after it
        with _open_beside(final, temporary, path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if final.exists():
            shutil.copymode(final, temporary)
        os.replace(temporary, final)
        sync_folder(final.parent)
    except OSError as error:
        if error.errno not in _OF_WRITING:
            raise
        raise StorageError(
            f"Cannot write {path}: {error.strerror}. What was there before is not lost; free space, then run the same "
            f"command again."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _open_beside(final: Path, temporary: Path, path: Path) -> BinaryIO:
    """A new file to write, unless `final`, which it will become, is a folder; named to the user as `path`."""
    try:
        if final.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return temporary.open("wb")
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror}.") from error


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; on success it becomes `final`, on an error it is removed.

    An existing `final` is replaced. Raises: StorageError.
    """
    temporary = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        commit_folder(temporary, final)
    except OSError as error:
        written = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
        raise StorageError(
            f"Cannot write {final}: {error.strerror or error}, after {written:,} bytes. Nothing that was there before "
            f"is lost; free space or permissions, then run the same command again."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def commit_folder(temporary: Path, final: Path) -> None:
    """Fsync all of `temporary`, write its manifest, rename it to `final`."""
    for path in temporary.rglob("*"):
        if path.is_file():
            _sync_file(path)
    write_file(temporary / MANIFEST, manifest_of(temporary))
    sync_folder(temporary)
    replaced = final.with_name(f"{final.name}.old-{os.getpid()}")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)  # left by a dead process that had our number
        os.rename(final, replaced)
    try:
        os.rename(temporary, final)
    except OSError:
        if replaced.exists():
            os.rename(replaced, final)
        raise
    sync_folder(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder, if it is there, so that nobody ever finds half of it. Raises: StorageError."""
    leaving = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")  # what a kill leaves of it is stale
    try:
        shutil.rmtree(leaving, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.rename(folder, leaving)
            shutil.rmtree(leaving)
    except OSError as error:
        raise StorageError(
            f"Cannot delete {folder}, which is not needed any more: {error.strerror}. What was saved stands; check the "
            f"disk, free space or permissions, then run the same command again."
        ) from error


def remove_stale(folder: Path, *, ours_alone: bool = False) -> None:
    """Remove what a killed process left in `folder`: temporary and replaced entries of dead processes.

    An entry that was moved aside while its replacement never came goes back to its place.

    Args:
        ours_alone: nobody else writes there now, as a lock says: then the number of a process that lives is a chance.
    """
    for path in list(folder.glob("*.*-*")):
        kind, _, pid = path.suffix.lstrip(".").partition("-")
        if kind not in ("tmp", "old") or not pid.isdecimal() or (not ours_alone and _alive(int(pid))):
            continue
        final = path.with_suffix("")
        if kind == "old" and not final.exists():
            os.rename(path, final)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that a rename in it survives power loss."""
    _sync_file(folder)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _alive(pid: int) -> bool:
    """Whether another process of that number runs. In a container ours is often that of a dead one."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's; a number no process has, so no process of ours left it
        return True
    return True
