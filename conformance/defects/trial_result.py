"""What came of trying a defect: plain values that travel from the workers to the driver."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """How one clause met one defect."""

    clause: str
    killed: bool
    check: str = ""  # the first that caught it, with scenario and world; or the last word on why none did
    outcome: str = ""
    witness: str = ""


@dataclass(frozen=True)
class TrialResult:
    """How a defect met all its clauses."""

    defect: str
    answers: tuple[Answer, ...]
    seconds: float = 0.0
    trouble: str = ""  # why the defect could not be tried at all

    @property
    def killed(self) -> bool:
        """Every clause that was named has caught it."""
        return not self.trouble and bool(self.answers) and all(answer.killed for answer in self.answers)

    def row(self) -> dict[str, Any]:
        """As it is written to JSON."""
        return asdict(self)

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> TrialResult:
        """Read back from JSON."""
        return cls(**{**row, "answers": tuple(Answer(**answer) for answer in row["answers"])})
