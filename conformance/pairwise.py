"""Few combinations of many factors in which any two values of any two factors meet (all-pairs covering)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import combinations

Value = Hashable
Row = dict[str, Value]  # a value for every factor, in the order of the factors
Forbidden = Mapping[str, Collection[Value]]  # values that must not come together: one of each factor named

TRIES = 40
_OPEN = -1  # no value yet

# Within this file every value of every factor is a number, which grows from factor to factor, and so is every pair of
# them: names would read better and take four times as long, before every run of the suite.
_Numbers = Sequence[int]  # a number for every factor, or _OPEN


def covering(factors: Mapping[str, Sequence[Value]], forbidden: Sequence[Forbidden] = ()) -> list[Row]:
    """Rows that hold no forbidden combination and, between them, every pair that some such row can hold.

    Greedy and always the same: the next row is the most useful of several, each of which begins with a pair that is
    still missing and is filled, factor by factor, with what brings most missing pairs, going back where that leads
    into something forbidden.
    """
    named = [(factor, value) for factor, values in factors.items() for value in values]
    found = _Covering([factor for factor, _ in named], [_numbers(named, each) for each in forbidden])
    return [dict(named[number] for number in row) for row in found.rows()]


def _numbers(named: Sequence[tuple[str, Value]], forbidden: Forbidden) -> list[set[int]]:
    """By factor that is named, the numbers of the values that are."""
    return [
        {number for number, (factor, value) in enumerate(named) if factor == name and value in values}
        for name, values in forbidden.items()
    ]


class _Covering:
    """One search: what may be chosen, and the pairs that are in no row yet."""

    def __init__(self, factor_of: Sequence[str], forbidden: Sequence[Sequence[set[int]]]) -> None:
        self._count = len(factor_of)
        self._choices = [
            [number for number in range(self._count) if factor_of[number] == factor]
            for factor in dict.fromkeys(factor_of)
        ]
        self._place = {number: place for place, choice in enumerate(self._choices) for number in choice}
        self._forbidden = forbidden
        self._missing = dict.fromkeys(
            self._pair(one, other)
            for ours, theirs in combinations(self._choices, 2)
            for one in ours
            for other in theirs
        )

    def rows(self) -> Iterator[_Numbers]:
        while self._missing:
            tried: list[_Numbers] = []
            for pair in list(self._missing)[:: 1 + len(self._missing) // TRIES]:
                row = next(self._completions(self._begun(pair)), None)
                if row is None:
                    del self._missing[pair]  # no allowed row can hold this pair
                else:
                    tried.append(row)
            if tried:
                best = max(tried, key=lambda row: sum(pair in self._missing for pair in self._pairs(row)))
                for pair in self._pairs(best):
                    self._missing.pop(pair, None)
                yield best

    def _pair(self, one: int, other: int) -> int:
        return one * self._count + other if one < other else other * self._count + one

    def _pairs(self, row: _Numbers) -> list[int]:
        return [self._pair(one, other) for one, other in combinations(row, 2)]

    def _begun(self, pair: int) -> _Numbers:
        row = [_OPEN] * len(self._choices)
        for number in divmod(pair, self._count):
            row[self._place[number]] = number
        return row

    def _completions(self, row: _Numbers) -> Iterator[_Numbers]:
        """Every allowed row that agrees with this part of one, the most useful first."""
        if any(all(not values.isdisjoint(row) for values in each) for each in self._forbidden):
            return
        if _OPEN not in row:
            yield row
            return
        place = row.index(_OPEN)
        held = [number for number in row if number != _OPEN]
        gain = {new: sum(self._pair(old, new) in self._missing for old in held) for new in self._choices[place]}
        for number in sorted(gain, key=lambda each: gain[each], reverse=True):
            yield from self._completions([*row[:place], number, *row[place + 1 :]])
