"""The figure: what share of the mutants that the suite could kill it kills, with an interval, whole and by package."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from .drawing import PARTS
from .triage import UNTRIAGED, Judged, judged

KILLED, SURVIVED, NOT_REACHED = "killed", "survived", "not reached"
STILLBORN, TROUBLE = "stillborn", "trouble"  # cannot be loaded; could not be tried: neither is counted
ALL = "all"
#: what the first execution shows whatever it is about; mistakes that people leave behind are not of that kind
_PLAIN = re.compile(r"\b(TypeError|AttributeError|NameError|UnboundLocalError)\b")


@dataclass(frozen=True)
class Rate:
    """Of one package, or of all."""

    part: str
    drawn: int
    killed: int
    excluded: int  # survivors that no check can kill: equivalent, performance only, accelerator only
    untriaged: int
    plain: int  # of the killed: by an error that any execution of the line shows

    @property
    def counted(self) -> int:
        return self.drawn - self.excluded

    @property
    def value(self) -> float | None:
        return self.killed / self.counted if self.counted else None

    @property
    def subtle(self) -> float | None:
        """The rate without those that fell by a plain error: nearer to what mistakes of people would meet."""
        left = self.counted - self.plain
        return (self.killed - self.plain) / left if left else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.killed, self.counted)

    def row(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "part": self.part, "drawn": self.drawn, "killed": self.killed, "counted": self.counted,
            "untriaged": self.untriaged, "rate": self.value, "low": low, "high": high, "subtle": self.subtle,
        }  # fmt: skip


def wilson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share; (0, 1) where nothing was tried."""
    if not trials:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, squared = hits / trials, z * z / trials
    middle = (share + squared / 2) / (1 + squared)
    half = z * math.sqrt(share * (1 - share) / trials + squared / (4 * trials)) / (1 + squared)
    return max(0.0, middle - half), min(1.0, middle + half)


def rates(rows: Sequence[Mapping[str, Any]], entries: Mapping[str, Judged]) -> list[Rate]:
    """Of all rows of tried mutants, then of each package. What was not tried is left out."""
    tried = [row for row in rows if row["end"] not in (STILLBORN, TROUBLE)]
    parts = [part for part in PARTS if any(row["part"] == part for row in tried)]
    of_part = {part: [row for row in tried if row["part"] == part] for part in parts}
    return [_rate(part, several, entries) for part, several in {ALL: tried, **of_part}.items()]


def _rate(part: str, rows: Sequence[Mapping[str, Any]], entries: Mapping[str, Judged]) -> Rate:
    found = [judged(row["mutant"], entries) for row in rows if row["end"] != KILLED]
    return Rate(
        part, len(rows), len(rows) - len(found), sum(not one.counts for one in found),
        sum(one.kind == UNTRIAGED for one in found),
        sum(row["end"] == KILLED and bool(_PLAIN.search(row.get("witness", ""))) for row in rows),
    )  # fmt: skip
