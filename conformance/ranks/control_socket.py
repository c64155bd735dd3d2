"""The rank's end of its socket to the driver: takes orders, and ends the rank when the driver is gone."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable

REPORTED = b"R"  # rank -> driver: the outcome is on file
FREE = b"F"  # rank -> driver: the run is put away, another order may come
ANSWERED = b"A"  # rank -> driver: the collective trace says by now which collectives ended


class ControlSocket:
    """A thread that reads the driver's words, one a line: ``do <folder>``, ``put away``, ``how far``."""

    def __init__(self, fd: int, how_far: Callable[[], None]) -> None:
        self._socket = socket.socket(fileno=fd)
        self._how_far = how_far
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen_to_driver, name="control_socket", daemon=True).start()

    def say(self, word: bytes) -> None:
        """Tell the driver; if it is gone, this rank is about to end anyway."""
        with contextlib.suppress(OSError):
            self._socket.sendall(word)

    def next(self) -> str:
        """Wait for the driver's next word. No deadline of its own: the driver's death ends the process."""
        return self._words.get()

    def _listen_to_driver(self) -> None:
        with self._socket.makefile("r") as lines:
            with contextlib.suppress(OSError):
                for line in lines:
                    self._take(line.strip())
        os.killpg(0, signal.SIGKILL)  # the driver is gone; with all that descends from this rank

    def _take(self, word: str) -> None:
        if word == "how far":
            with contextlib.suppress(Exception):
                self._how_far()
            self.say(ANSWERED)
        else:
            self._words.put(word)
