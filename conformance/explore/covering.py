"""A set of programs in which every legal pair of choices meets: made once, kept as a file, run by the quick tier."""

from __future__ import annotations

import functools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from . import axes
from .axes import Feature
from .drawing import with_numbers
from .program import Program

FILE = Path(__file__).parent / "pairs.jsonl"
CASES = Path(__file__).parent / "cases"  # a program that failed once and was mended, in each file
WORLDS = ("2", "3")  # one rank alone and four enter little more, and cost more
BATCH = 8  # programs of one case
TRIES = 12  # programs of which the one with most new pairs is taken
CANDIDATES = 24  # choices looked at before one is made

Pair = tuple[Feature, Feature]
_UNEVENLY = {"world": "3", "context": "Join", "schedule": "uneven", "overlapped": "sequential", "optimizer": "decay"}
#: more than two choices, with a schedule, that show a mistake only if they meet: in the file as they are
TOGETHER = (
    Program({"use": "without gradient", "graph": "static", "checkpoint": "reentrant", "shared": "tied"}, iterations=4),
    Program({**_UNEVENLY, "use": "by iteration", "unused": "found", "cleared": "to zeros", "buckets": "tiny"},
            counts=(5, 1, 5, 2)),
    Program({**_UNEVENLY, "use": "never", "graph": "static", "overlap": "shard_buckets"}, counts=(2, 5, 3, 2)),
)  # fmt: skip


@functools.cache
def kept() -> tuple[Program, ...]:
    """The programs of the file."""
    return tuple(Program.read(line) for line in FILE.read_text().splitlines())


def written(seed: int = 0) -> int:
    """Make the file anew; how many programs it holds. Some minutes."""
    lines = [program.json() for program in merged(list(covering(wanted(), seed)))]
    FILE.write_text("".join(f"{line}\n" for line in lines))
    return len(lines)


def wanted() -> set[Pair]:
    """The legal pairs at these numbers of ranks."""
    return {pair for pair in axes.legal_pairs() if all(axis != "world" or value in WORLDS for axis, value in pair)}


def covering(pairs: Collection[Pair], seed: int) -> Iterator[Program]:
    """Programs in which each of these pairs is met, those that are fixed and then most of them first."""
    drawn, missing = random.Random(seed), set(pairs)
    for program in TOGETHER:
        missing.difference_update(axes.pairs(program.features))
        yield program
    while missing:
        pool = sorted(missing)
        tried = [_filled(drawn, drawn.choice(pool), missing) for _ in range(TRIES)]
        choices = max(tried, key=lambda each: len(missing.intersection(axes.pairs(axes.features(each)))))
        missing.difference_update(axes.pairs(axes.features(choices)))
        yield with_numbers(drawn, choices, 2, 3)


def merged(programs: Sequence[Program]) -> list[Program]:
    """The same choices in fewer programs: the last ones are small, and many of them may as well be one."""
    made = list(programs[: len(TOGETHER)])
    for program in programs[len(TOGETHER) :]:
        for place in range(len(TOGETHER), len(made)):
            choices = _both(made[place].choices, program.choices)
            if choices is not None:
                made[place] = replace(made[place], choices=choices)
                break
        else:
            made.append(program)
    return made


def _both(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str] | None:
    """The choices of two programs for equally many ranks, if they go together."""
    choices = {**one, **other}
    if one.get("world") != other.get("world") or choices != {**other, **one}:
        return None
    return choices if axes.closed(choices) == choices else None


def _filled(drawn: random.Random, pair: Pair, missing: set[Pair]) -> dict[str, str]:
    """A program that begins with a pair and takes choices as long as they bring pairs that are missing."""
    choices = axes.closed(dict(pair)) or {}
    while True:
        open_ones = [feature for feature in axes.FEATURES if feature[0] not in choices]
        drawn.shuffle(open_ones)
        gains = [(_gain(choices, feature, missing), feature) for feature in open_ones]
        gains = sorted((each for each in gains if each[0]), key=lambda each: -each[0])
        larger = next(_legal(choices, [feature for _, feature in gains[:CANDIDATES]]), None)
        if larger is None:
            return choices
        choices = larger


def _gain(choices: dict[str, str], feature: Feature, missing: set[Pair]) -> int:
    return sum(tuple(sorted((feature, other))) in missing for other in choices.items())


def _legal(choices: dict[str, str], features: Sequence[Feature]) -> Iterator[dict[str, str]]:
    for axis, value in features:
        made = axes.closed({**choices, axis: value})
        if made is not None and set(choices.items()) <= set(made.items()):
            yield made


def batches(kind: str) -> dict[str, list[Program]]:
    """The kept programs of a kind, so many at a time, by number; all of a batch are for equally many ranks."""
    found: dict[str, list[Program]] = {}
    for world in WORLDS:
        programs = [program for program in kept() if program["world"] == world and _kind(program) == kind]
        for start in range(0, len(programs), BATCH):
            found[f"{world} ranks, {start // BATCH + 1}"] = programs[start : start + BATCH]
    return found


def once_failed() -> list[Program]:
    """The programs that failed once, for two ranks."""
    programs = [Program.read(path.read_text()) for path in sorted(CASES.glob("*.json"))]
    return [program for program in programs if program["world"] == WORLDS[0]]


def _kind(program: Program) -> str:
    if program.has("sharded") or program.has("overlapped"):
        return "sharded"
    return "in a context" if program.has("context") else "plain"
