"""Programs drawn at random: any legal one, some from a wanted pair, some that choose on nearly every axis."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from . import axes
from .axes import Feature
from .program import Program

BATCH = 20  # programs that are drawn and judged together
MOST_FEATURES = 16
BEGUN_WITH_A_PAIR = 0.75  # of the programs, where pairs are wanted


def drawn(
    chance: random.Random, known: Collection[Feature] = axes.FEATURES, wanted: Sequence[tuple[Feature, Feature]] = (),
    world: int = 0,
) -> Program:  # fmt: skip
    """Any legal program of these features; most begin with one of the pairs ``wanted``, if there are any.

    With ``world`` it is for so many ranks.
    """
    choices = {"world": str(world)} if world else {}
    allowed = [feature for feature in axes.FEATURES if feature in known and not (world and feature[0] == "world")]
    start = chance.choice(wanted) if wanted and chance.random() < BEGUN_WITH_A_PAIR else ()
    allowed += choices.items()
    for axis, value in (*start, *chance.choices(allowed, k=chance.randint(0, MOST_FEATURES))):
        if axis not in choices:
            choices = _legal({**choices, axis: value}, allowed) or choices
    return with_numbers(chance, axes.closed(choices) or {}, 1, 4)


def with_numbers(chance: random.Random, choices: dict[str, str], fewest: int, most: int) -> Program:
    """The program that makes these choices, with any numbers, and ``fewest`` to ``most`` iterations."""
    return Program(
        choices,
        layers=chance.randint(1, 3),
        takes=tuple(chance.randint(0, 7) for _ in range(chance.randint(0, 6))),
        counts=tuple(chance.randint(0, 3) for _ in range(4)),
        iterations=chance.randint(fewest, most),
        at=chance.randint(0, 2),
        order=chance.randint(0, 3),
    )


def _legal(choices: dict[str, str], allowed: list[Feature]) -> dict[str, str] | None:
    made = axes.closed(choices)
    return made if made is not None and all(feature in allowed for feature in made.items()) else None


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
