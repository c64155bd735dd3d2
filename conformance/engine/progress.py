"""How a run shows that it is alive: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..results import Case, Outcome, Result

LINE_EVERY_S = 15.0


class _Counts:
    """What both kinds of progress count."""

    def __init__(self) -> None:
        self.total = 0
        self.cases = 0
        self.kinds: Counter[str] = Counter()

    def count(self, results: Sequence[Result]) -> None:
        self.cases += 1
        if results:
            self.kinds["deviation" if all(result.listed for result in results) else str(results[0].outcome)] += 1

    def words(self) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())


def news(case: Case, results: Sequence[Result]) -> str | None:
    """A line for a break, or a fall of a check, that nobody expected; None for everything else."""
    unlisted = [result for result in results if result.unlisted or result.outcome is Outcome.SUITE_ERROR]
    if not unlisted:
        return None
    clauses = ", ".join(result.clause for result in unlisted)
    return f"{str(unlisted[0].outcome).upper()} {clauses} · {case}: {unlisted[0].witness}"


class Bar:
    """A progress bar; unexpected breaks scroll by above it."""

    def __init__(self, stream: TextIO) -> None:
        self.counts = _Counts()
        console = Console(file=stream, highlight=False)
        columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.description}", markup=False), console=console, transient=True)
        self._task = self._bar.add_task("", total=None)

    def begin(self, total: int) -> None:
        self._bar.update(self._task, total=total)
        self._bar.start()

    def finished(self, case: Case, results: Sequence[Result]) -> None:
        self.counts.count(results)
        line = news(case, results)
        if line:
            self._bar.console.print(line, markup=False, soft_wrap=True)
        self._bar.update(self._task, advance=1, description=self.counts.words())

    def end(self) -> None:
        self._bar.stop()


class Lines:
    """For logs: unexpected breaks at once, and how far the run is every so often."""

    def __init__(self, stream: TextIO) -> None:
        self.counts = _Counts()
        self._stream = stream
        self._next = 0.0  # moment of the next line

    def begin(self, total: int) -> None:
        self.counts.total = total
        self._say(f"{total} cases")
        self._next = time.monotonic() + LINE_EVERY_S

    def finished(self, case: Case, results: Sequence[Result]) -> None:
        self.counts.count(results)
        line = news(case, results)
        if line:
            self._say(line)
        if time.monotonic() >= self._next or self.counts.cases == self.counts.total:
            self._say(f"{self.counts.cases} of {max(self.counts.total, self.counts.cases)}: {self.counts.words()}")
            self._next = time.monotonic() + LINE_EVERY_S

    def end(self) -> None:
        """Nothing is pending."""

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def reporter(stream: TextIO) -> Bar | Lines:
    """The kind of progress that fits the stream."""
    return Bar(stream) if stream.isatty() else Lines(stream)
