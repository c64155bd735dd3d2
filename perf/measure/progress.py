"""How a sweep shows that it is alive, with the time that is left: a bar on a terminal, a line per group elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ..plan.cells import Group
from ..wording import counted
from .rows import NOT_RUN, OK, Row


def spoken(seconds: float) -> str:
    """A time as one would say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Watch:
    """Counts cells and tells the time left: from the estimates, scaled by how they have held so far."""

    def __init__(self, stream: TextIO, estimates: Sequence[float], total_s: float | None) -> None:
        self._estimates, self._total_s = list(estimates), total_s
        self._began = time.monotonic()
        self._done, self._groups, self._counts = 0.0, 0, Counter[str]()
        self._told_already = ""  # a reason that many cells share
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        if stream.isatty():
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=max(sum(estimates), 1e-9))
            self._bar.start()

    def group(self, group: Group) -> None:
        """A group begins."""
        self._groups += 1
        words = f"{self._groups} of {len(self._estimates)} · {self._left()} left · {group.name}"
        if self._bar:
            self._bar.update(self._task, description=f"{words} {self._tally()}")
        else:
            self._say(f"{words} ({counted(len(group.cells), 'cell')})")

    def row(self, row: Row) -> None:
        self._counts[row["status"]] += 1
        if row["status"] == OK or (row["reason"] and row["reason"] == self._told_already):
            return
        self._told_already = row["reason"]
        others = " and others" if row["status"] == NOT_RUN else ""
        self._say(f"{row['status'].upper()} {row['series']}{others}: {row['reason']}")

    def done(self) -> None:
        """The group is done."""
        self._done += self._estimates[self._groups - 1]
        if self._bar:
            self._bar.update(self._task, completed=self._done)

    def end(self) -> None:
        if self._bar:
            self._bar.stop()
        self._say(f"{self._tally()} in {spoken(time.monotonic() - self._began)}")

    def _left(self) -> str:
        passed = time.monotonic() - self._began
        if self._total_s is not None:
            return f"at most {spoken(max(0.0, self._total_s - passed))}"
        pace = passed / self._done if self._done else 1.0
        return f"about {spoken((sum(self._estimates) - self._done) * pace)}"

    def _tally(self) -> str:
        return ", ".join(f"{count} {status}" for status, count in self._counts.items())

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False)
