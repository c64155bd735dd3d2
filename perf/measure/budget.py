"""Fits a sweep into the time there is: each group gets its share of what is left."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from conformance.bad_input import BadInput

from ..plan.cells import Group
from ..plan.planning import seconds
from ..plan.sweep import Sweep
from .runner import Limit

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_END_S = 8.0  # for the table and the files at the end
_LEAST_LIMIT_S = 120.0
_PATIENCE = 20.0  # times the estimate, which is for a quiet machine


def duration(text: str) -> float:
    """Seconds from 90s, 10m or 1.5h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    value = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not value:
        raise BadInput(f"budget {text!r} is no time with its unit; give for example 90s, 10m or 1.5h")
    return value


class Budget:
    """The time of a sweep. Without a limit every group gets its rounds and a deadline far beyond its estimate."""

    def __init__(self, total_s: float | None, sweep: Sweep, cores: int) -> None:
        self.total_s, self._sweep, self._cores = total_s, sweep, cores
        self._began = time.monotonic()

    @property
    def left_s(self) -> float:
        assert self.total_s is not None
        return self.total_s - _END_S - (time.monotonic() - self._began)

    def gone(self) -> bool:
        return self.total_s is not None and self.left_s <= 0

    def share(self, groups: Sequence[Group]) -> float | None:
        """Seconds for measuring the first of the groups that are still to come; None: as many as its rounds take."""
        if self.total_s is None:
            return None
        weights = [seconds(group, self._sweep, self._cores) for group in groups]
        share = self.left_s * weights[0] / sum(weights)
        return max(share / 2, share - seconds(groups[0], self._sweep, self._cores, rounds=0))

    def limit(self, group: Group) -> Limit:
        """For a run that starts now."""
        patience_s = max(_LEAST_LIMIT_S, _PATIENCE * seconds(group, self._sweep, self._cores))
        if self.total_s is None or self.left_s + _END_S / 2 > patience_s:
            return Limit(patience_s)
        return Limit(max(1.0, self.left_s + _END_S / 2), by_budget=True)
