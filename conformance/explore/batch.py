"""One batch of programs: draws them, judges them, and makes small what fails for no cause known before."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from . import axes, drawing
from .axes import Feature
from .judging import Failure
from .program import NUMBERS, Program

SHRINK_S = 90.0  # so long at most a failure is made smaller

Judge = Callable[[Program], Failure | None]


@dataclass
class Batch:
    """What became of one batch."""

    number: int
    met: list[frozenset[Feature]] = field(default_factory=list)  # the features of each program
    drawn: list[str] = field(default_factory=list)  # each program, as JSON
    known: list[int] = field(default_factory=list)  # for each failure by a cause known before: its place
    new: list[tuple[Failure, Program]] = field(default_factory=list)  # smallest programs, with those that were drawn
    seconds: float = 0.0


def judged(
    number: int, seed: int, judge: Judge, known: Sequence[frozenset[Feature]], allowed: Collection[Feature],
    size: int = drawing.BATCH,
) -> Batch:  # fmt: skip
    """Judge the programs of a batch. The same numbers draw the same programs."""
    batch, started = Batch(number), time.monotonic()
    causes, pairs, chance = list(known), drawing.focus(seed, number, allowed), random.Random(f"{seed} {number}")
    for _ in range(size):
        program = drawing.drawn(chance, allowed, pairs)
        failure = judge(program)
        batch.met.append(program.features)
        batch.drawn.append(program.json())
        if failure is None:
            continue
        cause = next((place for place, features in enumerate(causes) if features <= program.features), None)
        if cause is not None:
            if cause < len(known):
                batch.known.append(cause)
            continue
        smallest = shrunk(failure, judge, time.monotonic() + SHRINK_S)
        batch.new.append((smallest, program))
        causes.append(smallest.program.features)
    batch.seconds = time.monotonic() - started
    return batch


def shrunk(failure: Failure, judge: Judge, deadline: float) -> Failure:
    """The failure of a program that has nothing to leave out, or as small as it got by the deadline.

    Choices are what causes are told apart by, so they are left out one by one: some fifteen runs. Shrinking the
    numbers that a program was drawn from needs ten times as many.
    """
    tried = {failure.program.json()}
    while True:
        for program in smaller(failure.program):
            if program.json() in tried or time.monotonic() > deadline:
                continue
            tried.add(program.json())
            found = judge(program)
            if found is not None:
                failure = found
                break
        else:
            return failure


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one choice less, or with a number as usual."""
    for axis in program.choices:
        choices = axes.closed({other: value for other, value in program.choices.items() if other != axis})
        if choices is not None and len(choices) < len(program.choices):
            yield replace(program, choices=choices)
    usual = Program()
    for name in NUMBERS:
        if getattr(program, name) != getattr(usual, name):
            yield replace(program, **{name: getattr(usual, name)})
