"""Schedules: how many inputs each rank has, the shapes that everybody should try, and strategies that find the rest.

A schedule is a tuple of iteration counts, one per rank. The functions below also say what the documents promise about
it (deficits, last joiners, the log of every rank), so that checks compare a run with the promise instead of with a
number somebody typed.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

Schedule = tuple[int, ...]

# ---------------------------------------------------------------------------------------------------- fixed shapes


def even(world: int, count: int = 2) -> Schedule:
    """Everybody has ``count`` inputs."""
    return (count,) * world


def one_short(world: int, rank: int, count: int = 3) -> Schedule:
    """Everybody has ``count`` inputs except ``rank``, which has one fewer."""
    return tuple(count - 1 if each == rank else count for each in range(world))


def one_long(world: int, rank: int, count: int = 1) -> Schedule:
    """``rank`` alone has two inputs more than everybody else."""
    return tuple(count + 2 if each == rank else count for each in range(world))


def linear(world: int, first: int = 2) -> Schedule:
    """Rank r has ``first + r`` inputs."""
    return tuple(first + rank for rank in range(world))


def halves(world: int, few: int = 1, many: int = 3) -> Schedule:
    """The lower half of the ranks has few inputs, the upper half many; ranks tie within each half."""
    return tuple(few if rank < world // 2 else many for rank in range(world))


def without_inputs(world: int, rank: int, count: int = 2) -> Schedule:
    """``rank`` has nothing at all."""
    return tuple(0 if each == rank else count for each in range(world))


def shapes(world: int) -> dict[str, Schedule]:
    """The fixed schedules that every check of uneven inputs should try, by name and without repetitions."""
    last = world - 1
    named = {
        "even": even(world),
        "nobody has inputs": even(world, 0),
        "rank 0 first": one_short(world, 0),
        "rank 0 last": one_long(world, 0),
        "rank 0 tied for last": one_short(world, min(1, last)),
        "last rank first": one_short(world, last),
        "linear": linear(world),
        "linear, downwards": linear(world)[::-1],
        "halves": halves(world),
        "no inputs on rank 0": without_inputs(world, 0),
        "no inputs on the last rank": without_inputs(world, last),
    }
    kept: dict[str, Schedule] = {}
    for name, schedule in named.items():
        if schedule not in kept.values():
            kept[name] = schedule
    return kept


def uneven_shapes(world: int) -> list[Schedule]:
    """Those of the fixed schedules in which some rank runs out before another."""
    return [schedule for schedule in shapes(world).values() if not is_even(schedule)]


# ------------------------------------------------------------------------------------------- what is promised of them


def is_even(schedule: Sequence[int]) -> bool:
    """Whether all ranks finish together."""
    return min(schedule) == max(schedule)


def deficits(schedule: Sequence[int]) -> list[int]:
    """How many iterations each rank has to shadow."""
    return [max(schedule) - count for count in schedule]


def last_joiners(schedule: Sequence[int]) -> list[bool]:
    """Which ranks are (tied for) last."""
    return [count == max(schedule) for count in schedule]


def promised_log(schedule: Sequence[int], rank: int, names: Sequence[str]) -> list[str]:
    """What joinables called ``names``, stepped in this order, must have logged on ``rank`` after a join context."""
    steps = [f"{name} step" for name in names] * schedule[rank]
    mains = [f"{name} main" for name in names] * deficits(schedule)[rank]
    return [*steps, *mains, *(f"{name} post {last_joiners(schedule)[rank]}" for name in names)]


# ------------------------------------------------------------------------------------------------ generated schedules


def schedules(world: int, most: int = 4) -> st.SearchStrategy[Schedule]:
    """Any schedule."""
    return st.tuples(*[st.integers(0, most)] * world)


def uneven_schedules(world: int, most: int = 4) -> st.SearchStrategy[Schedule]:
    """Any schedule in which some rank runs out before another."""
    return schedules(world, most).filter(lambda schedule: not is_even(schedule))
