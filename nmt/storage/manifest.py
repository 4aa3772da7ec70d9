"""`manifest.json`: the size and sha256 of every file of a folder, by which damage is found."""

import hashlib
import json
from pathlib import Path
from typing import Any

from nmt.errors import StorageError

MANIFEST = "manifest.json"
README = "README.md"
FORMAT_VERSION = 1
_MAX_MANIFEST_BYTES = 1 << 20


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_of(folder: Path) -> bytes:
    """The manifest of all files below `folder`, as JSON bytes, without itself and README.md, which may be edited."""
    unlisted = (folder / MANIFEST, folder / README)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p not in unlisted)
    entries = {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": file_sha256(p)} for p in files}
    return _encode(entries)


def damage(folder: Path, *, hashes: bool = True) -> str | None:
    """What is wrong with a folder by its manifest, or None if it is whole.

    Every file must be listed, README.md excepted. Nothing but regular files inside the folder is
    opened; a link to one counts as one, since its bytes must be those listed (caches of models are made of links). With
    `hashes=False` only names and sizes are compared, which does not read the files. Raises: StorageError (not ours to
    read, which is no damage).
    """
    try:
        return _problem(folder, hashes)
    except PermissionError as error:
        raise StorageError(f"Cannot read {error.filename}: {error.strerror}. See to its permissions.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"


def _problem(folder: Path, hashes: bool) -> str | None:
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return f"{MANIFEST} is missing"
    if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
        return f"{MANIFEST} is larger than {_MAX_MANIFEST_BYTES:,} bytes"
    content = manifest.read_bytes()
    tables = json.loads(content)
    version, entries = tables["format_version"], tables["files"]
    if version != FORMAT_VERSION:
        return f"{MANIFEST} has format_version {version!r}, this nmt reads {FORMAT_VERSION}"
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    for name, entry in entries.items():
        path = found.get(name)  # not `folder / name`, which may lead out of the folder
        if path is None or not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{name} has {path.stat().st_size} bytes, its manifest says {entry['bytes']}"
        if hashes and file_sha256(path) != entry["sha256"]:
            return f"{name} was changed: its sha256 is not the manifest's"
    for name in found:
        if name not in (*entries, MANIFEST, README):
            return f"{name} is not in its manifest"
    if content != _encode(entries):  # so that no change of the manifest itself passes, not even of white space
        return f"{MANIFEST} was changed: nmt would write it otherwise"
    return None


def _encode(entries: dict[str, dict[str, Any]]) -> bytes:
    """The one form of a manifest."""
    return json.dumps({"format_version": FORMAT_VERSION, "files": entries}, indent=1).encode()
