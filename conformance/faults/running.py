"""Runs many cells side by side and keeps a record of them, so that an interrupted matrix goes on."""

from __future__ import annotations

import contextlib
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.records.lines import append, whole_lines

from ..engine.parallel import Turns
from ..ranks import Cluster, Died, Run
from .cells import Cell
from .judging import Judged, judged
from .training import run_cell

RECORD = "faults.jsonl"
_DEADLINE_S = 60.0  # each rank ends itself before that; this is for one that cannot
_MOST_TIMES = 3.0
_WAITING = 3  # cells for each job, while the others only wait


@dataclass(frozen=True)
class Row:
    """One cell of one subject, judged."""

    cell: Cell
    judged: Judged
    seconds: float  # of the cell as a whole

    def line(self) -> dict[str, Any]:
        told = {"cell": self.cell.id, "verdict": self.judged.verdict, "told_s": round(self.judged.told_s, 3)}
        return {**told, "seconds": round(self.seconds, 2), "why": self.judged.why[:3000]}

    @staticmethod
    def read(row: dict[str, Any]) -> Row:
        return Row(Cell.of(row["cell"]), Judged(row["verdict"], row["told_s"], row["why"]), row["seconds"])


def run_one(cell: Cell, cluster: Cluster, subject: str) -> Row:
    """Run one cell on fresh ranks."""
    begun = time.monotonic()
    verdict = tried(
        cell, subject, lambda *args: cluster.run(run_cell, args, world=cell.world, subject=subject, init=False)
    )
    return Row(cell, verdict, time.monotonic() - begun)


def tried(cell: Cell, subject: str, run: Callable[[str, str], Run]) -> Judged:
    """The verdict on a cell; ``run`` is to run ``run_cell`` on ranks without a group, with these arguments."""
    with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
        return judged(cell, Path(folder), _exits(run(cell.id, folder)), subject)


def _exits(run: Run) -> dict[int, int]:
    """How the ranks' processes have ended; 0 for one that could not be made to."""
    return {rank: one.exit_code for rank, one in enumerate(run.outcomes) if isinstance(one, Died)}


class Workers:
    """Threads that each run one cell at a time, on ranks of their own. Leaving the ``with`` ends every process.

    As many cells compute as there are jobs, and some more begin while those only wait.
    """

    def __init__(self, jobs: int, subject: str) -> None:
        self._subject = subject
        self._turns = Turns(jobs)
        self._clusters: list[Cluster] = []
        for _ in range(jobs * _WAITING):
            first = self._clusters[0] if self._clusters else None
            self._clusters.append(Cluster(
                placing=False, preload=[f"{__package__}.training"], deadline_s=_DEADLINE_S, stall_s=_DEADLINE_S,
                most_times=_MOST_TIMES, base=first, when_idle=self._turns.lend,
            ))  # fmt: skip

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for cluster in reversed(self._clusters):
            cluster.close()

    def rows(self, cells: Sequence[Cell], *beside: Iterator[Row]) -> Iterator[Row]:
        """The rows of the cells and of what is to run beside them, each as soon as it is there."""
        left = iter(cells)  # of a list: two threads never get the same one
        sources = [*(self._rows(cluster, left) for cluster in self._clusters[: len(cells)]), *beside]
        done: queue.SimpleQueue[Row | Exception | None] = queue.SimpleQueue()
        for source in sources:
            threading.Thread(target=_hand_over, args=(source, done), daemon=True).start()
        running = len(sources)
        while running:
            with contextlib.suppress(queue.Empty):  # in slices, so that Ctrl-C gets through everywhere
                row = done.get(timeout=0.5)
                if isinstance(row, Exception):
                    raise row
                if row is None:
                    running -= 1
                else:
                    yield row

    def _rows(self, cluster: Cluster, cells: Iterator[Cell]) -> Iterator[Row]:
        for cell in cells:
            with self._turns.one():
                row = run_one(cell, cluster, self._subject)
            yield row


def _hand_over(rows: Iterator[Row], done: queue.SimpleQueue[Row | Exception | None]) -> None:
    try:
        for row in rows:
            done.put(row)
        done.put(None)
    except Exception as error:
        done.put(error)


# -- the record


def recorded(
    path: Path, subject: str, cells: Sequence[Cell], rows: Callable[[list[Cell]], Iterable[Row]]
) -> Iterator[Row]:
    """The rows of all cells: those of an unfinished record of the same question, then the others, as they come."""
    known = _resumed(path, {"faults": 1, "subject": subject, "cells": [cell.id for cell in cells]})
    yield from known
    done = {row.cell for row in known}
    for row in rows([cell for cell in cells if cell not in done]):
        append(path, row.line())
        yield row
    append(path, {"end": True})


def _resumed(path: Path, header: dict[str, Any]) -> list[Row]:
    """What an unfinished record of the same question holds; otherwise nothing, and a new record is begun."""
    lines = whole_lines(path)
    if lines and lines[0] == header and "end" not in lines[-1]:
        return [Row.read(line) for line in lines[1:]]
    path.unlink(missing_ok=True)
    append(path, header)
    return []
