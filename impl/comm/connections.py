"""This process's connections by IP, those of C++ code included, as Linux lists them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

#: of a copy: one that is said not to wait is left as it is
_KIND = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)


def own_connections() -> Iterator[tuple[int, socket.socket]]:
    """Each one's descriptor, and a copy of it that ends with its turn. OSError where the system lists none.

    Nothing about them changes. What Python makes a socket of as usual waits no longer in a program that has called
    ``socket.setdefaulttimeout``, whoever else waits there, C++ code or the program.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # one that has ended since, or was never connected
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(type=_KIND, fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):  # of UDP the kernel tells no bytes
                    yield int(name), copy
