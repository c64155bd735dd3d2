"""Few combinations of many factors in which any two values of any two factors meet (all-pairs covering)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import combinations

Value = Hashable
Row = dict[str, Value]  # a value for every factor, in the order of the factors
Pair = tuple[tuple[str, Value], tuple[str, Value]]
Forbidden = Mapping[str, Collection[Value]]  # values that must not come together: one of each factor named

TRIES = 40
_NOTHING = object()  # no factor has this value


def covering(factors: Mapping[str, Sequence[Value]], forbidden: Sequence[Forbidden] = ()) -> list[Row]:
    """Rows that hold no forbidden combination and, between them, every pair that some such row can hold.

    Greedy and always the same: the next row is the most useful of several, each of which begins with a pair that is
    still missing and is filled, factor by factor, with what brings most missing pairs, going back where that leads
    into something forbidden.
    """
    missing = dict.fromkeys(_pairs_of(factors))
    rows: list[Row] = []
    while missing:
        tried: list[Row] = []
        for pair in list(missing)[:: 1 + len(missing) // TRIES]:
            row = next(_completions(dict(pair), factors, forbidden, missing), None)
            if row is None:
                del missing[pair]  # no allowed row can hold this pair
            else:
                tried.append({name: row[name] for name in factors})
        if tried:
            best = max(tried, key=lambda row: sum(pair in missing for pair in _pairs(row)))
            for pair in _pairs(best):
                missing.pop(pair, None)
            rows.append(best)
    return rows


def _pairs(row: Row) -> Iterator[Pair]:
    return combinations(row.items(), 2)


def _pairs_of(factors: Mapping[str, Sequence[Value]]) -> Iterator[Pair]:
    for (one, ours), (other, theirs) in combinations(factors.items(), 2):
        yield from (((one, mine), (other, yours)) for mine in ours for yours in theirs)


def _completions(
    row: Row, factors: Mapping[str, Sequence[Value]], forbidden: Sequence[Forbidden], missing: Mapping[Pair, None]
) -> Iterator[Row]:
    """Every allowed row that agrees with this part of one, the most useful first."""
    if any(all(row.get(name, _NOTHING) in values for name, values in each.items()) for each in forbidden):
        return
    name = next((name for name in factors if name not in row), None)
    if name is None:
        yield row
        return
    order = {factor: place for place, factor in enumerate(factors)}

    def gain(value: Value) -> int:
        held = (((other, row[other]), (name, value)) for other in row)
        return sum((pair if order[pair[0][0]] < order[name] else pair[::-1]) in missing for pair in held)

    for value in sorted(factors[name], key=gain, reverse=True):
        yield from _completions({**row, name: value}, factors, forbidden, missing)

