"""Whether the ranks of a team share a host: between processes other messages are fast than on a network."""

from __future__ import annotations

import hashlib
import os
import socket
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .collectives import all_reduce
from .processes import machine_marks
from .ranks import Team

#: Names the host of this rank in place of what the system says: the same on ranks that are to count as neighbours.
HOST_ID = "JOINERY_HOSTID"

#: What the ranks of a group have agreed on.
_known: WeakKeyDictionary[dist.ProcessGroup, bool] = WeakKeyDictionary()


def on_one_host(team: Team, device: torch.device) -> bool:
    """Whether all ranks of the team share a host.

    Call it on every rank alike, of two or more: the first call for a group is a collective. ``device``: for a group
    without a backend for the CPU.
    """
    if team.group not in _known:
        number = int.from_bytes(hashlib.sha256(host().encode()).digest()[:7], "big")
        ends = torch.tensor([number, -number], dtype=torch.int64, device=team.control_device(device))
        highest, lowest = all_reduce(team, ends, "hosts of the ranks", dist.ReduceOp.MAX).wait().tolist()
        _known[team.group] = highest == -lowest
    return _known[team.group]


def host() -> str:
    """This rank's host. Two containers or network namespaces are two hosts: a network lies between them."""
    return os.environ.get(HOST_ID) or "|".join([socket.gethostname(), *machine_marks("net")])
