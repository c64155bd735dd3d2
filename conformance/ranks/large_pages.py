"""Moves what a process has in memory into large pages, so that forking it, and the end of a fork, cost little.

A fork copies the table of all pages that are not a file's: of 240 MB in pages of 4 KiB that takes 10 ms, and as much
again when the fork ends; in pages of 2 MiB 1 and 3. Only a help: where it cannot be had, nothing is different.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

_MADV_COLLAPSE = 25  # from Linux 6.1 on; an older kernel refuses it
_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")


def collapse() -> None:
    """Move every whole large page's worth of this process's own memory into one."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, ValueError):
        size = int(_SIZE.read_text())
        libc = ctypes.CDLL(None)
        for start, end in _own(Path("/proc/self/maps").read_text().splitlines()):
            first, last = -(-start // size) * size, end // size * size
            if first < last:  # what it answers is no matter
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def _own(maps: list[str]) -> Iterator[tuple[int, int]]:
    """Where memory lies that is private, writable and no file's; the stack is left alone, as it grows."""
    for line in maps:
        where, mode, _, _, _, *name = line.split(maxsplit=5)
        if mode == "rw-p" and (not name or name[0] == "[heap]"):
            start, _, end = where.partition("-")
            yield int(start, 16), int(end, 16)
