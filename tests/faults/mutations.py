"""One random change of a file: what a bad disk, a bad cable or a bad copy does."""

import random
from pathlib import Path

KINDS = ("flip", "truncate", "zero page", "swap")
PAGE = 4096


class Mutation:
    """Changes the bytes of `path`, for certain; `undo` takes it back.

    Attributes:
        kind: what was done, one of KINDS.
    """

    def __init__(self, path: Path, rng: random.Random, *, twin: Path | None = None, kind: str | None = None) -> None:
        """`twin`: the file to swap with, if it has the same size and other bytes."""
        self._before = {path: path.read_bytes()}
        content = self._before[path]
        pages = [at for at in range(0, len(content), PAGE) if any(content[at : at + PAGE])]
        swappable = twin is not None and twin.stat().st_size == len(content) and twin.read_bytes() != content
        possible = ["flip", "truncate", *["zero page"] * bool(pages), *["swap"] * swappable] if content else ["grow"]
        self.kind = kind or rng.choice(possible)
        if self.kind == "flip":
            place = rng.randrange(len(content))
            flipped = bytes([content[place] ^ (1 << rng.randrange(8))])
            path.write_bytes(content[:place] + flipped + content[place + 1 :])
        elif self.kind == "truncate":
            path.write_bytes(content[: rng.randrange(len(content))])
        elif self.kind == "zero page":
            at = rng.choice(pages)
            path.write_bytes(content[:at] + bytes(len(content[at : at + PAGE])) + content[at + PAGE :])
        elif self.kind == "swap":
            assert twin is not None
            self._before[twin] = twin.read_bytes()
            path.write_bytes(self._before[twin])
            twin.write_bytes(content)
        else:
            path.write_bytes(b"\0")
        assert path.read_bytes() != content

    def undo(self) -> None:
        for path, content in self._before.items():
            path.write_bytes(content)
