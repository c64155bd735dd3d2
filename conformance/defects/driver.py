"""The driver's side: worker processes that trial, one defect each at a time, and answers in the order of asking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import workers
from .catalogue import Defect
from .trial_result import TrialResult

LIMIT_S = 600.0  # for one defect with all its checks, each of which has deadlines of its own


class Driver(workers.Driver):
    """Hunts defects with ``jobs`` workers. Use it in a ``with``: leaving it ends every process."""

    def __init__(self, jobs: int, defects: Path, checks: Path) -> None:
        super().__init__(jobs, [f"{__package__}.worker", str(defects), str(checks)], LIMIT_S)

    def __enter__(self) -> Driver:
        return self

    def trial(self, wanted: Sequence[Defect]) -> Iterator[tuple[Defect, TrialResult]]:
        """Trial all of them; yields them in order. A worker that dies or does not answer is trouble, never a kill."""
        for defect, answered in zip(wanted, self.ask([defect.id for defect in wanted]), strict=True):
            troubled = TrialResult(defect.id, (), LIMIT_S, answered.trouble)
            yield defect, troubled if answered.trouble else TrialResult.of_row(answered.row)
