"""Manifests find every kind of damage."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.errors import StorageError
from nmt.storage.manifest import MANIFEST, damage, file_sha256, manifest_of

Figure = Callable[..., None]


def write_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(manifest_of(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = random.Random(0)
    whole = tmp_path / "whole"
    (whole / "sub").mkdir(parents=True)
    for name, size in (("weights.bin", 5000), ("config.json", 300), ("sub/tokens", 1200), ("one", 1), ("empty", 0)):
        (whole / name).write_bytes(rng.randbytes(size))
    write_manifest(whole)
    return whole


def test_a_whole_folder_has_no_damage(folder: Path) -> None:
    assert damage(folder) is None
    assert damage(folder, hashes=False) is None
    entries = json.loads((folder / MANIFEST).read_bytes())["files"]
    assert sorted(entries) == ["config.json", "empty", "one", "sub/tokens", "weights.bin"]
    assert entries["sub/tokens"] == {"bytes": 1200, "sha256": file_sha256(folder / "sub" / "tokens")}


def test_manifest_does_not_depend_on_the_order_of_writing(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("one", "empty", "config.json", "sub/tokens", "weights.bin"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / name, copy / name)
    assert manifest_of(copy) == manifest_of(folder) == (folder / MANIFEST).read_bytes()


def mutate(folder: Path, rng: random.Random) -> str:
    """Damage one file of a folder in one random way; what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    content = path.read_bytes()
    kinds = ["missing", "longer"] + ["flip", "shorter"] * 3 * bool(content) + ["swap"]
    kind = rng.choice(kinds)
    if kind == "flip":
        place = rng.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :])
    elif kind == "shorter":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif kind == "longer":
        path.write_bytes(content + rng.randbytes(rng.randint(1, 9)))
    elif kind == "missing":
        path.unlink()
    else:
        other = rng.choice([file for file in files if file != path])
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    return f"{kind} {path.name}"


def test_every_mutation_is_found(folder: Path, tmp_path: Path, figure: Figure) -> None:
    rng = random.Random(1)
    found, missed, kinds = 0, [], set()
    while found + len(missed) < 200:
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        done = mutate(copy, rng)
        if damage(copy) is not None:
            found += 1
            kinds.add(done)
        else:
            missed.append(done)
        shutil.rmtree(copy)
    assert damage(folder) is None  # the negative control
    assert {kind.split()[0] for kind in kinds} == {"flip", "shorter", "longer", "missing", "swap"}
    assert {kind.split()[1] for kind in kinds} >= {"weights.bin", "config.json", "tokens", "one", MANIFEST}
    figure("manifest_damage", f"{found} found of {found + len(missed)} {missed or ''}".strip(), "all", not missed)


def test_what_damage_says(folder: Path) -> None:
    (folder / "one").write_bytes(bytes([(folder / "one").read_bytes()[0] ^ 1]))
    assert damage(folder) == "one was changed: its sha256 is not the manifest's"
    assert damage(folder, hashes=False) is None  # sizes alone do not show a flip
    (folder / "one").write_bytes(b"12")
    assert damage(folder, hashes=False) == "one has 2 bytes, its manifest says 1"
    (folder / "one").unlink()
    assert damage(folder, hashes=False) == "one is missing"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"null", b"\xff", b'{"files": {}}', b'{"format_version": 1, "files": 3}'],
)
def test_a_broken_manifest_is_damage(folder: Path, content: bytes) -> None:
    (folder / MANIFEST).write_bytes(content)
    assert damage(folder) is not None and MANIFEST in str(damage(folder))


def test_no_manifest_is_damage(folder: Path, tmp_path: Path) -> None:
    (folder / MANIFEST).unlink()
    assert damage(folder) == f"{MANIFEST} is missing"
    assert damage(tmp_path / "none") == f"{MANIFEST} is missing"


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    """A pipe in place of a file would hang its reader, an endless device fill its memory."""
    for name, make in (("manifest.json", os.mkfifo), ("manifest.json", lambda path: os.symlink("/dev/zero", path))):
        folder = tmp_path / make.__name__
        folder.mkdir()
        make(folder / name)
        assert damage(folder) == "manifest.json is missing"


def test_a_file_that_the_manifest_does_not_list_is_damage(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("x")
    write_manifest(tmp_path)
    (tmp_path / "more").write_text("x")
    assert damage(tmp_path) == "more is not in its manifest"
    (tmp_path / "more").rename(tmp_path / "README.md")
    assert damage(tmp_path) is None


def test_every_change_of_the_manifest_itself_is_damage(folder: Path) -> None:
    """Each third bit of it, white space and format_version included."""
    manifest = folder / MANIFEST
    content = manifest.read_bytes()
    missed = []
    for bit in range(0, 8 * len(content), 3):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        manifest.write_bytes(changed)
        if damage(folder) is None:
            missed.append(bit)
    assert missed == []
    manifest.write_bytes(content)
    assert damage(folder) is None


@pytest.mark.parametrize("change", [lambda text: text + b"\n", lambda text: text.replace(b"  ", b"\t", 1)])
def test_a_manifest_of_another_form_is_damage(folder: Path, change: Callable[[bytes], bytes]) -> None:
    manifest = folder / MANIFEST
    manifest.write_bytes(change(manifest.read_bytes()))
    assert damage(folder) == f"{MANIFEST} was changed: nmt would write it otherwise"


def test_a_manifest_of_another_format(folder: Path) -> None:
    manifest = folder / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"format_version": 1', b'"format_version": 2'))
    assert damage(folder) == f"{MANIFEST} has format_version 2, this nmt reads 1"


@pytest.mark.parametrize("text", ["[" * 200_000, '{"files":' * 100_000])
def test_a_deep_manifest_is_damage(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert "cannot be read" in str(damage(tmp_path))


def test_what_may_not_be_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of another user must not be set aside."""
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / MANIFEST).write_bytes(manifest_of(tmp_path))
    assert damage(tmp_path) is None

    def refused(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("nmt.storage.manifest.file_sha256", refused)
    with pytest.raises(StorageError, match="Permission denied"):
        damage(tmp_path)
