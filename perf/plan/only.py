"""Narrowing a plan to the series that were named: what ``perf run --only`` measures."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from conformance.bad_input import BadInput

from .cells import Cell
from .planning import Plan

_FEW = 40  # cells that an error can list


def narrowed(planned: Plan, names: Sequence[str]) -> Plan:
    """The groups of a plan with just the cells that were named, each beside what its ratio is over.

    A name is a series as records have it; what the dashboard adds for a ratio ("/ torch") may follow. The partner
    comes along because only cells of one measurement compare: the other subjects' cells of the same kind, and of one
    that is measured twice the other copy.
    """
    known = {cell.series: cell for group in planned.groups for cell in group}
    wanted = [known[_series(name, known, planned)] for name in names]
    kept = [group.only({cell.series for cell in group if _beside(cell, wanted)}) for group in planned.groups]
    return replace(planned, groups=tuple(group for group in kept if group.cells))


def _beside(cell: Cell, wanted: Sequence[Cell]) -> bool:
    """Whether a cell was named, or belongs to one that was."""
    return any(
        cell == one or (_kind(cell) == _kind(one) and (cell.copy == one.copy == 1 or cell.subject == one.subject))
        for one in wanted
    )


def _kind(cell: Cell) -> Cell:
    """What subjects that are compared have in common. Only one of them may know some settings."""
    return replace(cell, subject="", settings="", copy=1)


def _series(name: str, known: dict[str, Cell], planned: Plan) -> str:
    """The series that a name stands for; ``BadInput`` if there is none."""
    plain = name.strip()
    for each in (plain, plain.rpartition(" / ")[0]):
        if each in known:
            return each
    near = difflib.get_close_matches(plain, known, n=3, cutoff=0.6)
    listed = " or ".join(map(repr, near)) if near else ", ".join(map(repr, list(known)[:_FEW]))
    raise BadInput(
        f"sweep {planned.sweep.name!r} measures no series {plain!r} here; "
        + (f"did you mean {listed}?" if near else f"there are {listed}")
    )
