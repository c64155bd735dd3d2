"""``python -m conformance defects``: does the suite notice wrong implementations? A row for each defect and clause."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..bad_input import BadInput
from ..clauses import Catalogue, load
from ..defects import catalogue, last_run
from ..defects.catalogue import Defect
from ..defects.trial_result import Answer, TrialResult
from ..ending import terminated_like_interrupted
from ..engine import inventory
from ..engine.judgement import BROKEN, INTERRUPTED, OK
from ..engine.request import number, words
from ..workers import Driver

LIMIT_S = 600.0  # for one defect with all its checks, each of which has deadlines of its own


def defects(given: Namespace) -> int:
    """Trial what was selected, print what became of each; returns the exit status."""
    folder = Path(given.defects) if given.defects is not None else catalogue.HERE
    checks = Path(given.checks) if given.checks is not None else inventory.CHECKS
    for path, what in ((folder, "defects"), (checks, "checks")):
        if not path.is_dir():
            raise BadInput(f"there is no folder of {what} at {path}")
    known = catalogue.load(folder)
    if not known:
        raise BadInput(f"there are no defects in {folder}; one is a function with @defect in AREA/MODULE.py")
    ensure_known(known, load(), checks)
    wanted = catalogue.select(words(given.select, "pattern"), known)
    jobs = number(given.jobs, "number of jobs")
    if given.list:
        return _list(wanted)
    if given.try_only:
        return _try(wanted, folder)
    is_whole = (folder, checks, len(wanted)) == (catalogue.HERE, inventory.CHECKS, len(known))
    command = ["conformance.defects.worker", str(folder.resolve()), str(checks.resolve())]
    return _trial(wanted, Driver(jobs, command, LIMIT_S), is_whole)


def ensure_known(known: Sequence[Defect], catalogue: Catalogue, checks: Path) -> None:
    """BadInput unless every clause that a defect names is decided by some check."""
    cited = inventory.by_clause(inventory.declared(checks))
    for defect in known:
        for clause in defect.clauses:
            if clause not in cited:
                why = "no check decides it" if catalogue.get(clause) else "there is no such clause"
                raise BadInput(f"defect {defect.id} names {clause}, but {why}")


def _list(wanted: Sequence[Defect]) -> int:
    for defect in wanted:
        print(f"{defect.id}  {', '.join(defect.clauses)}\n    {defect.sentence}")
    print(f"\n{len(wanted)} planted defects, {len({c for defect in wanted for c in defect.clauses})} clauses")
    return OK


def _try(wanted: Sequence[Defect], folder: Path) -> int:
    """Plant each defect in this process and take it out again; the exit status says whether all could be."""
    from ..defects import planted, planting

    os.environ[planted.FOLDER] = str(folder.resolve())
    lost = 0
    known: dict[object, str] = {}  # by what they change
    for defect in wanted:
        try:
            planted.subject(defect.attribute)
            twin = known.setdefault(planting.changes(), defect.id)
            if twin != defect.id:
                raise planting.PlantError(f"it changes the same as {twin}: give one of them the clauses of both")
        except Exception as error:
            lost += 1
            print(f"{defect.id}: {error}")
        finally:
            planted.clear()
    print(f"{len(wanted) - lost} of {len(wanted)} defects have their place")
    return BROKEN if lost else OK


def _trial(wanted: Sequence[Defect], driver: Driver, is_whole: bool) -> int:
    width = max(len(defect.id) for defect in wanted)
    killed: list[TrialResult] = []
    others: list[TrialResult] = []
    try:
        with terminated_like_interrupted(), driver:
            for defect, answered in zip(wanted, driver.ask([defect.id for defect in wanted]), strict=True):
                troubled = TrialResult(defect.id, (), trouble=answered.trouble)
                trial_result = troubled if answered.trouble else TrialResult.of_row(answered.row)
                (killed if trial_result.killed else others).append(trial_result)
                print("\n".join(_rows(defect, trial_result, width)), flush=True)
    except KeyboardInterrupt:
        print(f"conformance: interrupted after {len(killed) + len(others)} of {len(wanted)} defects", file=sys.stderr)
        return INTERRUPTED
    if is_whole:
        last_run.keep(len(killed), len(wanted))
    return _conclude(killed, others)


def _conclude(killed: Sequence[TrialResult], others: Sequence[TrialResult]) -> int:
    troubled = [trial_result for trial_result in others if trial_result.trouble]
    print()
    for trial_result in others:
        missing = ", ".join(answer.clause for answer in trial_result.answers if not answer.killed)
        print(f"{trial_result.defect}: {trial_result.trouble or f'not caught by {missing}'}")
    end = f"{len(killed)} killed, {len(others) - len(troubled)} survived"
    print(f"{end}, {len(troubled)} could not be tried" if troubled else end)
    return BROKEN if others else OK


def _rows(defect: Defect, trial_result: TrialResult, width: int) -> list[str]:
    if trial_result.trouble:
        return [f"{defect.id:<{width}}  NOT TRIED: {trial_result.trouble}"]
    names = [defect.id, *[""] * len(trial_result.answers)]
    return [f"{name:<{width}}  {_line(answer)}" for name, answer in zip(names, trial_result.answers, strict=False)]


def _line(answer: Answer) -> str:
    end = "killed" if answer.killed else "SURVIVED"
    by = f"{answer.check} {answer.outcome}".strip()
    line = f"{answer.clause:<9} {end:<8}  {by}: {answer.witness}".rstrip(": ")
    return line if not _columns() else line[: max(40, _columns())]


def _columns() -> int:
    """How long a row may be on a terminal; 0 where rows go to a file."""
    return os.get_terminal_size().columns if sys.stdout.isatty() else 0
