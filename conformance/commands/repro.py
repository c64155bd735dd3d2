"""``python -m conformance repro CLAUSE``: scripts that show the listed breaks of a clause, and texts to file."""

from __future__ import annotations

import sys
from argparse import Namespace
from fnmatch import fnmatchcase
from pathlib import Path

from ..bad_input import BadInput
from ..board import classes
from ..board.columns import Column, choose
from ..board.environment import folder_of, interpreter
from ..clauses import Clause, load
from ..deviations import Deviation, built_in
from ..repros import FOREIGN, Case, cases
from ..repros.issue import text
from ..repros.script import title
from ..repros.search import ScriptFailed, smallest

BOARD = Path("out/board")  # where the board makes its environments


def repro(given: Namespace) -> int:
    """Write a script and a text for each listed break of the clause; 1 if one does not show with this torch."""
    clause, column, deviations = _asked(given.clause, given.subject)
    every = cases() if column.name == "torch" else cases(FOREIGN)
    found = [case for case in every if case.is_about(clause.id) and case.column == column.name]
    if not found:
        raise BadInput(f"{clause.id} has a listed deviation, but no case in conformance/repros shows it yet")
    folder = Path(given.out)
    python = interpreter(column, folder_of(column, BOARD.absolute()))
    if not python.is_file():
        raise BadInput(f"{column.name} is not installed here; make board COLUMNS={column.name} does it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shown = [_write(case, clause, deviations, folder, column, python) for case in found]
    except OSError as error:
        raise BadInput(f"--out {given.out}: cannot write {error.filename}: {error.strerror}") from error
    except ScriptFailed as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 3
    return 0 if all(shown) else 1


def _asked(wanted: str, subject: str) -> tuple[Clause, Column, list[Deviation]]:
    clause = load().get(wanted.upper())
    if clause is None:
        raise BadInput(f"there is no clause {wanted!r}; `python -m conformance clauses` lists all")
    if subject == "impl":
        raise BadInput(f"--subject {subject}: scripts show what others break: torch, or a column of the board")
    column, *more = choose(subject)
    if more:
        raise BadInput(f"--subject {subject}: scripts are written for one at a time, for example {column.name}")
    listed = built_in("torch") if column.name == "torch" else _faults(column)
    deviations = [each for each in listed if fnmatchcase(clause.id, each.clause)]
    if not deviations:
        raise BadInput(f"{clause.id} has no listed deviation of {subject}; torch's are in conformance/deviations")
    return clause, column, deviations


def _faults(column: Column) -> list[Deviation]:
    """What a column of the board breaks by a fault of its own."""
    return [each for each in classes.of(column) if each.reason.startswith(classes.FAULT)]


def _write(
    case: Case, clause: Clause, deviations: list[Deviation], folder: Path, column: Column, python: Path
) -> bool:
    """Search, write, and say so; nothing is written of a break that does not show."""
    needs = column.requires
    found = smallest(case, clause.id, lambda line: print(line, flush=True), needs, python)
    if not found.shown.broken:
        versions = sorted({each.torch for each in deviations if case.stands_for(each) and each.torch})
        listed = f" (it is listed for torch {' and '.join(versions)})" if versions else ""
        print(f"{case.name}: does not show here{listed}\n{found.shown.output}", end="")
        return False
    script, issue = folder / f"{case.name}.py", folder / f"{case.name}.md"
    script.write_text(found.shown.text, encoding="utf-8")
    mine = [each for each in deviations if case.stands_for(each)]
    issue.write_text(text(title(case.path), clause, mine, found, needs), encoding="utf-8")
    print(f"{found.shown.output}\n{script}: {found.shown.text.count(chr(10))} lines\n{issue}")
    return True
