"""Links that are late where the kernel has no netem: TAP devices for both ends, and a thread that holds frames back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

_TUN = Path("/dev/net/tun")
# of linux/if_tun.h
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUMS, _TSO4, _TSO6 = 1, 2, 4  # what we take undone: frames then come whole, up to 64 KiB
_MOST = 1 << 17  # bytes of a frame, its header included
_AT_ONCE = 64  # frames read from one device before the others have their turn
_LONGEST_WAIT_S = 0.1


def unavailable() -> str:
    """Why there can be no relay; empty if there can."""
    return "" if os.access(_TUN, os.R_OK | os.W_OK) else f"{_TUN} is not to be had"


def _tap(name: str) -> int:
    """A new TAP device in the network namespace of this process; it lives as long as the descriptor."""
    device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _CHECKSUMS | _TSO4 | _TSO6)
    return device


@dataclass
class _Way:
    """Frames from one device on their way to another, with the time when each is due."""

    source: int
    target: int
    late: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self, delay_s: float) -> None:
        """Read what has come."""
        with contextlib.suppress(OSError):  # nothing more, or the link is down
            for _ in range(_AT_ONCE):
                self.late.append((time.monotonic() + delay_s, os.read(self.source, _MOST)))

    def deliver(self) -> None:
        """Write what is due; a link that is down loses it."""
        while self.late and self.late[0][0] <= time.monotonic():
            _, frame = self.late.popleft()
            with contextlib.suppress(OSError):
                os.write(self.target, frame)


class Relay:
    """Pairs of devices, each frame that goes into one of which comes out of the other ``delay_s`` later."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._ways: list[_Way] = []

    def connect(self, one: str, other: str) -> None:
        """Make two devices with these names, one cable's ends."""
        near, far = _tap(one), _tap(other)
        self._ways += [_Way(near, far), _Way(far, near)]

    def start(self) -> None:
        """Carry frames from now on, as long as this process lives."""
        threading.Thread(target=self._carry, name="relay", daemon=True).start()

    def _carry(self) -> None:
        with contextlib.suppress(OSError):  # for root only: ranks that compute on all cores do not hold frames up
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
        by_source = {way.source: way for way in self._ways}
        while True:
            for way in self._ways:
                way.deliver()
            due = min((way.late[0][0] for way in self._ways if way.late), default=float("inf"))
            wait_s = min(max(0.0, due - time.monotonic()), _LONGEST_WAIT_S)
            for ready in select.select(list(by_source), [], [], wait_s)[0]:
                by_source[ready].take(self._delay_s)


__all__ = ["Relay", "unavailable"]
