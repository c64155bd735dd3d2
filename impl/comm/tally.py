"""How many collectives this rank has started on each process group: equally many on all ranks, while all goes well."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch.distributed as dist


class Tally:
    """The count of one group. Messages between two ranks do not count.

    What others start (a communication hook of the user's, say) cannot be seen here. Our code counts where it lets them
    begin and where it knows that they have ended, so a rank that has been left in between differs from the others.
    """

    __slots__ = ("started",)

    def __init__(self) -> None:
        self.started = 0

    def count(self) -> None:
        """One more."""
        self.started += 1


#: By the group itself, never by its name: a new group of an old name starts at zero, as it does on a rank that is new.
_tallies: WeakKeyDictionary[dist.ProcessGroup, Tally] = WeakKeyDictionary()


def tally_of(group: dist.ProcessGroup) -> Tally:
    """The tally of this group; the same for everybody in this process who asks."""
    return _tallies.setdefault(group, Tally())
