"""What was explored, as a table: program, options and world -> schedules, runs, states, failures, ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .configurations import Configuration
from .search import Found

_HEAD = ("program", "options", "world", "inputs", "runs", "states", "failures", "ends")


class Table:
    """A row for each group of configurations."""

    def __init__(self, configurations: Sequence[Configuration]) -> None:
        self._of = Counter(each.group for each in configurations)
        self._rows: dict[tuple[str, str, int], Found] = {}
        self._complete: Counter[tuple[str, str, int]] = Counter()

    def add(self, configuration: Configuration, found: Found) -> None:
        """A configuration was explored, to its end or not."""
        row = self._rows.setdefault(configuration.group, Found(complete=True))
        row.add(found)
        row.states += found.states
        self._complete[configuration.group] += found.complete

    @property
    def states(self) -> int:
        """Distinct states in all; configurations have none in common."""
        return sum(row.states for row in self._rows.values())

    @property
    def complete(self) -> int:
        """How many configurations were explored to their end."""
        return self._complete.total()

    def progress(self) -> str:
        """One line."""
        done, asked = self.complete, self._of.total()
        runs = sum(row.runs for row in self._rows.values())
        return f"{done} of {asked} configurations, {runs} runs, {self.states} states"

    def __str__(self) -> str:
        rows = [_HEAD, *(self._row(group) for group in sorted(self._of))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
        lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows]
        return "\n".join([*lines, "", self._total()])

    def _row(self, group: tuple[str, str, int]) -> tuple[str, ...]:
        program, options, world = group
        row = self._rows.get(group, Found())
        inputs = f"{self._complete[group]}/{self._of[group]}"
        ends = ", ".join(f"{end} ×{count}" for end, count in sorted(row.ends.items()))
        ends = "BROKEN" if row.violation else ends
        return program, options, str(world), inputs, str(row.runs), str(row.states), str(row.failure_points), ends

    def _total(self) -> str:
        failures = sum(row.failure_points for row in self._rows.values())
        broken = sum(bool(row.violation) for row in self._rows.values())
        return f"{self.progress()}, {failures} failures followed; {broken} rows broken"
