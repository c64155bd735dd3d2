"""One batch of programs: draws them, judges them, and shrinks the first failure that is not known by its cause."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from . import axes
from .axes import Feature
from .judging import Failure
from .program import Program, programs

BATCH = 20
SHRINK_S = 90.0  # so long at most a failure is made smaller

Judge = Callable[[Program], Failure | None]


@dataclass
class Batch:
    """What became of one batch."""

    number: int
    met: list[frozenset[Feature]] = field(default_factory=list)  # the features of each program
    known: list[tuple[Program, int]] = field(default_factory=list)  # failures by a cause known before: its place
    new: Failure | None = None  # the smallest program of a new cause
    first: Program | None = None  # the program as it was drawn
    seconds: float = 0.0


class _Fails(Exception):
    """Tells hypothesis that a program fails."""


def drawn(
    number: int, seed: int, judge: Judge, known: Sequence[frozenset[Feature]], allowed: Collection[Feature],
    size: int = BATCH,
) -> Batch:  # fmt: skip
    """Judge the programs of a batch. The same numbers draw the same programs."""
    batch, started = Batch(number), time.monotonic()
    smallest: list[Failure] = []
    seen: dict[str, Failure | None] = {}
    deadline = [float("inf")]

    def looked_at(program: Program) -> Failure | None:
        """Judge each program once; none is begun when there is no time left to make a failure smaller."""
        key = program.json()
        if key not in seen:
            seen[key] = judge(program) if time.monotonic() < deadline[0] else None
        return seen[key]

    @seeded(hash_of(seed, number))
    @settings(
        max_examples=size, phases=[Phase.generate, Phase.shrink], database=None, deadline=None,
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False, print_blob=False,
    )  # fmt: skip
    @given(programs(allowed, focus(seed, number, allowed)))
    def train(program: Program) -> None:
        failure = looked_at(program)
        if not smallest:
            batch.met.append(program.features)
        if failure is None:
            return
        cause = next((place for place, features in enumerate(known) if features <= program.features), None)
        if cause is not None:
            if not smallest:
                batch.known.append((program, cause))
            return
        if not smallest:
            batch.first = program
            deadline[0] = time.monotonic() + SHRINK_S
        smallest.append(failure)
        raise _Fails

    try:
        train()
    except _Fails:
        batch.new = smallest[-1]
    batch.seconds = time.monotonic() - started
    return batch


def hash_of(seed: int, number: int) -> int:
    """One number of two."""
    return seed * 1_000_003 + number


def focus(seed: int, number: int, allowed: Collection[Feature]) -> list[tuple[Feature, Feature]]:
    """The pairs that a batch begins its programs with: each batch has others, until all have been."""
    pairs = sorted(pair for pair in axes.legal_pairs() if pair[0] in allowed and pair[1] in allowed)
    random.Random(seed).shuffle(pairs)
    start = number * BATCH % max(1, len(pairs))
    return (pairs[start:] + pairs[:start])[:BATCH]
