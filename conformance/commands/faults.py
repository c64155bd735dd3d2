"""``python -m conformance faults``: every fault at every point in every role; a table of what the ranks make of it."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from ..bad_input import BadInput
from ..ending import terminated_like_interrupted
from ..engine import request as ask
from ..engine.judgement import BROKEN, INTERRUPTED, OK, UNDECIDED
from ..faults import known, on_hosts
from ..faults.cells import Cell, legal, patterns, sample, selected
from ..faults.judging import NOTHING
from ..faults.running import RECORD, Row, Workers, recorded
from ..faults.table import summary
from ..power.drawing import SUBJECT as MUTATED
from ..subjects import STRICT

OURS = ("impl", MUTATED)


def faults(given: Namespace) -> int:
    """Run the cells that are asked for under each subject; 1 if one is bad that is not listed, or listed and good.

    4 if no fault struck a subject: every cell of it was not run, or its fault not reached.
    """
    cells = _asked(given)
    if given.list:
        print(*(f"{cell.id}  world {cell.world}, rank {cell.rank}" for cell in cells), sep="\n")
        return OK
    jobs = ask.number(given.jobs, "number of jobs")
    subjects = [spec for spec, _ in ask.subjects(given.subject).values()]
    listed, out, statuses = known.load(), ask.writable(Path(given.out)), {OK}
    try:
        with terminated_like_interrupted():
            for subject in subjects:
                strict = given.strict and subject in OURS
                os.environ[STRICT] = "1" if strict else "0"  # for the ranks
                statuses.add(_matrix(subject, strict, cells, jobs, out, listed))
    except KeyboardInterrupt:
        print("conformance: interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    return BROKEN if BROKEN in statuses else max(statuses)


def _asked(given: Namespace) -> list[Cell]:
    seed, chosen = ask.seed(given.seed), set[Cell]()
    for pattern in patterns(given.select):
        meet = selected(pattern)
        if not meet:
            raise BadInput(f"no cell meets {pattern!r}; their ids are fault/point/role/program, see --list")
        chosen.update(meet)
    cells = [cell for cell in legal() if cell in chosen]
    if seed is not None and not given.tenth:
        raise BadInput("a seed draws a tenth of the cells: give --tenth (TENTH=1), too, or no seed for all of them")
    if given.tenth:
        return sample(cells, -(-len(cells) // 10), seed or 0)
    return cells


def _matrix(
    subject: str, strict: bool, cells: list[Cell], jobs: int, out: Path, listed: list[known.Listed]
) -> int:
    rows: list[Row] = []
    begun = time.monotonic()
    name = f"{subject}, strict" if strict else subject
    path = out / name.replace(":", "_").replace(", ", "-") / RECORD
    for row in recorded(path, name, cells, lambda left: _rows(subject, left, jobs)):
        rows.append(row)
        if sys.stderr.isatty():
            print(f"\r\033[K{name}: {len(rows)} of {len(cells)} cells", end="", file=sys.stderr, flush=True)
    text, surprising = summary(name, rows, listed)
    text += f"\n\n{time.monotonic() - begun:.0f} s; what each rank said: {path}"
    print(f"\n{text}\n", flush=True)
    path.with_name("summary.md").write_text(text + "\n", encoding="utf-8")
    if all(row.judged.verdict in NOTHING for row in rows):
        print(f"nothing was decided of {name}: {rows[0].cell.id}: {rows[0].judged.why}", file=sys.stderr)
        return UNDECIDED
    return BROKEN if surprising else OK


def _rows(subject: str, cells: list[Cell], jobs: int) -> Iterator[Row]:
    """The cells on hosts, which mostly wait, beside all others."""
    away = on_hosts.rows(subject, [cell for cell in cells if cell.on_hosts])
    with Workers(jobs, subject) as workers:
        yield from workers.rows([cell for cell in cells if not cell.on_hosts], away)
