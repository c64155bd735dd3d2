"""Who takes part: a process group seen from one of its members, with group ranks and global ranks kept apart."""

from __future__ import annotations

import ctypes
import inspect
import os
from dataclasses import dataclass
from functools import cached_property
from typing import NewType

import torch
import torch.distributed as dist

from .guard import Guard, guard_of
from .tally import Tally, tally_of

GroupRank = NewType("GroupRank", int)
GlobalRank = NewType("GlobalRank", int)

#: an environment variable: "1" turns strict mode on
STRICT = "JOINERY_STRICT"


@dataclass(frozen=True)
class Team:
    """A process group together with this process's place in it.

    Every rank that our code passes around says of what: ``GroupRank`` counts inside the team, ``GlobalRank`` in the
    whole world. The two are equal only by chance (a subgroup need not start at global rank 0).
    """

    group: dist.ProcessGroup
    rank: GroupRank
    size: int

    @staticmethod
    def of(group: dist.ProcessGroup | None = None) -> Team:
        """The team of ``group``; the default group when it is None.

        ValueError if torch.distributed is not set up or this rank is not in the group; TypeError if it is no group.
        """
        if group is None:
            group = dist.group.WORLD
            if group is None:
                raise ValueError("There is no default process group yet: call init_process_group first.")
        if not isinstance(group, dist.ProcessGroup):
            if group == dist.GroupMember.NON_GROUP_MEMBER:
                raise ValueError(
                    "This rank is not a member of the process group that it was given, which is what new_group() "
                    "returns on ranks that it leaves out: let only the group's members use it."
                )
            raise TypeError(f"process_group must be a process group as new_group() returns it, or None, not {group!r}.")
        guard_of(group)  # from now on peers notice if this process ends, whatever it comes to first
        return Team(group, GroupRank(group.rank()), group.size())  # asked itself: torch may not have been told of it

    def global_rank(self, rank: GroupRank) -> GlobalRank:
        """The global rank of the member with this group rank.

        ValueError for a group that torch.distributed was never told of (one of a class of the user's own).
        """
        return GlobalRank(dist.get_global_rank(self.group, rank))

    def global_ranks(self) -> list[GlobalRank]:
        """The global ranks of all members, in group order."""
        return [self.global_rank(GroupRank(rank)) for rank in self.members]

    @cached_property
    def _backends(self) -> dict[str, str]:
        """The group's backend for each kind of device; empty for a group that torch.distributed was never told of."""
        try:
            config = dist.get_backend_config(self.group)
        except (ValueError, KeyError, TypeError):
            return {}
        pairs = (entry.partition(":") for entry in config.lower().split(","))
        return {kind: name for kind, _, name in pairs}

    @cached_property
    def blocks_host(self) -> bool:
        """Whether a wait for the group's collectives holds up the host for an accelerator's tensors, too.

        Gloo's does, also as one of several backends or under another name, and that of NCCL if its blocking wait is
        asked for.
        """
        ours = {kind: name for kind, name in self._backends.items() if kind != "cpu"}
        if "gloo" in ours.values() or ("nccl" in ours.values() and _blocking_wait()):
            return True
        return any(self._is_gloo(kind) for kind, name in ours.items() if name != "nccl")

    def _is_gloo(self, kind: str) -> bool:
        try:
            return isinstance(dist.ProcessGroup._get_backend(self.group, torch.device(kind)), dist.ProcessGroupGloo)
        except (AttributeError, RuntimeError):  # this build has no Gloo, or the group none of torch's backends
            return False

    def abandon(self) -> None:
        """A collective of the team will never end. Gloo cannot abort: its destructor would wait for that until the
        group's timeout, at the end of the program.

        A group written in Python may stand before one of Gloo's.
        """
        if self.is_in_python or "gloo" in self._backends.values():
            for group in list(self.tally.groups):
                keep_for_ever(group)

    def control_device(self, device: torch.device) -> torch.device:
        """Where a message lies that is made and read by the host, in a team whose data lie on ``device``.

        On the CPU where the group has a backend for it ("cpu:gloo,cuda:nccl", say): on an accelerator it would queue up
        behind the computation, and the host would wait for both.
        """
        return torch.device("cpu") if "cpu" in self._backends else device

    @cached_property
    def is_strict(self) -> bool:
        """Whether the ranks compare each collective (``strict``). Looked up once, for every collective asks."""
        return os.environ.get(STRICT, "0").lower() not in ("", "0", "off", "false", "no")

    @cached_property
    def is_in_python(self) -> bool:
        """Whether the group reduces in Python: torch's own backends reduce in place, a user's class need not."""
        return inspect.isfunction(getattr(type(self.group), "allreduce", None))

    @cached_property
    def tally(self) -> Tally:
        """How many collectives this rank has started on the group."""
        return tally_of(self.group)

    @cached_property
    def guard(self) -> Guard | None:
        """What breaks waits off when a member is killed or frozen; None where it is off, or there can be none."""
        return guard_of(self.group)

    @property
    def members(self) -> range:
        return range(self.size)


def keep_for_ever(group: dist.ProcessGroup) -> None:
    """Nothing frees it, not even the end of the program: its destructor is never called."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _blocking_wait() -> bool:
    """Whether a wait on NCCL holds up the host until the collective has ended, as a variable of torch's may ask."""
    names = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    return any(os.environ.get(name, "").lower() in ("1", "y", "yes", "t", "true", "on") for name in names)
