"""What is explored: every program on every schedule of inputs, with and without failures."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest

MOST_INPUTS = 3
WORLDS = (2, 3)


@dataclass(frozen=True)
class Configuration:
    """A program, the ranks' numbers of inputs, the context's options, and whether a rank may fail."""

    program: str
    inputs: tuple[int, ...]
    throws: bool = False
    divides_by_all: bool = True
    fails: bool = False  # each rank in turn, at each of its steps, raises or dies
    reduced: bool = True

    @property
    def world(self) -> int:
        return len(self.inputs)

    @property
    def group(self) -> tuple[str, str, int]:
        """What the table puts into one row: program, options, world."""
        words = ["throwing"] * self.throws + ["by active ranks"] * (not self.divides_by_all)
        words += ["a rank fails"] * self.fails + ["every order"] * (not self.reduced)
        return self.program, ", ".join(words), self.world

    def __str__(self) -> str:
        program, options, _ = self.group
        return f"{program}; inputs {','.join(map(str, self.inputs))}" + (f"; {options}" if options else "")


def schedules(world: int) -> Iterator[tuple[int, ...]]:
    """All that give each rank no to three inputs."""
    return product(range(MOST_INPUTS + 1), repeat=world)


def everything(programs: Sequence[str], dividing: Sequence[str], worlds: Sequence[int]) -> list[Configuration]:
    """All configurations: those without failures first, and of them those at fewer ranks; else in a drawn order.

    ``dividing``: the programs to which it matters what averages divide by.
    """
    unharmed, failing, orders = [], [], []
    for program in programs:
        for world in worlds:
            for inputs in schedules(world):
                for throws, by_all in ((False, True), (True, True), *[(False, False)] * (program in dividing)):
                    unharmed.append(Configuration(program, inputs, throws, by_all))
                    if by_all:
                        failing.append(Configuration(program, inputs, throws, by_all, fails=True))
                if world == min(WORLDS):
                    orders.append(Configuration(program, inputs, reduced=False))
    small = _drawn([each for each in orders + failing if each.world == min(WORLDS)])
    large = _drawn([each for each in failing if each.world > min(WORLDS)])
    mixed = [each for pair in zip_longest(_few(small), large) for each in (*(pair[0] or ()), pair[1])]
    unharmed = [each for size in sorted(worlds) for each in _drawn([one for one in unharmed if one.world == size])]
    return unharmed + [each for each in mixed if each is not None]


_SMALL_TO_A_LARGE_ONE = 4


def _few(small: Sequence[Configuration]) -> Iterator[Sequence[Configuration]]:
    """A few small configurations at a time; a large one takes as long as many of them."""
    for first in range(0, len(small), _SMALL_TO_A_LARGE_ONE):
        yield small[first : first + _SMALL_TO_A_LARGE_ONE]


def _drawn(configurations: list[Configuration]) -> list[Configuration]:
    """In an order in which an early end leaves no program out."""
    random.Random(0).shuffle(configurations)
    return configurations


#: schedules that between them hold every kind of difference between ranks
_TELLING = frozenset({
    (0, 1), (1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (0, 2, 1), (1, 1, 2), (1, 2, 3), (3, 2, 1), (2, 3, 1), (2, 3, 3)
})  # fmt: skip
_TELLING_WITH_FAILURES = frozenset({(1, 2), (2, 1)})
#: programs of which one is explored with failures, for their failures differ little
_FAILING = ("plain", "ddp", "ddp, zero")


def telling(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Few of them that show most mistakes: those without failures first, and fewer inputs first."""
    chosen = [
        each
        for each in configurations
        if each.reduced and (_tells_with_failures(each) if each.fails else each.inputs in _TELLING)
    ]
    return sorted(chosen, key=lambda each: (each.fails, each.world, sum(each.inputs)))


def _tells_with_failures(each: Configuration) -> bool:
    return each.inputs in _TELLING_WITH_FAILURES and not each.throws and each.program in _FAILING
