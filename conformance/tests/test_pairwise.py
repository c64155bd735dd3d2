"""Few combinations that hold every pair: whatever the factors, and whatever must not come together."""

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.fixtures.pairwise import covering

factors = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda sizes: {f"factor {place}": list(range(size)) for place, size in enumerate(sizes)}
)


@st.composite
def constrained(draw):
    """Factors, and a few combinations of their values that are forbidden."""
    found = draw(factors)
    values = st.sets(st.integers(0, 3), min_size=1, max_size=2)
    one = st.dictionaries(st.sampled_from(sorted(found)), values, min_size=1)
    return found, draw(st.lists(one, max_size=4))


def allowed(row, forbidden):
    return not any(all(row[name] in values for name, values in each.items()) for each in forbidden)


def pairs(row):
    return set(combinations(row.items(), 2))


@settings(deadline=None)
@given(constrained())
def test_every_pair_that_is_possible_at_all_is_held_by_an_allowed_row(given_):
    found, forbidden = given_
    every = [dict(zip(found, values, strict=True)) for values in product(*found.values())]
    possible = [row for row in every if allowed(row, forbidden)]
    rows = covering(found, forbidden)
    assert all(row in possible for row in rows)
    assert set().union(*map(pairs, rows)) == set().union(*map(pairs, possible))
    assert len(rows) <= len(possible)


@settings(deadline=None)
@given(constrained())
def test_no_row_is_for_nothing_and_the_rows_are_the_same_every_time(given_):
    found, forbidden = given_
    rows = covering(found, forbidden)
    assert rows == covering(found, forbidden)
    held = set()
    for row in rows:
        assert pairs(row) - held, "a row that brings no new pair"
        held |= pairs(row)


def test_the_rows_are_few():
    """Ten factors of three values: 59049 combinations."""
    rows = covering({f"factor {place}": "abc" for place in range(10)})
    assert 9 <= len(rows) <= 24
