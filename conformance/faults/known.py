"""Cells that are known to be bad, with the reason: what else is bad is a regression, and what is good is unlisted."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ..bad_input import BadInput
from .judging import BAD, NOTHING
from .running import Row

_ENOUGH = 8  # cells that are all good by more than luck
PATH = Path(__file__).with_name("known.toml")


@dataclass(frozen=True)
class Listed:
    """Cells of a subject that are bad, in one of these ways."""

    subject: str
    cells: tuple[str, ...]  # patterns of ids
    verdicts: tuple[str, ...]
    reason: str
    sometimes: bool = False  # some are good now and then: which rank notices first is a matter of luck

    def covers(self, subject: str, row: Row) -> bool:
        """Whether it is about this cell."""
        return self.subject == subject and any(fnmatchcase(row.cell.id, pattern) for pattern in self.cells)


def load(path: Path = PATH) -> list[Listed]:
    """All entries; BadInput for one that says nothing that could be."""
    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("bad", []):
        try:
            listed = Listed(
                entry["subject"], tuple(entry["cells"]), tuple(entry["verdicts"]), entry["reason"],
                entry.get("sometimes", False),
            )  # fmt: skip
        except KeyError as missing:
            raise BadInput(f"{path.name}: an entry has no {missing}") from None
        unknown = set(listed.verdicts) - set(BAD)
        if unknown:
            raise BadInput(f"{path.name}: {', '.join(sorted(unknown))}: not one of {', '.join(BAD)}")
        found.append(listed)
    return found


def surprises(subject: str, rows: Sequence[Row], listed: Collection[Listed]) -> list[str]:
    """Cells that are bad in a way that is not listed, and cells that are listed and good."""
    found = []
    for row in rows:
        about = [each for each in listed if each.covers(subject, row)]
        if row.judged.verdict in NOTHING:
            continue
        if row.judged.good:
            if about and not any(each.sometimes for each in about):
                found.append(f"good though listed: {row.cell.id}")
        elif not any(row.judged.verdict in each.verdicts for each in about):
            found.append(f"{row.judged.verdict}: {row.cell.id}: {_first(row.judged.why)}")
    return [*found, *_stale(subject, rows, listed)]


def _stale(subject: str, rows: Sequence[Row], listed: Collection[Listed]) -> list[str]:
    """Entries for cells that are bad sometimes, all of which are good now."""
    found = []
    for each in listed:
        about = [row for row in rows if each.covers(subject, row) and row.judged.verdict not in NOTHING]
        if each.sometimes and len(about) >= _ENOUGH and all(row.judged.good for row in about):
            found.append(f"all {len(about)} good though listed: {', '.join(each.cells)} ({each.reason})")
    return found


def _first(why: str) -> str:
    return " ".join(why.split())[:300]
