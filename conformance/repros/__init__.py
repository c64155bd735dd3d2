"""Reproductions: a standalone script and a text to file upstream, for every listed deviation of torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ..deviations import Deviation

CASES = Path(__file__).parent / "cases"
_SHOWS = re.compile(r"^# shows: (\S+) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """What one script does on each rank; the file says in ``# shows:`` lines for which deviations it stands."""

    path: Path
    shows: tuple[tuple[str, str], ...]  # a clause, and a pattern over the deviation's "check scenario"

    @property
    def name(self) -> str:
        return self.path.stem

    def stands_for(self, deviation: Deviation) -> bool:
        """Whether the fault that this shows is the one that the deviation is about."""
        about = f"{deviation.check} {deviation.scenario}"
        return any(fnmatchcase(clause, deviation.clause) and fnmatchcase(about, what) for clause, what in self.shows)

    def is_about(self, clause: str) -> bool:
        return any(clause == shown for shown, _ in self.shows)


def cases() -> Iterator[Case]:
    """All cases, by name."""
    for path in sorted(CASES.glob("*_*.py")):
        if path.stem != "__init__":
            yield Case(path, tuple(_SHOWS.findall(path.read_text(encoding="utf-8"))))


__all__ = ["CASES", "Case", "cases"]
