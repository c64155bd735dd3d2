"""Which parameters have memory in common: who steps one of them changes the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from ..comm.collectives import each_once
from ..comm.flat import PlacedTensors, extent

#: A subclass of tensors need not have memory of its own, nor know torch's loops over many tensors.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class Memory:
    """Where the parameters of an optimizer lie: which have memory in common, and whether one has been moved since."""

    def __init__(self, parameters: Sequence[torch.Tensor], owners: Sequence[int | None] | None = None) -> None:
        """``owners``: those that the parameters have already, or None. RuntimeError if one memory has several."""
        #: by parameter, the place of the first that has its memory
        self.first = first_in_memory(parameters)
        if owners is not None:
            _check_one_owner(self.first, owners)
        self.shared = self.first != list(range(len(self.first)))
        self._placed = PlacedTensors()
        self._placed.note(list(filter(has_memory, parameters)))

    @property
    def stale(self) -> bool:
        """Whether two may have come to share memory since, or to lie apart."""
        return self._placed.stale


def _check_one_owner(first: Sequence[int], owners: Sequence[int | None]) -> None:
    known: dict[int, int] = {}
    for place, (head, owner) in enumerate(zip(first, owners, strict=True)):
        if owner is not None and owners[other := known.setdefault(head, place)] != owner:
            raise RuntimeError(
                f"Parameters {other} and {place} of the optimizer share memory, but rank {owners[other]} owns one and "
                f"rank {owner} the other: both would step what is there, and one of the steps would be lost. Usual "
                "cause: they were tied (parameter.data = other.data) after the optimizer was constructed. Tie them "
                "before."
            )


def first_in_memory(parameters: Sequence[torch.Tensor]) -> list[int]:
    """By parameter, the place of the first one with which it has an element in common: its own, as a rule.

    The same parameter twice counts, and so does one that overlaps another only by way of a third.
    """
    places: dict[int, int] = {}
    first = [places.setdefault(id(parameter), place) for place, parameter in enumerate(parameters)]
    spans = sorted((*_span(parameters[place]), place) for place in places.values() if has_memory(parameters[place]))
    reach: list[tuple[str, int, int, int]] = []  # of those before, what reaches into the present one
    for device, begin, end, place in spans:
        reach = [each for each in reach if each[0] == device and each[2] > begin]
        for *_, other in reach:
            if _overlap(parameters[other], parameters[place]):
                one, another = sorted((first[other], first[place]))
                first = [one if head == another else head for head in first]
        reach.append((device, begin, end, place))
    return first


def memory_of_its_own(parameters: Sequence[torch.Tensor]) -> set[int]:
    """The ids of those that have none in common with others."""
    first = first_in_memory(parameters)
    several = Counter(first)
    return {id(parameter) for parameter, head in zip(parameters, first, strict=True) if several[head] == 1}


def has_memory(parameter: torch.Tensor) -> bool:
    """Whether it has memory that another can have, too."""
    return type(parameter) in PLAIN and parameter.numel() > 0 and parameter.device.type != "meta"


def _span(parameter: torch.Tensor) -> tuple[str, int, int]:
    """Its device, and the bytes from its first element to the end of its last."""
    begin = parameter.data_ptr()
    return str(parameter.device), begin, begin + extent(parameter) * parameter.element_size()


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two parameters whose spans meet share an element; the second does not begin before the first."""
    if one.dtype != other.dtype:
        return True
    apart = (other.data_ptr() - one.data_ptr()) // one.element_size()
    marks = torch.zeros(max(extent(one), apart + extent(other)), dtype=torch.bool, device="cpu")
    one, other = each_once(one), each_once(other)
    marks.as_strided(one.size(), one.stride()).fill_(True)
    return bool(marks.as_strided(other.size(), other.stride(), apart).any())
