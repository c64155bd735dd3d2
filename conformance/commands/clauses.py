"""``python -m conformance clauses``: the catalogue with its coverage, without importing torch."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence

from ..bad_input import BadInput
from ..clauses import LEVELS, Catalogue, Clause, load, matches
from ..clauses.anchors import stale
from ..engine.inventory import Declared, by_clause, declared


def clauses(given: Namespace) -> int:
    """Print every selected clause with the number of its checks, then the coverage, then what is wrong."""
    catalogue = load()
    selected = select(catalogue, given.select)
    cover = by_clause(declared())
    for area in catalogue.areas:
        mine = [clause for clause in area.clauses if clause in selected]
        if mine:
            print(f"\nArea {area.letter}: {area.title}")
        for clause in mine:
            print(_line(clause, len(cover.get(clause.id, ()))))
    print()
    for line in _table(catalogue, selected, cover):
        print(line)
    for line in [*_untestable(selected), *_strangers(catalogue, cover), *_stale(selected)]:
        print(line)
    return 0


def select(catalogue: Catalogue, text: str) -> list[Clause]:
    """The clauses that the patterns select; each pattern must match something."""
    patterns = [part.strip() for part in text.split(",")]
    for pattern in patterns:
        if not any(matches(clause.id, [pattern]) for clause in catalogue):
            raise BadInput(f"clause pattern {pattern!r} matches nothing; `python -m conformance clauses` lists all")
    return [clause for clause in catalogue if matches(clause.id, patterns)]


def _line(clause: Clause, checks: int) -> str:
    count = "untestable" if not clause.testable else f"{checks} check{'' if checks == 1 else 's'}"
    return f"  {clause.id:<9} {clause.kind:<22} {count:>10}  {clause.title}"


def _table(catalogue: Catalogue, selected: Sequence[Clause], cover: Mapping[str, list[Declared]]) -> list[str]:
    """Coverage by area and level: clauses with a check, of the testable ones."""
    rows: list[tuple[str, ...]] = [("area", *LEVELS, "all", "checks")]
    for area in catalogue.areas:
        mine = [clause for clause in selected if clause.area == area.letter]
        if mine:
            rows.append((area.letter, *_counts(mine, cover)))
    if len(rows) > 2:
        rows.append(("all", *_counts(selected, cover)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return ["Testable clauses that have a check, by area and level:", *lines]


def _counts(mine: Sequence[Clause], cover: Mapping[str, list[Declared]]) -> list[str]:
    testable = Counter(clause.level for clause in mine if clause.testable)
    covered = Counter(clause.level for clause in mine if clause.testable and clause.id in cover)
    checks = {(found.file, found.name) for clause in mine for found in cover.get(clause.id, ())}
    cells = [f"{covered[level]}/{testable[level]}" if testable[level] else "-" for level in LEVELS]
    return [*cells, f"{covered.total()}/{testable.total()}", str(len(checks))]


def _untestable(selected: Sequence[Clause]) -> list[str]:
    lines = [f"  {clause.id}: {clause.reason}" for clause in selected if not clause.testable]
    return ["", "Untestable:", *lines] if lines else []


def _strangers(catalogue: Catalogue, cover: Mapping[str, list[Declared]]) -> list[str]:
    lines = [
        f"  {clause}: cited by {found.name} ({found.file.name}:{found.line})"
        for clause, checks in cover.items()
        if catalogue.get(clause) is None
        for found in checks
    ]
    return ["", "Cited by a check, but not in the catalogue:", *lines] if lines else []


def _stale(selected: Sequence[Clause]) -> list[str]:
    lines = [f"  {clause}: {fault}" for clause, fault in stale(selected).items()]
    anchored = sum(bool(clause.anchor) for clause in selected)
    good = f"Anchors in torch's documentation: {anchored - len(lines)} of {anchored} found"
    bad = ["Stale anchors (the documentation has changed; read the clause again):", *lines] if lines else []
    return ["", good, *bad]
