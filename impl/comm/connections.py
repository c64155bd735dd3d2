"""This process's connections by IP, those of C++ code included, as Linux lists them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress


def own_connections() -> Iterator[tuple[int, socket.socket]]:
    """Each one's descriptor, and a copy of it that ends with its turn. OSError where the system lists none."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # one that has ended since, or was never connected
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):  # of UDP the kernel tells no bytes
                    yield int(name), copy
