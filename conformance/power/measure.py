"""From a seed to ended mutants: map what is not mapped, draw, try, keep every answer so that a run can go on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.records.lines import append, whole_lines

from ..workers import Driver
from .drawing import Mutant, Pool
from .rate import KILLED, NOT_REACHED, STILLBORN, SURVIVED, TROUBLE
from .reach import Mapped, Reach, Store

LIMIT_S = 3600.0  # for one mutant with all its checks, each of which has limits of its own
Row = dict[str, Any]
Say = Callable[[str], None]


def reach(driver: Driver, pool: Pool, store: Store, say: Say) -> Reach:
    """Which cases execute what, asking only for cases that are not known."""
    known = store.load()
    (answered,) = driver.ask([json.dumps({"list": True})])
    if answered.trouble:
        raise RuntimeError(f"the checks could not be collected: {answered.trouble}")
    cases: list[str] = answered.row["cases"]
    missing = [case for case in cases if case not in known]
    if missing:
        say(f"mapping what {len(missing)} of {len(cases)} cases execute")
    for number, answered in enumerate(driver.ask([json.dumps({"map": case}) for case in missing]), 1):
        if answered.trouble:
            raise RuntimeError(f"{missing[number - 1]} could not be mapped: {answered.trouble}")
        row = answered.row
        one = Mapped(row["case"], row["outcome"], row["seconds"], frozenset(row["marked"]))
        known[one.case] = one
        store.add(one)
        if number % 100 == 0:
            say(f"  {number} mapped")
    return Reach(pool.sources, [known[case] for case in cases])


def trials(
    driver: Driver, drawn: Iterator[Mutant], number: int, reached: Reach, ended: Ended, most: int | None = None
) -> Iterator[Row]:
    """The first ``number`` mutants that can be loaded, and those before them that cannot; a row for each as it ends.

    With ``most`` a mutant meets no more cases than that; whether it survives all is then left open, and not kept.
    """
    lacking = number
    while lacking and (batch := list(itertools.islice(drawn, lacking))):
        lacking = 0
        for row in _batch(driver, batch, reached, ended, most):
            lacking += row["end"] == STILLBORN
            yield row


def _batch(
    driver: Driver, batch: Sequence[Mutant], reached: Reach, ended: Ended, most: int | None
) -> Iterator[Row]:
    yield from (ended[mutant.id] for mutant in batch if mutant.id in ended)
    cases = {mutant.id: reached.cases(mutant) for mutant in batch if mutant.id not in ended}
    waiting = [mutant for mutant in batch if cases.get(mutant.id)]
    for mutant in batch:
        if mutant.id in cases and not cases[mutant.id]:
            yield ended.add({**_about(mutant), "end": NOT_REACHED, "cases": 0, "tried": 0, "seconds": 0.0})
    for place, answered in driver.as_answered([_question(mutant, cases[mutant.id][:most]) for mutant in waiting]):
        mutant = waiting[place]
        row = {**_about(mutant), "cases": len(cases[mutant.id])}
        row |= {"end": TROUBLE, "witness": answered.trouble} if answered.trouble else _end(answered.row)
        is_final = row["end"] in (KILLED, STILLBORN) or (row["end"] == SURVIVED and row["tried"] == row["cases"])
        yield ended.add(row) if is_final else row


def _question(mutant: Mutant, cases: Sequence[str]) -> str:
    return json.dumps({"mutant": mutant.id, "file": mutant.file, "mutated": mutant.mutated, "cases": list(cases)})


def _about(mutant: Mutant) -> Row:
    return {
        "mutant": mutant.id, "part": mutant.part, "operator": mutant.edit.operator, "line": mutant.edit.line,
        "diff": mutant.diff,
    }  # fmt: skip


def _end(row: Mapping[str, Any]) -> Row:
    if "stillborn" in row:
        return {"end": STILLBORN, "witness": row["stillborn"], "tried": 0, "seconds": 0.0}
    found = {name: row[name] for name in ("by", "outcome", "witness", "tried", "seconds", "unsteady") if name in row}
    return {"end": KILLED if row["killed"] else SURVIVED, **found}


class Ended(dict[str, Row]):
    """The rows of ended mutants of one state of the sources by identity, kept in a file as they come."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.update((row["mutant"], row) for row in whole_lines(path) if {"mutant", "end"} <= row.keys())

    def add(self, row: Row) -> Row:
        self[row["mutant"]] = row
        append(self._path, row)
        return row
