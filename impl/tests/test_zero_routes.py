"""How parameters travel on a network, without processes: equal shares, what moves to them, and when that is faster."""

import pytest

from impl.zero.routes import FlatPlan

MIB = 2**20
UNEVEN = [(5,), (3, 4), (0, 7, 0), (10, 1, 1, 1), (0, 0, 0, 9), (4, 4, 4), (1, 0, 0, 0, 0), (7, 5, 3, 1, 2, 6, 4, 8)]


@pytest.mark.parametrize("numels", UNEVEN)
def test_every_element_moves_from_its_owner_to_the_rank_whose_share_it_lies_in(numels):
    plan = FlatPlan(numels)
    assert plan.length == plan.share * plan.world >= sum(numels) > plan.length - plan.world
    for rank in range(plan.world):
        assert sum(plan.leaving(rank)) == numels[rank]
        for other in range(plan.world):
            common = set(plan.part(rank)) & set(plan.share_of(other))
            assert plan.leaving(rank)[other] == plan.arriving(other)[rank] == len(common)


@pytest.mark.parametrize(("numels", "excess"), [((4, 4, 4), 0), ((9, 0, 0), 6), ((4, 4, 3), 0), ((2, 4, 3), 1)])
def test_excess_is_what_the_busiest_rank_moves_before_all_hold_their_share(numels, excess):
    assert FlatPlan(numels).excess == excess


@pytest.mark.parametrize(
    ("numels", "gathers"),
    [
        ((MIB, MIB), False),  # of two ranks: one link, one way
        ((MIB, 0), False),
        ((MIB, MIB, MIB, MIB), True),
        ((MIB, 0, 0, 0), True),  # the owner's link would carry it twice
        ((MIB, MIB, 0), True),
        ((1, 0, 0, 0), False),  # so short that only the number of messages counts
        ((0, 0, 0), False),
    ],
)
def test_what_is_long_is_gathered_by_three_ranks_or_more(numels, gathers):
    assert FlatPlan(numels).gathers(4) is gathers
