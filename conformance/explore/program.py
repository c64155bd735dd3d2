"""A training program as a value: what it chooses on each axis, and the numbers that go with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from reports.records.lines import loads

from . import axes
from .axes import Feature


@dataclass(frozen=True)
class Program:
    """One program. Whatever has the same JSON trains alike."""

    choices: Mapping[str, str] = field(default_factory=dict)  # by axis; plain ones are left out
    layers: int = 1  # linear layers beside those that the choices ask for
    takes: tuple[int, ...] = ()  # chained wiring: which earlier layer feeds each layer, taken modulo their number
    counts: tuple[int, ...] = (2, 2, 2, 2)  # iterations of each rank, over and over; uneven schedules only
    iterations: int = 2  # of everybody, in even schedules
    at: int = 0  # the iteration in which the acts of the program happen
    order: int = 0  # by how many places the layers are rotated

    def __getitem__(self, axis: str) -> str:
        return axes.value_of(self.choices, axis)

    def has(self, axis: str) -> bool:
        """Whether the program chooses something on this axis."""
        return self[axis] != axes.AXES[axis][0]

    @property
    def world(self) -> int:
        return int(self["world"])

    @property
    def members(self) -> tuple[int, ...]:
        """The global ranks that train."""
        return tuple(range(1 if self["group"] == "subgroup" else 0, self.world))

    @property
    def features(self) -> frozenset[Feature]:
        return axes.features(self.choices)

    def schedule(self, block: int) -> tuple[int, ...]:
        """Iterations of every member in a block."""
        size = len(self.members)
        even = (self.iterations,) * size
        if self["schedule"] == "even" or not self.in_context(block):
            return even
        counts = tuple(islice(cycle(self.counts), size))
        uneven = _uneven(counts, 0 if self["schedule"] == "none on some" else 1)
        return (*uneven[1:], uneven[0]) if block and self["blocks"] == "second turned" else uneven

    @property
    def blocks(self) -> int:
        return 1 if self["blocks"] == "one" else 2

    def enters(self, block: int) -> bool:
        """Whether a block is written under a context."""
        return self.has("context") and not (block == 1 and self["blocks"] == "second without context")

    def in_context(self, block: int) -> bool:
        """Whether one does something there."""
        return self.enters(block) and self["context"] != "not enabled"

    def act_at(self, block: int) -> int:
        """The iteration of a block in which the program's acts happen: one that all ranks finish where that throws."""
        reached = min(self.schedule(block)) if self.has("early end") else max(self.schedule(block))
        return self.at % reached if reached else -1

    def json(self) -> str:
        """One line that says it all; what is as usual is left out."""
        usual = Program()
        unusual = {name: getattr(self, name) for name in NUMBERS if getattr(self, name) != getattr(usual, name)}
        return json.dumps({**dict(sorted(self.choices.items())), **unusual}, separators=(", ", ": "))

    @staticmethod
    def read(text: str) -> Program:
        """The program that a line of JSON says; ValueError if it is none, or not legal."""
        given = loads(text)
        if not isinstance(given, dict):
            raise ValueError(f"a program is an object of choices, such as {Program().json()}, not {text.strip()[:40]}")
        numbers = {name: _number(name, given.pop(name)) for name in NUMBERS if name in given}
        unknown = {axis: value for axis, value in given.items() if value not in axes.AXES.get(axis, ())}
        if unknown:
            raise ValueError(f"there are no such choices: {unknown}")
        legal = axes.closed(given)
        if legal is None:
            raise ValueError(f"these choices do not go together: {axes.why_not(given)}")
        return Program(legal, **numbers)


NUMBERS = ("layers", "takes", "counts", "iterations", "at", "order")


def _number(name: str, value: Any) -> Any:
    """A value of the kind that a program has there as a rule: a whole number, or several."""
    usual = getattr(Program(), name)
    several = value if isinstance(value, list) else [value]
    fits = isinstance(value, list) == isinstance(usual, tuple) and all(type(one) is int for one in several)
    if not fits or not several:
        wanted = "a list of whole numbers" if isinstance(usual, tuple) else "a whole number"
        raise ValueError(f"{name} is {value!r}; give {wanted}, such as {json.dumps(usual)}")
    return tuple(value) if isinstance(value, list) else value


def _uneven(counts: Sequence[int], least: int) -> tuple[int, ...]:
    """Counts that are not all equal, of which some are zero or none is."""
    made = [max(count, least) for count in counts]
    if least == 0 and 0 not in made:
        made[-1 if made[0] >= made[-1] else 0] = 0
    if len(set(made)) == 1:
        made[0] += 1
    return tuple(made)
