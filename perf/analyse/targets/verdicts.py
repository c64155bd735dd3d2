"""What an interval allows to say of a target, of one part of a line and of the whole line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..intervals import Interval
from ..signs import less_p, more_p

REACHED, MISSED, CANNOT_TELL, NOT_MEASURED = "reached", "missed", "cannot tell", "not measured"
_WORST_FIRST = (MISSED, NOT_MEASURED, CANNOT_TELL, REACHED)


@dataclass(frozen=True)
class Target:
    """At most ``limit``; with ``within``, as near to it as that on either side."""

    limit: float
    within: float | None = None
    unit: str = ""

    def __str__(self) -> str:
        limit = f"{self.limit:.2f}{f' {self.unit}' if self.unit else ''}"
        return f"≤ {limit}" if self.within is None else f"{limit} ± {self.within:g}"

    def verdict(self, found: Interval | None) -> str:
        """Reached or missed only where the whole interval lies on one side."""
        if found is None:
            return NOT_MEASURED
        if not found.known:
            return CANNOT_TELL
        low = float("-inf") if self.within is None else self.limit - self.within
        high = self.limit + (self.within or 0.0)
        if low <= found.low and found.high <= high:
            return REACHED
        return MISSED if found.low > high or found.high < low else CANNOT_TELL

    def p_value(self, found: Interval) -> float:
        """Of what ``verdict`` says: how probable so many rounds on that side are if it were not so (two sides)."""
        low, high = self.limit - (self.within or 0.0), self.limit + (self.within or 0.0)
        if self.verdict(found) == REACHED:
            return 2 * max(less_p(found.sample, high), 0.0 if self.within is None else more_p(found.sample, low))
        return 2 * min(more_p(found.sample, high), 1.0 if self.within is None else less_p(found.sample, low))


def worst(verdicts: Sequence[str]) -> str:
    """Of a line: what the part says that stands worst; a line without parts was not measured."""
    return min(verdicts, key=_WORST_FIRST.index, default=NOT_MEASURED)
