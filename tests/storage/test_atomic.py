"""Files and folders appear complete or not at all, and what was there before is not lost."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.errors import StorageError
from nmt.storage import atomic
from nmt.storage.atomic import atomic_folder, remove_stale, replace_file, write_file
from nmt.storage.manifest import MANIFEST, damage


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, text: str) -> None:
    with atomic_folder(folder) as temporary:
        (temporary / "a.txt").write_text(text)
        (temporary / "sub").mkdir()
        (temporary / "sub" / "b.bin").write_bytes(b"\x00" * 10)


def assert_holds(folder: Path, text: str) -> None:
    assert (folder / "a.txt").read_text() == text
    assert (folder / "sub" / "b.bin").read_bytes() == b"\x00" * 10
    assert damage(folder) is None


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def fail_nth(n: int, real: Callable[..., None]) -> Callable[..., None]:
    """`real`, but its n-th call finds the disk full."""
    calls = 0

    def failing(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == n:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*arguments)

    return failing


def test_a_folder_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "run"
    with atomic_folder(final) as temporary:
        assert not final.exists()
        assert temporary.parent == final.parent
        (temporary / "a.txt").write_text("x")
    assert names(final) == ["a.txt", MANIFEST]
    assert damage(final) is None
    assert names(final.parent) == ["run"]


def test_an_existing_folder_is_replaced_whole(tmp_path: Path) -> None:
    fill(tmp_path / "run", "old")
    with atomic_folder(tmp_path / "run") as temporary:
        (temporary / "c.txt").write_text("new")
        assert_holds(tmp_path / "run", "old")
    assert names(tmp_path / "run") == ["c.txt", MANIFEST]
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("existing", [True, False])
def test_an_error_inside_leaves_nothing_and_the_old_intact(
    tmp_path: Path, error: BaseException, existing: bool
) -> None:
    final = tmp_path / "run"
    if existing:
        fill(final, "old")
    with pytest.raises(type(error)) as caught, atomic_folder(final) as temporary:
        (temporary / "a.txt").write_text("half")
        raise error
    assert caught.value is error
    assert names(tmp_path) == (["run"] if existing else [])
    if existing:
        assert_holds(final, "old")


def test_a_full_disk_inside_is_a_storage_error_with_the_path(tmp_path: Path) -> None:
    final = tmp_path / "run"
    fill(final, "old")
    with pytest.raises(StorageError, match="No space left on device") as caught, atomic_folder(final):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(final) in str(caught.value)
    assert_holds(final, "old")
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize(
    ("step", "n"), [("fsync", 1), ("fsync", 3), ("fsync", 4), ("rename", 1), ("rename", 2)], ids=str
)
def test_a_failing_step_of_the_commit_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, n: int
) -> None:
    final = tmp_path / "run"
    fill(final, "old")
    monkeypatch.setattr(atomic.os, step, fail_nth(n, getattr(os, step)))
    with pytest.raises(StorageError, match="Nothing that was there before is lost"):
        fill(final, "new")
    monkeypatch.undo()
    assert_holds(final, "old")
    assert names(tmp_path) == ["run"]
    fill(final, "new")  # the same command again
    assert_holds(final, "new")


def test_left_overs_of_our_own_number_do_not_block(tmp_path: Path) -> None:
    """In a container every run may have the same process number."""
    final = tmp_path / "run"
    fill(final, "old")
    for kind in ("tmp", "old"):
        left = tmp_path / f"run.{kind}-{os.getpid()}"
        left.mkdir()
        (left / "junk").write_text("x")
    fill(final, "new")
    assert_holds(final, "new")
    assert names(tmp_path) == ["run"]


KILLED = """
import os, sys
from pathlib import Path
from nmt.storage import atomic
real, calls = os.rename, 0
def rename(*arguments):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os._exit(9)
    real(*arguments)
atomic.os.rename = rename
with atomic.atomic_folder(Path(sys.argv[1])) as temporary:
    (temporary / "a.txt").write_text("new")
    (temporary / "sub").mkdir()
    (temporary / "sub" / "b.bin").write_bytes(bytes(10))
"""


@pytest.mark.parametrize(("killed_at", "left"), [(1, "old"), (2, "old"), (3, "new")])
def test_killed_at_a_rename_the_old_or_the_new_is_there(tmp_path: Path, killed_at: int, left: str) -> None:
    final = tmp_path / "run"
    fill(final, "old")
    process = subprocess.run([sys.executable, "-c", KILLED, str(final), str(killed_at)], timeout=60)
    assert process.returncode == (0 if killed_at == 3 else 9)
    remove_stale(tmp_path)
    assert names(tmp_path) == ["run"]
    assert_holds(final, left)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Cannot write") as caught, atomic_folder(tmp_path / "file" / "run"):
        raise AssertionError("never entered")
    assert str(tmp_path / "file" / "run") in str(caught.value)
    assert (tmp_path / "file").read_text() == "x"


def test_write_file(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"long content")
    write_file(tmp_path / "a", b"short")
    assert (tmp_path / "a").read_bytes() == b"short"


def test_replace_file(tmp_path: Path) -> None:
    replace_file(tmp_path / "a.json", b"one")
    replace_file(tmp_path / "a.json", b"two")
    assert (tmp_path / "a.json").read_bytes() == b"two"
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_replace_file_that_fails_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    monkeypatch.setattr(atomic.os, step, fail_nth(1, getattr(os, step)))
    with pytest.raises(StorageError, match=r"\(1,234 bytes\): No space left") as caught:
        replace_file(path, b"x" * 1234)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("parent", ["missing", "file"])
def test_replace_file_without_its_folder(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError) as caught:
        replace_file(tmp_path / parent / "a", b"")
    assert str(tmp_path / parent / "a") in str(caught.value)


def test_remove_stale_removes_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    dead, alive = dead_pid(), os.getppid()
    for name in (f"run.tmp-{dead}", f"run.old-{dead}", f"best.v2.tmp-{dead}", "run", f"live.tmp-{alive}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
    kept = ["a.txt", "b.tmp-", "b.tmp-x", f"b.bak-{dead}", f"tmp-{dead}", "c.tmp-20240101123456789"]
    for name in (*kept, f"state.json.tmp-{dead}"):
        (tmp_path / name).write_text(name)
    remove_stale(tmp_path)
    assert names(tmp_path) == sorted([*kept, "run", f"live.tmp-{alive}"])
    assert (tmp_path / "run" / "content").read_text() == "run"


def test_remove_stale_puts_back_what_was_moved_aside(tmp_path: Path) -> None:
    dead = dead_pid()
    (tmp_path / f"run.old-{dead}").mkdir()
    (tmp_path / f"run.old-{dead}" / "content").write_text("the only copy")
    (tmp_path / f"run.tmp-{dead}").mkdir()
    remove_stale(tmp_path)
    assert names(tmp_path) == ["run"]
    assert (tmp_path / "run" / "content").read_text() == "the only copy"


def test_remove_stale_of_a_missing_folder(tmp_path: Path) -> None:
    remove_stale(tmp_path / "none")


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    replace_file(pipe, b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
