"""C5: a full disk, a read-only one and a broken one: the old checkpoints stay, and the run goes on afterwards."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import shim
from faults.children import save_made_up
from faults.recipe import Recipe, assert_finished, scale, tree
from faults.warm import Result, Warm
from nmt.bundle import list_checkpoints
from nmt.errors import StorageError
from nmt.training.checkpoint import newest_whole

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)


def test_c5_every_operation_may_fail(tmp_path: Path, figure: Callable[..., None]) -> None:
    """The save and the retention alone, each operation once and from then on, each kind of error."""
    start, run = tmp_path / "start", tmp_path / "run"
    for update in (7, 14, 21):
        save_made_up(start, update, keep_last=99)
    old = {path.name: tree(path) for path in list_checkpoints(start)[1:]}  # 7 is deleted by the save
    shutil.copytree(start, run)
    with shim.recording(run) as log:
        save_made_up(run, 28)
    new = tree(run / "checkpoints" / "ckpt-000028")
    cases = [(n, error, once) for n in range(len(log)) for error in ERRORS for once in (False, True)]
    cases = cases[:: scale(3, 1)]
    wrong = []
    for number, error, once in cases:
        shutil.rmtree(run)
        shutil.copytree(start, run)
        failing = shim.fail_at(run, number, error, once)
        try:
            save_made_up(run, 28)
            said = ""
        except (StorageError, OSError) as caught:
            said = str(caught)
        finally:
            failing.remove()
        newest, torn = newest_whole(run)
        now = {path.name: tree(path) for path in list_checkpoints(run)}
        whole = not torn and newest is not None and tree(newest) in (new, old["ckpt-000021"])
        kept = all(now.get(name) == content for name, content in old.items())
        save_made_up(run, 28)
        works = tree(run / "checkpoints" / "ckpt-000028") == new and len(list((run / "checkpoints").iterdir())) == 3
        told = os.strerror(error) in said or (not said and newest is not None and tree(newest) == new)
        if not (whole and kept and works and told):
            wrong.append(f"{log[number].kind} {log[number].path} {os.strerror(error)}: {whole, kept, works, said}")
    said = f"{len(cases) - len(wrong)} of {len(cases)} {wrong[:3] or ''}".strip()
    figure("c5_failing_operations", said, "all", not wrong and len(cases) > 50)


def faults(run: Path) -> Iterator[tuple[str, Any]]:
    """Names and hooks. The save of update 35 is the first that meets them."""
    for size in (60_000, 20_000)[: scale(1, 2)]:  # the moments do not fit, the weights do not fit
        yield f"RLIMIT_FSIZE {size}", ("children:limit_file_size", {"size": size})
    operations = range(scale(12, 0), 36, scale(99, 2))
    for error in ERRORS[: scale(1, 3)]:
        for number in operations:
            options = {"folder": run / "checkpoints", "operation": number, "errno": error}
            yield f"{errno.errorcode[error]} at {number}", ("shim:fail_at", options)
    for error in ERRORS[scale(1, 3) :]:
        yield errno.errorcode[error], ("shim:fail_at", {"folder": run / "checkpoints", "operation": 9, "errno": error})


def problems(stopped: Result, run: Path, old: dict[str, bytes]) -> list[str]:
    """What is wrong with how a run met a full disk."""
    newest, torn = newest_whole(run)
    found = []
    if stopped.code != 4:
        found.append(f"exit code {stopped.code}")
    if str(run) not in stopped.stderr.splitlines()[-1]:
        found.append(f"no path in: {stopped.stderr.splitlines()[-1]}")
    if "bytes" not in stopped.stderr and "free space or permissions" not in stopped.stderr:
        found.append("says neither bytes nor what is needed")
    if newest is None or torn or tree(run / "checkpoints" / "ckpt-000028") != old:
        found.append("the old checkpoint is gone")
    return found


def test_c5_a_run_stops_and_goes_on(
    warm: Warm, recipe: Recipe, halfway: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    run, wrong, count = tmp_path / "run", [], 0
    old = tree(halfway / "checkpoints" / "ckpt-000028")
    for name, hook in faults(run):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(halfway, run)
        stopped = warm.run(recipe.arguments(run), [hook])
        found = problems(stopped, run, old)
        wrong += [f"{name}: {'; '.join(found)}"] if found else []
        assert_finished(warm.run(recipe.arguments(run)), run, recipe)
        count += 1
    figure("c5_full_disk", f"{count - len(wrong)} of {count} {wrong[:3] or ''}".strip(), "all", not wrong)


def test_c5_the_log_cannot_be_written(warm: Warm, recipe: Recipe, halfway: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(halfway, run)
    old = tree(run / "checkpoints" / "ckpt-000028")
    hook = ("shim:fail_at", {"folder": run, "operation": 30, "errno": errno.ENOSPC})
    assert problems(warm.run(recipe.arguments(run), [hook]), run, old) == []


def test_c5_control_without_a_fault(warm: Warm, recipe: Recipe, halfway: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(halfway, run)
    hook = ("shim:fail_at", {"folder": run, "operation": 10**9, "errno": errno.EIO})
    assert_finished(warm.run(recipe.arguments(run), [hook]), run, recipe)


@pytest.mark.skipif(scale(0, 1) == 0, reason="mounts a file system: only in the full form")
def test_c5_a_small_file_system(warm: Warm, recipe: Recipe, tmp_path: Path, figure: Callable[..., None]) -> None:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        stopped = warm.run(recipe.arguments(place / "run"))
        newest, torn = newest_whole(place / "run")
        found = [stopped.code, newest is not None, torn, "No space left" in stopped.stderr]
        shutil.copytree(place / "run", tmp_path / "run")
    finally:
        subprocess.run(["umount", place], check=True)
    assert_finished(warm.run(recipe.arguments(tmp_path / "run")), tmp_path / "run", recipe)
    figure("c5_tmpfs", f"code, old checkpoint, torn, said: {found}", "4, ...", found == [4, True, [], True])
