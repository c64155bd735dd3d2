"""The catalogue of guarantees: one TOML file per area, read and checked here without importing torch.

Each file says ``area``, ``title``, optionally ``complete = true`` (every testable clause of it has a check), and holds
``[[clause]]`` tables. A mistake in a file is a ``CatalogueError`` that names the file, the clause and the remedy.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..bad_input import BadInput

HERE = Path(__file__).parent
LEVELS = ("MUST", "RAISES", "DEFAULT", "WARNS", "LIMIT")
_ID = re.compile(r"[A-Z][A-Z0-9]*-\d{3}")
_TEXTS = ("id", "level", "title", "statement", "source")
_OPTIONAL_TEXTS = ("error", "section", "anchor", "anchor_in", "since", "note", "reason")
_TOP = {"area", "title", "complete", "clause"}


class CatalogueError(BadInput):
    """A catalogue file that cannot be used; the text says where and what to do."""


@dataclass(frozen=True)
class Clause:
    """One documented guarantee."""

    id: str
    level: str  # one of LEVELS
    title: str
    statement: str
    source: str
    area: str
    error: str = ""  # class that is raised or warned with; only for RAISES and WARNS
    section: str = ""
    anchor: str = ""  # phrase of the documentation that holds the guarantee
    anchor_in: str = ""  # dotted name of the object whose docstring holds the anchor
    since: str = ""  # torch version that first promised it
    note: str = ""
    testable: bool = True
    reason: str = ""  # why it cannot be tested; empty for testable clauses

    @property
    def kind(self) -> str:
        """The level and, where it has one, the class: ``RAISES ValueError``."""
        return f"{self.level} {self.error}".strip()


@dataclass(frozen=True)
class Area:
    """One file of the catalogue."""

    letter: str
    title: str
    complete: bool
    clauses: tuple[Clause, ...]
    file: str


@dataclass(frozen=True)
class Catalogue:
    """All areas; looks a clause up by its id."""

    areas: tuple[Area, ...]
    by_id: Mapping[str, Clause] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Clause]:
        for area in self.areas:
            yield from area.clauses

    def get(self, clause_id: str) -> Clause | None:
        return self.by_id.get(clause_id)

    def level(self, clause_id: str) -> str:
        """The level of a clause; empty for an id that the catalogue does not hold."""
        return self.by_id[clause_id].level if clause_id in self.by_id else ""


def matches(clause_id: str, patterns: Sequence[str]) -> bool:
    """Whether any of the shell-like patterns matches the id."""
    return any(fnmatchcase(clause_id, pattern) for pattern in patterns)


def load(folder: Path = HERE) -> Catalogue:
    """Read every TOML file of ``folder``; areas come in the order of their letters."""
    areas = sorted((read_area(path) for path in sorted(folder.glob("*.toml"))), key=lambda area: area.letter)
    by_id: dict[str, Clause] = {}
    home: dict[str, str] = {}
    for area in areas:
        for clause in area.clauses:
            if clause.id in by_id:
                raise CatalogueError(f"{area.file}: {clause.id} is already in {home[clause.id]}; an id is given once")
            by_id[clause.id], home[clause.id] = clause, area.file
    return Catalogue(tuple(areas), by_id)


def read_area(path: Path) -> Area:
    """Read and check one file of the catalogue."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogueError(f"{path}: cannot be read as TOML: {error}") from error
    unknown = sorted(set(data) - _TOP)
    if unknown:
        raise CatalogueError(f"{path}: unknown key {unknown[0]!r}; a catalogue has {', '.join(sorted(_TOP))}")
    letter, title = (_text(data, key, str(path)) for key in ("area", "title"))
    complete = data.get("complete", False)
    if not isinstance(complete, bool):
        raise CatalogueError(f"{path}: complete must be true or false, not {complete!r}")
    tables = data.get("clause", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise CatalogueError(f"{path}: clauses are written as [[clause]] tables")
    clauses = tuple(_clause(table, letter, f"{path}: clause {number}") for number, table in enumerate(tables, 1))
    return Area(letter, title, complete, clauses, str(path))


def _clause(table: dict[str, Any], area: str, where: str) -> Clause:
    if isinstance(table.get("id"), str):
        where = f"{where} ({table['id']})"
    unknown = sorted(set(table) - {*_TEXTS, *_OPTIONAL_TEXTS, "testable"})
    if unknown:
        known = ", ".join([*_TEXTS, *_OPTIONAL_TEXTS, "testable"])
        raise CatalogueError(f"{where}: unknown key {unknown[0]!r}; known are {known}")
    texts = {key: _text(table, key, where) for key in _TEXTS}
    texts |= {key: _text(table, key, where) for key in _OPTIONAL_TEXTS if key in table}
    testable = table.get("testable", True)
    clause = Clause(**texts, area=area, testable=testable)  # type: ignore[arg-type]
    fault = _fault(clause)
    if fault:
        raise CatalogueError(f"{where}: {fault}")
    return clause


def _fault(clause: Clause) -> str | None:
    """What contradicts itself in a clause whose fields have the right types."""
    if not _ID.fullmatch(clause.id):
        return "an id is capitals, a dash and three digits, such as JOIN-001"
    if clause.level not in LEVELS:
        return f"level {clause.level!r} is none of {', '.join(LEVELS)}"
    if clause.level in ("RAISES", "WARNS") and not clause.error:
        return f"level {clause.level} needs error = the class that is raised or warned with"
    if clause.level not in ("RAISES", "WARNS") and clause.error:
        return f"error is only for RAISES and WARNS, this is {clause.level}"
    if not isinstance(clause.testable, bool):
        return f"testable must be true or false, not {clause.testable!r}"
    if clause.testable and clause.reason:
        return "reason says why a clause is not testable, but testable is not false"
    if not clause.testable and not clause.reason:
        return "testable = false needs a reason"
    if clause.anchor and not clause.anchor_in:
        return "anchor needs anchor_in = the dotted name of the object whose docstring holds it"
    return None


def _text(table: dict[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise CatalogueError(f"{where}: {key} must be a non-empty text, not {value!r}")
    return value


__all__ = ["HERE", "LEVELS", "Area", "Catalogue", "CatalogueError", "Clause", "load", "matches", "read_area"]
