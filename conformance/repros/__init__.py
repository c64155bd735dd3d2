"""Reproductions: a standalone script and a text to file upstream, for every listed deviation of torch.

``foreign/`` holds cases of other libraries: beside ``# shows: CLAUSE *`` each names its ``# column:`` of the board.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ..deviations import Deviation

CASES = Path(__file__).parent / "cases"
FOREIGN = Path(__file__).parent / "foreign"
_COLUMN = re.compile(r"^# column: (\S+)$", re.MULTILINE)
_SHOWS = re.compile(r"^# shows: (\S+) (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """What one script does on each rank; the file says in ``# shows:`` lines for which deviations it stands."""

    path: Path
    shows: tuple[tuple[str, str], ...]  # a clause, and a pattern over the deviation's "check scenario"
    column: str = "torch"  # of the board: whose break this is

    @property
    def name(self) -> str:
        return self.path.stem

    def stands_for(self, deviation: Deviation) -> bool:
        """Whether the fault that this shows is the one that the deviation is about."""
        about = f"{deviation.check} {deviation.scenario}"
        return any(fnmatchcase(clause, deviation.clause) and fnmatchcase(about, what) for clause, what in self.shows)

    def is_about(self, clause: str) -> bool:
        return any(clause == shown for shown, _ in self.shows)


def cases(folder: Path = CASES) -> Iterator[Case]:
    """All cases of a folder, by name."""
    for path in sorted(folder.glob("*_*.py")):
        if path.stem != "__init__":
            text = path.read_text(encoding="utf-8")
            yield Case(path, tuple(_SHOWS.findall(text)), *_COLUMN.findall(text))


__all__ = ["CASES", "FOREIGN", "Case", "cases"]
