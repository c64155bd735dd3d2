"""One nightly run at a time on a machine; the lock of a process that has died is free."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..history import HistoryError


@contextmanager
def locked(path: Path, what: str = "a nightly run") -> Iterator[None]:
    """Hold the lock for the block; ``HistoryError`` if another process holds it.

    It is the kernel's lock on an open file, so it ends with its process, however that ends. The file itself stays: to
    remove it would let two processes lock two different files of one name.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            who = file.read().strip() or "another process"
            raise HistoryError(f"{what} is going on ({who}, {path}); wait for its end, or stop it") from error
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
