"""One batch of programs: draws them, judges them, and makes small what fails for no cause known before."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from . import axes
from .axes import Feature
from .judging import Failure
from .program import Program, drawn, smaller

BATCH = 20
SHRINK_S = 90.0  # so long at most a failure is made smaller

Judge = Callable[[Program], Failure | None]


@dataclass
class Batch:
    """What became of one batch."""

    number: int
    met: list[frozenset[Feature]] = field(default_factory=list)  # the features of each program
    known: list[int] = field(default_factory=list)  # for each failure by a cause known before: its place
    new: list[tuple[Failure, Program]] = field(default_factory=list)  # smallest programs, with those that were drawn
    seconds: float = 0.0


def judged(
    number: int, seed: int, judge: Judge, known: Sequence[frozenset[Feature]], allowed: Collection[Feature],
    size: int = BATCH,
) -> Batch:  # fmt: skip
    """Judge the programs of a batch. The same numbers draw the same programs."""
    batch, started = Batch(number), time.monotonic()
    causes, pairs, chance = list(known), focus(seed, number, allowed), random.Random(f"{seed} {number}")
    for _ in range(size):
        program = drawn(chance, allowed, pairs)
        failure = judge(program)
        batch.met.append(program.features)
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


def sample(seed: int, count: int, allowed: Collection[Feature], world: int) -> list[Program]:
    """So many programs for ``world`` ranks; the same seed draws the same ones."""
    chance = random.Random(seed)
    return [drawn(chance, allowed, world=world) for _ in range(count)]


def spread(seed: int, count: int, fixed: Mapping[str, Sequence[str]], free: Sequence[str]) -> list[Program]:
    """So many programs that choose something on nearly every axis: one of these values on each of ``fixed``, any on
    ``free``, and each value about equally often.

    What ``sample`` draws is small, as a program is that somebody is to read; these enter as many states as they can in
    the time of a few.
    """
    chance = random.Random(seed)
    met: Counter[Feature] = Counter()
    return [_full(chance, fixed, free, met) for _ in range(count)]


def _full(
    chance: random.Random, fixed: Mapping[str, Sequence[str]], free: Sequence[str], met: Counter[Feature]
) -> Program:
    choices: dict[str, str] = {}
    kept: dict[str, str] = {}  # what no later choice may change; on a free axis a plain value is none
    for axis in (*fixed, *chance.sample(free, len(free))):
        values = fixed.get(axis, axes.AXES[axis])
        order = sorted((met[axis, value], chance.random(), value) for value in values)
        for _, _, value in order:
            made = axes.closed({**choices, axis: value})
            if made is not None and all(axes.value_of(made, other) == had for other, had in kept.items()):
                choices = made
                kept |= made if axis in free else {axis: value}
                break
    met.update((axis, axes.value_of(choices, axis)) for axis in (*fixed, *free))
    return Program(
        choices,
        layers=chance.randint(2, 4),
        takes=tuple(chance.randint(0, 7) for _ in range(4)),
        counts=tuple(chance.randint(0, 3) for _ in range(4)),
        iterations=chance.randint(2, 3),
        at=chance.randint(0, 2),
        order=chance.randint(0, 3),
    )


def focus(seed: int, number: int, allowed: Collection[Feature]) -> list[tuple[Feature, Feature]]:
    """The pairs that a batch begins its programs with: each batch has others, until all have been."""
    pairs = sorted(pair for pair in axes.legal_pairs() if pair[0] in allowed and pair[1] in allowed)
    random.Random(seed).shuffle(pairs)
    start = number * BATCH % max(1, len(pairs))
    return (pairs[start:] + pairs[:start])[:BATCH]
