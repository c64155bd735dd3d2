"""What a local optimizer writes in its groups as it steps, a count of steps say, and who has to be told of it.

It may skip a group of which its rank owns nothing. So only a group's owners have its counts: they tell the target of a
consolidation, new owners and survivors. A joined rank takes its settings from one live rank, the source; where that one
owns nothing of a group, the joined rank's own counts stay, but for those that the program has changed on the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .groups import Group

#: The settings of a group at some moment, each with the number of changes that had been made in place.
Noted = dict[str, tuple[Any, int]]

#: By group, what its owners have counted in it. It travels beside what is kept by parameter, in one dictionary: groups
#: have the keys -1, -2 and so on there, parameters those from 0 upwards.
Told = dict[int, Any]


class GroupCounts:
    """By group of a local optimizer, which settings it has written in any of its steps."""

    def __init__(self, optim: torch.optim.Optimizer, written: Sequence[frozenset[str]]) -> None:
        self._optim = optim
        self.written = written
        self._ended: list[Noted] = []  # the settings as the last step has left them

    @property
    def owned(self) -> list[bool]:
        """Of which groups this rank owns something, so that it has their counts."""
        return [bool(group["params"]) for group in self._optim.param_groups]

    def look(self, begun: Sequence[Noted]) -> None:
        """A step has ended that ``begun`` with the settings noted then. What has changed inside a container does not
        show."""
        groups = self._optim.param_groups
        written = (*self.written, *[frozenset[str]()] * len(groups))
        of_each = zip(written, begun, groups, strict=False)
        self.written = [former | _changed(before, group) for former, before, group in of_each]
        self._ended = noted(groups)

    def to_tell(self) -> Told:
        """The counts of the groups of which this rank owns something."""
        by_group = enumerate(zip(self._optim.param_groups, self.written, strict=False))
        return {
            ~place: {key: group[key] for key in written & group.keys()}
            for place, (group, written) in by_group if group["params"] and written
        }  # fmt: skip

    def to_follow(self, shown: Sequence[Group]) -> list[list[str]]:
        """By group, the settings in which joined ranks follow this one: all where it owns something of the group, else
        those that differ in the ``shown`` ones from what the last step has left."""
        ended = (*self._ended, *[Noted()] * len(shown))
        by_group = zip(self.owned, ended, shown, strict=False)
        return [
            sorted(group.keys() - {"params"} if every else _changed(left, group)) for every, left, group in by_group
        ]

    def keep(self, own: Sequence[Group], received: Sequence[Group], to_follow: Sequence[Sequence[str]]) -> None:
        """On a joined rank: put our own counts into the settings received, where their source is not to be followed."""
        for group, settings, ours, theirs in zip(own, received, self.written, to_follow, strict=False):
            settings.update({key: group[key] for key in (ours - set(theirs)) & group.keys()})


def noted(groups: Iterable[Group]) -> list[Noted]:
    """The settings as they are now, for ``GroupCounts.look``."""
    return [{key: (value, _changes_in(value)) for key, value in group.items()} for group in groups]


def _changed(before: Noted, group: Group) -> set[str]:
    """The settings of a group that are not what they were."""
    now = group.keys() - {"params"}
    return {key for key in now if key not in before or not _is_still(group[key], *before[key])}


def take_told(told: Told, settings: Sequence[Group], owned: Sequence[bool]) -> None:
    """Put the counts among what was told into the settings of a rank that has ``owned`` something of some groups only.
    What is kept by parameter is left there."""
    for key in [key for key in told if key < 0]:
        counts = told.pop(key)
        if not owned[~key]:
            settings[~key].update(counts)


def _is_still(value: Any, former: Any, changes: int) -> bool:
    """Whether it is the same object, which nobody has changed since if it is a tensor."""
    return value is former and _changes_in(value) == changes


def _changes_in(value: Any) -> int:
    """How often a tensor has been changed in place."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0
