"""How many collectives this rank has started on each process group: equally many on all ranks, while all goes well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch.distributed as dist


@dataclass
class Place:
    """Where a process's program stands: in which iteration of which of its models."""

    model: int
    iteration: int = 0  # begun or shadowed by this rank

    def __str__(self) -> str:
        return f" in iteration {self.iteration} of model {self.model}"


class Block(NamedTuple):
    """A join block over a group."""

    watch: Callable[..., Any]  # what looks out for failed peers in it
    message_size: int  # how many elements its messages have


class Tally:
    """The count of one group, and the join blocks over it. A group and its ways (``duplex``) have one together.

    What others start (a communication hook of the user's, say) cannot be seen here. Our code counts where it lets them
    begin and where it knows that they have ended, so a rank that has been left in between differs from the others.
    """

    __slots__ = (
        "blocks", "buffers_travel", "doubt", "failed", "groups", "hooks_communicate", "hooks_leave_group", "label",
        "started", "thread", "where",
    )  # fmt: skip

    #: of the group on which this process has started a collective last
    latest: ClassVar[Tally | None] = None

    def __init__(self) -> None:
        self.started = 0
        #: whose collectives are counted here, all of the same ranks
        self.groups: WeakSet[dist.ProcessGroup] = WeakSet()
        #: once a join block has failed: makes sure, before the next collective, that the ranks are in step
        self.doubt: Callable[[], None] | None = None
        #: whether a wait of ours on the group has failed here: then those of its other ranks fail by themselves
        self.failed = False
        #: whether forwards of some model have synchronised buffers, or will
        self.buffers_travel = False
        #: whether hooks of the program's have been seen to start collectives
        self.hooks_communicate = False
        #: whether they have been seen to start some on other groups
        self.hooks_leave_group = False
        #: the thread that has started the last one of ours
        self.thread = 0
        #: of the collective that was started last
        self.label = ""
        #: in which iteration of which model, for people; the model that runs says it
        self.where: Place | None = None
        #: the join blocks over the group in which this rank is, the innermost last
        self.blocks: list[Block] = []

    def count(self) -> None:
        """One more, of somebody else's."""
        self.started += 1

    def place_of(self, label: str) -> str:
        """The label with what is known of where it belongs."""
        return f"{label}{self.where or ''}"


def latest_label() -> str:
    """The collective that this process has started last, on whatever group; empty before the first."""
    tally = Tally.latest
    return "" if tally is None else tally.place_of(tally.label)


#: By the group itself, never by its name: a new group of an old name starts at zero, as it does on a rank that is new.
_tallies: WeakKeyDictionary[dist.ProcessGroup, Tally] = WeakKeyDictionary()


def tally_of(group: dist.ProcessGroup) -> Tally:
    """The tally of this group; the same for everybody in this process who asks."""
    tally = _tallies.setdefault(group, Tally())
    tally.groups.add(group)
    return tally


def count_together(group: dist.ProcessGroup, others: Iterable[dist.ProcessGroup]) -> None:
    """Let what is started on the others count as started on the group, which is of the same ranks."""
    tally = tally_of(group)
    for other in others:
        _tallies[other] = tally
        tally.groups.add(other)
