"""What a power loss may leave of a log of operations, in the manner of "All File Systems Are Not Created Equal".

The model is harsher than any one file system: until a file is fsynced each of its writes may be lost or cut short, and
until a folder is fsynced each change of its entries (creation, rename, deletion) may be lost, in any combination. A
rename is one change, and happens whole or not at all.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.shim import Operation

Tree = dict[str, bytes | None]  # content by path; None is a folder
APPLIED, LOST, CUT = "applied", "lost", "cut short"
_ROOT = 0


@dataclass(frozen=True)
class _Step:
    """One operation on nodes: files and folders by number, whatever their names are.

    Attributes:
        nodes: the file or folders whose fsync makes the step durable; of an fsync, what is made durable.
        entries: (folder, name, node or None) of a change of entries.
    """

    kind: str  # "write", "truncate", "entries" or "fsync"
    nodes: tuple[int, ...]
    entries: tuple[tuple[int, str, int | None], ...] = ()
    data: bytes = b""
    offset: int = 0


class PowerLoss:
    """The states that a power loss may leave of `log`, begun on the tree `before`."""

    def __init__(self, before: Tree, log: Sequence[Operation], *, fsyncs: bool = True) -> None:
        """`fsyncs=False` leaves the fsyncs out, as if the code did none."""
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {_ROOT: {}}
        for path, content in sorted(before.items()):
            self._add(path, content)
        before_log = dict(self._contents), {node: dict(names) for node, names in self._entries.items()}
        self.steps = [self._step(operation) for operation in log]
        self._before = before_log[0], {node: before_log[1].get(node, {}) for node in self._entries}  # new folders: empty
        if not fsyncs:
            self.steps = [step for step in self.steps if step.kind != "fsync"]

    def states(self, per_prefix: int, rng: random.Random) -> Iterator[Tree]:
        """The states after every prefix; where there are more than `per_prefix`, the extremes and a sample."""
        for length in range(len(self.steps) + 1):
            pending = self._pending(length)
            writes = [self.steps[number].kind == "write" for number in pending]
            choices = [(APPLIED, LOST, CUT) if write else (APPLIED, LOST) for write in writes]
            if 3 ** sum(writes) * 2 ** (len(writes) - sum(writes)) <= per_prefix:
                fates = list(itertools.product(*choices))
            else:
                fates = [tuple(APPLIED for _ in pending), tuple(LOST for _ in pending)]
                fates += [tuple(map(rng.choice, choices)) for _ in range(per_prefix - 2)]
            for fate in fates:
                yield self.after(length, dict(zip(pending, fate, strict=True)))

    def after(self, length: int, fates: dict[int, str]) -> Tree:
        """The tree after the first `length` steps, of which some are lost or cut short."""
        contents, entries = dict(self._before[0]), {node: dict(names) for node, names in self._before[1].items()}
        for number, step in enumerate(self.steps[:length]):
            fate = fates.get(number, APPLIED)
            if fate != LOST:
                _apply(contents, entries, step, len(step.data) // 2 if fate == CUT else len(step.data))
        return dict(_walk(contents, entries, _ROOT, ""))

    def _pending(self, length: int) -> list[int]:
        """The steps that no fsync has made durable so far."""
        found = []
        for number, step in enumerate(self.steps[:length]):
            synced = {node for later in self.steps[number:length] if later.kind == "fsync" for node in later.nodes}
            if step.kind != "fsync" and not set(step.nodes) <= synced:
                found.append(number)
        return found

    def _step(self, operation: Operation) -> _Step:
        """Translate an operation, and do it."""
        path, name = operation.path, operation.path.rpartition("/")[2]
        if operation.kind in ("write", "truncate", "fsync"):
            node = self._node(path)
            step = _Step(operation.kind, (node,), data=operation.data, offset=operation.offset)
        elif operation.kind in ("create", "mkdir"):
            node, folder = self._new(operation.kind == "mkdir"), self._node(_parent(path))
            step = _Step("entries", (folder,), ((folder, name, node),))
        elif operation.kind in ("unlink", "rmdir"):
            folder = self._node(_parent(path))
            step = _Step("entries", (folder,), ((folder, name, None),))
        else:
            folder, into = self._node(_parent(path)), self._node(_parent(operation.target))
            new_name = operation.target.rpartition("/")[2]
            moved = ((folder, name, None), (into, new_name, self._node(path)))
            step = _Step("entries", (folder, into), moved)
        _apply(self._contents, self._entries, step, len(step.data))
        return step

    def _node(self, path: str) -> int:
        node = _ROOT
        for name in path.split("/") if path not in ("", ".") else []:
            node = self._entries[node][name]
        return node

    def _new(self, folder: bool) -> int:
        node = 1 + max((_ROOT, *self._contents, *self._entries))
        if folder:
            self._entries[node] = {}
        else:
            self._contents[node] = b""
        return node

    def _add(self, path: str, content: bytes | None) -> None:
        node = self._new(content is None)
        if content is not None:
            self._contents[node] = content
        self._entries[self._node(_parent(path))][path.rpartition("/")[2]] = node


def write_tree(tree: Tree, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in sorted(tree.items()):
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)


def read_tree(folder: Path) -> Tree:
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _apply(contents: dict[int, bytes], entries: dict[int, dict[str, int]], step: _Step, length: int) -> None:
    if step.kind == "write":
        old, new = contents.get(step.nodes[0], b""), step.data[:length]
        padded = old.ljust(step.offset, b"\0")  # a lost write before this one leaves a hole
        contents[step.nodes[0]] = padded[: step.offset] + new + padded[step.offset + len(new) :]
    elif step.kind == "truncate":
        contents[step.nodes[0]] = b""
    for folder, name, node in step.entries:
        if node is None:
            entries[folder].pop(name, None)
        else:
            entries[folder][name] = node


def _walk(
    contents: dict[int, bytes], entries: dict[int, dict[str, int]], folder: int, prefix: str
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in entries[folder].items():
        path = prefix + name
        yield path, (None if node in entries else contents.get(node, b""))
        if node in entries:
            yield from _walk(contents, entries, node, f"{path}/")
