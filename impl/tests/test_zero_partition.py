"""The shard plan: pure arithmetic, no processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.zero.partition import PlanError, ShardPlan

sizes = st.lists(st.integers(0, 1000), max_size=40)
worlds = st.integers(1, 6)


@given(sizes, worlds)
def test_every_parameter_has_exactly_one_owner(numels, world):
    plan = ShardPlan.greedy(numels, world, range(len(numels)))
    owned = sorted(index for rank in range(world) for index in plan.owned_by(rank))
    assert owned == list(range(len(numels)))


@given(sizes, worlds)
def test_loads_differ_by_at_most_the_largest_parameter(numels, world):
    plan = ShardPlan.greedy(numels, world, range(len(numels)))
    loads = [sum(numels[index] for index in plan.owned_by(rank)) for rank in range(world)]
    assert sum(loads) == sum(numels)
    assert max(loads) - min(loads) <= max(numels, default=0)


@given(sizes, sizes, worlds)
def test_added_parameters_move_none_of_the_earlier_ones(first, second, world):
    plan = ShardPlan.greedy(first, world, range(len(first)))
    both = [*first, *second]
    longer = ShardPlan.greedy(both, world, range(len(both)), [*plan.owners, *[None] * len(second)])
    assert longer.owners[: len(first)] == plan.owners
    assert longer.numels == tuple(both)


def test_equal_sizes_go_round():
    assert ShardPlan.greedy([16, 16, 16], 3, range(3)).owners == (0, 1, 2)


def test_the_largest_is_placed_first():
    assert ShardPlan.greedy([1, 2, 10, 3], 2, range(4)).owners == (1, 1, 0, 1)


def test_who_has_no_owner_goes_to_the_least_loaded_rank():
    assert ShardPlan.greedy([10, 5, 5], 2, range(3), [0, None, None]).owners == (0, 1, 1)


@pytest.mark.parametrize(
    "broken", [(0, (), ()), (2, (1, 2), (0,)), (2, (1,), (2,)), (2, (1,), (-1,)), (2, (-1,), (0,))]
)
def test_a_plan_that_contradicts_itself_cannot_be_made(broken):
    with pytest.raises(PlanError):
        ShardPlan(*broken)
