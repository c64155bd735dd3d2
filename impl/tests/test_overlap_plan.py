"""The overlap plan: who owns what of which bucket. Pure arithmetic, no processes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.overlap.plan import OverlapPlan, Piece, cut, sharded_buckets, whole_buckets, windows


@st.composite
def bucketed(draw):
    """Sizes of parameters, their buckets, a number of ranks."""
    numels = draw(st.lists(st.integers(1, 500), min_size=1, max_size=30))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(numels) - 1)), max_size=6)))
    edges = [0, *(c for c in cuts if c < len(numels)), len(numels)]
    buckets = [tuple(range(a, b)) for a, b in itertools.pairwise(edges)]
    return numels, buckets, draw(st.integers(1, 5))


@given(bucketed())
def test_whole_buckets_go_round(case):
    _, buckets, world = case
    owners = whole_buckets(buckets, world)
    assert all(owners[index] == place % world for place, bucket in enumerate(buckets) for index in bucket)


@given(bucketed())
def test_sharding_gives_every_parameter_one_owner_and_keeps_the_load_even(case):
    numels, buckets, world = case
    owners = sharded_buckets(buckets, numels, world)
    assert sorted(owners) == list(range(len(numels)))
    loads = [sum(numels[i] for i, owner in owners.items() if owner == rank) for rank in range(world)]
    limit = sum(numels) / world
    assert max(loads) <= sum(numels)
    assert sum(loads) == sum(numels)
    if len(buckets) == 1 and len(set(numels)) == 1:
        assert max(loads) - min(loads) <= numels[0] * max(1, limit // numels[0])


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 100))
def test_pieces_are_contiguous_and_below_the_limit(numels, limit):
    pieces = cut(range(len(numels)), numels, limit)
    assert [index for piece in pieces for index in piece] == list(range(len(numels)))
    assert all(len(piece) == 1 or sum(numels[i] for i in piece) < limit for piece in pieces)
    for piece, following in itertools.pairwise(pieces):  # none could have been longer
        assert sum(numels[i] for i in piece) + numels[following[0]] >= limit


def test_the_documented_example_three_equal_layers_and_one():
    owners = sharded_buckets([(0, 1, 2), (3,)], [16] * 4, 3)
    assert owners[3] == 0  # the smallest bucket comes first
    assert {owners[0], owners[1], owners[2]} == {0, 1, 2}


def test_more_pieces_than_ranks():
    owners = sharded_buckets([(0, 1, 2, 3)], [16] * 4, 3)
    assert sorted(owners.values()) == [0, 0, 1, 2]


def test_pieces_come_in_rank_order_and_know_their_runs():
    layout = OverlapPlan(((0, 1, -1, 2, 3), (4,)), (2, 0, 2, 0, 1))
    assert layout.pieces(0) == (Piece(0, (1, 4)), Piece(2, (0, 3)))
    assert layout.pieces(0)[0].runs() == [(1, 2), (4, 5)]
    assert Piece(1, (2, 3, 4, 7)).runs() == [(2, 5), (7, 8)]


@pytest.mark.parametrize("buckets", [((0, 0),), ((0,), (0,)), ((0,), ()), ((7,),)])
def test_a_layout_that_contradicts_itself_cannot_be_made(buckets):
    with pytest.raises(AssertionError):
        OverlapPlan(buckets, (0, 0))


def test_a_parameter_that_reaches_the_limit_is_a_piece_by_itself():
    assert cut(range(4), [8, 8, 16, 8], 16.0) == [(0,), (1,), (2,), (3,)]
    assert cut(range(4), [8, 8, 16, 8], 17.0) == [(0, 1), (2,), (3,)]


def test_buckets_share_one_limit_so_that_a_small_one_stays_whole():
    owners = sharded_buckets([(0, 1), (2, 3, 4)], [2, 2, 8, 8, 8], 3)
    assert owners[0] == owners[1]
    assert {owners[2], owners[3], owners[4]} == {0, 1, 2}


def test_a_window_of_publications_ends_where_every_rank_has_a_part():
    assert windows([[0], [1], [2], [0], [1]], 3) == [range(3), range(3, 5)]
    assert windows([[0, 1], [1], [], [0]], 2) == [range(1), range(1, 4)]
    assert windows([[0], [0]], 1) == [range(1), range(1, 2)]
    assert windows([], 2) == []
