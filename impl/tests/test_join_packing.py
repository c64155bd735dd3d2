"""Counts packed into whole numbers: what is added packed is added as counts, whatever lies beside it."""

from hypothesis import given
from hypothesis import strategies as st

from impl.join.packing import Packing


@st.composite
def shares(draw):
    """Widths, and what each of a few ranks adds; no sum needs more bits than its width."""
    widths = draw(st.lists(st.integers(1, 18), min_size=1, max_size=60).map(tuple))
    ranks = draw(st.integers(1, 5))
    added = [[0] * len(widths) for _ in range(ranks)]
    for place, width in enumerate(widths):
        left = (1 << width) - 1
        for counts in added:
            counts[place] = draw(st.integers(0, left))
            left -= counts[place]
    return widths, added


@given(shares())
def test_sums_of_packed_numbers_hold_the_sums_of_the_counts(given_shares):
    widths, added = given_shares
    packing = Packing(widths)
    packed = [packing.pack(counts) for counts in added]
    assert all(len(each) == packing.size and max(each) < 2**62 for each in packed)
    sums = [sum(column) for column in zip(*packed, strict=True)]
    assert max(sums) < 2**62
    assert packing.unpack(sums) == [sum(column) for column in zip(*added, strict=True)]


def test_what_fits_into_one_number_takes_one():
    assert Packing((4, 18, *[4] * 8, *[1] * 8)).size == 1
    assert Packing((62, 1)).size == 2
