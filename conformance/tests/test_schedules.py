"""Schedules and what is promised of them."""

import pytest

from conformance.api.schedules import (
    deficits,
    even,
    halves,
    is_even,
    last_joiners,
    linear,
    one_long,
    one_short,
    promised_log,
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
