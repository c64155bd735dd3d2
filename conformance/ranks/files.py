"""Where a pool of ranks and its runs keep their files: one folder each, one file per rank and purpose."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folder:
    """The folder of one pool (``words``, ``stacks``) or of one run (the others)."""

    path: Path

    def words(self, rank: int) -> Path:
        """What the rank wrote to its standard output and error."""
        return self.path / f"rank{rank}.words"

    def stacks(self, rank: int) -> Path:
        """Where faulthandler writes the rank's stacks, when asked to and when a fatal signal strikes."""
        return self.path / f"rank{rank}.stacks"

    def trace(self, rank: int) -> Path:
        return self.path / f"rank{rank}.trace"

    def progress(self, rank: int) -> Path:
        """Grows by a byte each time the rank's function says that it has got further."""
        return self.path / f"rank{rank}.progress"

    def written(self, rank: int) -> int:
        """Bytes by which it is seen that the rank gets further."""
        return size_of(self.trace(rank)) + size_of(self.progress(rank))

    def outcome(self, rank: int) -> Path:
        """The pickled outcome; it appears whole (written under another name, then renamed)."""
        return self.path / f"rank{rank}.outcome"

    @property
    def order(self) -> Path:
        """What the ranks are to do, pickled once for all of them."""
        return self.path / "order"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is either absent or complete, whatever happens to the writer."""
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(content)
    os.replace(beside, path)


def tail(path: Path, limit_bytes: int = 4096) -> str:
    """The last part of a text file; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def size_of(path: Path) -> int:
    """Bytes in the file, 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
