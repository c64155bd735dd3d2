"""The main table of a sweep: every cell's time, and how it compares with what it was measured beside."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import noise
from .cells import Cell
from .ratio import Ratio, by_round, median_ns, ratio
from .rows import NOT_RUN, OK, Row

_LEAST_WIDTH = 160  # columns squeezed into a narrow window, or into the 80 of a pipe, cannot be read


def wide_console() -> Console:
    """Standard output, wide enough for a table."""
    console = Console(highlight=False)
    return Console(highlight=False, width=max(console.width, _LEAST_WIDTH))


def by_group(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each group, in the order of the record."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    return groups


def in_order(rows: Sequence[Row], series: Sequence[str]) -> list[Row]:
    """The rows in the order in which they were asked for; a record has those first that went wrong first."""
    places = {name: place for place, name in enumerate(series)}
    return sorted(rows, key=lambda row: places.get(row["series"], len(places)))


def against(row: Row, rows: Sequence[Row]) -> Row | None:
    """What a cell of a group is compared with, None for nothing.

    A copy: with its original. A cell of any subject but the last: with the last subject's same cell. What then is left:
    with the first sound cell of its own subject, or of any.
    """
    sound = [other for other in rows if other["status"] == OK and other["axes"]["copy"] == 1]
    subjects = list(dict.fromkeys(other["subject"] for other in rows if other["subject"] != "none"))
    wanted = {**row["axes"], "copy": 1}
    if row["axes"]["copy"] == 1:
        wanted["subject"] = subjects[-1] if subjects else ""
    twin = next((other for other in sound if other["axes"] == wanted), None)
    if twin is not None and twin is not row and row["subject"] != "none":
        return twin
    first = next((other for other in sound if other["subject"] == row["subject"]), sound[0] if sound else None)
    if first is row and row["subject"] == "none":
        first = sound[0]
    return None if first is row else first


def lines(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str, str]]:
    """Cell, median time, main-thread time, ratio, what the ratio says; for one group."""
    if all(row["status"] == NOT_RUN and row["reason"] == rows[0]["reason"] for row in rows):
        yield f"all {len(rows)} cells", NOT_RUN, "", "", rows[0]["reason"]
        return
    machine = noise.of_group(rows)
    for row in rows:
        name = Cell(**row["axes"]).variant
        if row["status"] != OK:
            yield name, row["status"], "", "", row["reason"]
            continue
        other = against(row, rows)
        compared: Ratio | None = ratio(row, other) if other is not None else None
        beside = f"{compared} × {Cell(**other['axes']).variant}" if compared and other is not None else ""
        yield name, _ms(median_ns(row)), _ms(_cpu_ns(row)), beside, noise.judged(compared, machine) if compared else ""


def main_table(rows: Sequence[Row]) -> Table:
    """All groups, one under the other."""
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("cell", "time, ms", "cpu, ms"):
        table.add_column(heading, justify="left" if heading == "cell" else "right", no_wrap=True)
    table.add_column("ratio of medians, 95 %", overflow="fold")
    table.add_column("which is", overflow="fold")
    for name, mine in by_group(rows).items():
        share = noise.figure(noise.of_group(mine))
        told = "" if share is None else f"noise ±{100 * share:.0f} %"
        table.add_row(f"[bold]{name}[/bold]", "", "", f"[dim]{told}[/dim]", "")
        for line in lines(mine):
            table.add_row(*(_plain(word) for word in ("  " + line[0], *line[1:])))
    return table


def _plain(word: str) -> Any:
    return Text(word)


def _cpu_ns(row: Row) -> float:
    """The main thread's time on the processor, of the busiest rank, median over rounds."""
    return statistics.median(by_round(row, row["cpu_ns"]).values())


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2f}"
