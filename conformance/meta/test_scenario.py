"""Schedules and what is promised of them; exploring that shrinks, and stops where shrinking only costs."""

import itertools

import pytest
from hypothesis import strategies as st

from conformance.ranks import Caught, Died, Finished, Raised, Run, RunFailed
from conformance.scenario import (
    batches,
    deficits,
    even,
    explore,
    fixed_and_generated,
    halves,
    is_even,
    last_joiners,
    linear,
    one_long,
    one_short,
    promised_log,
    schedules,
    shapes,
    uneven_shapes,
    without_inputs,
)

WORLDS = (1, 2, 3, 4, 8)


def test_the_shapes_are_what_their_names_say():
    assert even(3, 2) == (2, 2, 2)
    assert one_short(3, 1) == (3, 2, 3)
    assert one_long(3, 0) == (3, 1, 1)
    assert linear(3) == (2, 3, 4)
    assert halves(4) == (1, 1, 3, 3)
    assert halves(3) == (1, 3, 3)
    assert without_inputs(3, 0) == (0, 2, 2)


@pytest.mark.parametrize("world", WORLDS)
def test_the_fixed_schedules_fit_the_world_and_none_comes_twice(world):
    found = list(shapes(world).values())
    assert {len(schedule) for schedule in found} == {world}
    assert len(set(found)) == len(found)
    assert even(world) in found


@pytest.mark.parametrize("world", WORLDS[1:])
def test_among_the_fixed_schedules_rank_0_is_first_and_last_and_some_rank_has_nothing(world):
    found = uneven_shapes(world)
    assert any(schedule[0] == min(schedule) < min(schedule[1:]) for schedule in found)
    assert any(schedule[0] > max(schedule[1:]) for schedule in found)
    assert any(0 in schedule for schedule in found)
    assert not any(is_even(schedule) for schedule in found)
    if world > 2:
        assert any(last_joiners(schedule)[0] and sum(last_joiners(schedule)) > 1 for schedule in found)


def test_what_is_promised_of_a_schedule():
    assert deficits((1, 3, 3)) == [2, 0, 0]
    assert last_joiners((1, 3, 3)) == [False, True, True]
    assert promised_log((1, 2), 0, "ab") == [
        "a step", "b step", "a main", "b main", "a post False", "b post False",
    ]
    assert promised_log((1, 2), 1, "a") == ["a step", "a step", "a post True"]


def test_exploring_finds_a_break_and_shrinks_it_to_one_short_schedule():
    def examine(several):
        for schedule in several:
            assert schedule[1] < 2, schedule

    with pytest.raises(AssertionError) as caught:
        explore(batches(schedules(3)), examine, examples=50)
    assert "(0, 2, 0)" in str(caught.value)


def test_exploring_stops_shrinking_when_its_time_is_up():
    attempts = []

    def examine(example):
        attempts.append(example)
        assert example < 1000

    with pytest.raises(AssertionError):
        explore(st.integers(0, 10**9), examine, examples=50, seconds=0)
    failing = [attempt for attempt in attempts if attempt >= 1000]
    assert len(failing) == 1, "after the first failure nothing more was to be tried"


@pytest.mark.parametrize("end", [
    Died(-6, "aborted"), Raised(Caught(("Unsupported", "Exception"), "lacks it"), "", unsupported=True),
])
def test_a_rank_that_died_or_lacks_the_feature_is_not_shrunk(end):
    attempts = []

    def examine(example):
        attempts.append(example)
        raise RunFailed(Run((Finished(1), end)))

    with pytest.raises(RunFailed):
        explore(st.integers(), examine, examples=50)
    assert len(attempts) == 1


def test_exploring_is_the_same_every_time():
    runs = []
    for _ in range(2):
        seen = []
        explore(batches(schedules(3)), seen.append, examples=5)
        runs.append(seen)
    assert runs[0] == runs[1]


def test_fixed_schedules_come_first_and_only_uneven_ones_where_asked():
    seen = []
    fixed_and_generated(3, seen.append, uneven=True)
    assert seen[0] == uneven_shapes(3)
    assert len(seen) > 1
    assert not any(is_even(schedule) for schedule in itertools.chain(*seen))


def test_a_world_of_one_has_nothing_uneven_to_examine():
    seen = []
    fixed_and_generated(1, seen.append, uneven=True)
    assert seen == []
