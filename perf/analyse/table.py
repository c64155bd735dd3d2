"""The main table of a sweep: every cell's time, and how it compares with what it was measured beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..measure import void
from ..measure.rows import OK, Row, sibling
from ..plan.cells import Cell
from ..wording import counted
from . import noise
from .ratio import Ratio, cpu_ns, median_ns, ratio
from .signs import correlation

_LEAST_WIDTH = 160  # columns squeezed into a narrow window, or into the 80 of a pipe, cannot be read
_CAPTION = (
    "Intervals by order statistics; lag 1: how rounds correlate with the one before (from 12 rounds on; above 0 "
    "intervals are wider for it). Verdicts: corrected for {} by Benjamini and Hochberg."
)


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
    wanted = {"subject": subjects[-1] if subjects else ""} if row["axes"]["copy"] == 1 else {}
    duplicate = sibling(row, sound, copy=1, **wanted)
    if duplicate is not None and duplicate is not row and row["subject"] != "none":
        return duplicate
    first = next((other for other in sound if other["subject"] == row["subject"]), sound[0] if sound else None)
    if first is row and row["subject"] == "none":
        first = sound[0]
    return None if first is row else first


@dataclass(frozen=True)
class _Line:
    """A row of the table: words, and what its cell is compared with."""

    name: str
    time: str = ""
    cpu: str = ""
    found: Ratio | None = None
    noise: Ratio | None = None
    beside: str = ""  # the cell that it is compared with
    reason: str = ""  # short; what is left out stands below the table

    @property
    def ratio(self) -> str:
        return f"{self.found} × {self.beside}" if self.found else ""


def lines(rows: Sequence[Row]) -> Iterator[_Line]:
    """Of one group."""
    alike = {(row["status"], row["reason"]) for row in rows}
    if len(alike) == 1 and rows[0]["reason"]:
        cells = f"all {len(rows)} cells" if len(rows) > 1 else "its only cell"
        yield _Line(cells, rows[0]["status"], reason=void.short(rows[0]["reason"]))
        return
    machine = noise.of_group(rows)
    for row in rows:
        name = Cell(**row["axes"]).variant
        if row["status"] != OK:
            yield _Line(name, row["status"], reason=void.short(row["reason"]))
            continue
        other = against(row, rows)
        beside = Cell(**other["axes"]).variant if other is not None else ""
        found = ratio(row, other) if other is not None else None
        yield _Line(name, _ms(median_ns(row)), _ms(cpu_ns(row)), found, machine, beside)


def main_table(rows: Sequence[Row]) -> Table:
    """All groups, one under the other; verdicts are corrected for how many there are in all of them."""
    groups = by_group(rows)
    by_name = {name: list(lines(mine)) for name, mine in groups.items()}
    compared = [line for mine in by_name.values() for line in mine if line.found]
    found = noise.verdicts([(line.found, line.noise) for line in compared if line.found])
    said = {id(line): word for line, word in zip(compared, found, strict=True)}
    caption = _CAPTION.format(counted(len(compared), "comparison")) if compared else None
    table = Table(box=None, pad_edge=False, show_edge=False, caption=caption)
    for heading in ("cell", "time, ms", "cpu, ms"):
        table.add_column(heading, justify="left" if heading == "cell" else "right", no_wrap=True)
    table.add_column("median ratio of rounds, 95 %", overflow="fold")
    table.add_column("lag 1", justify="right", no_wrap=True)
    table.add_column("which is", overflow="fold")
    for name, mine in by_name.items():
        share = noise.figure(noise.of_group(groups[name]))
        restless = "" if share is None else f"[dim]noise ±{100 * share:.0f} %[/dim]"
        table.add_row(f"[bold]{name}[/bold]", "", "", restless, "", "")
        for line in mine:
            lag = correlation(line.found.sample) if line.found else ""
            words = (f"  {line.name}", line.time, line.cpu, line.ratio, lag, said.get(id(line), line.reason))
            table.add_row(*map(_plain, words))
    return table


def _plain(word: str) -> Any:
    return Text(word)


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2f}"
