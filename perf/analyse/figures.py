"""The table of derived figures: what a step moves, what of it is exposed, who waits, and what it costs the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ..measure.rows import OK, Row
from ..plan.cells import Cell

_MIB = 2**20

#: Heading -> the words of a row under it; nothing where the figure does not exist.
_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "moves, MiB": lambda one: _number(one.get("bus_bytes"), _MIB),
    "MiB/s": lambda one: _number(one.get("bus_bytes_per_s"), _MIB, 0),
    "exposed, ms": lambda one: _interval(one.get("exposed_ns"), one.get("exposed_interval_ns")),
    "its lag 1": lambda one: _number(one.get("exposed_lag_1"), 1, 1).replace("-", "−"),
    "floor, ms": lambda one: _number(one.get("floor_ns"), 1e6),
    "without overlap, ms": lambda one: _number(one.get("serial_ns"), 1e6),
    "machine adds, ms": lambda one: _number(one.get("empty_ns"), 1e6),
    "bound, ms": lambda one: _number(one.get("bound_ns"), 1e6),
    "link sends, MiB": lambda one: _list(one.get("link_sent_bytes"), _MIB),
    "wait of ranks, ms": lambda one: _list(one.get("wait_ns"), 1e6),
    "host, µs/parameter": lambda one: _number(one.get("host_ns_per_parameter"), 1e3),
    "optimizer, MiB": lambda one: _list(one.get("optimizer_bytes"), _MIB),
    "peak, MiB": lambda one: _list(one.get("peak_bytes"), _MIB),
}


def figures_table(rows: Sequence[Row]) -> Table | None:
    """Every sound cell with at least one figure; None if there is none. Columns that would be empty are left out."""
    import pandas as pd

    sound = [row for row in rows if row["status"] == OK and row["axes"]["copy"] == 1]
    words = pd.DataFrame([{name: said(row["derived"]) or None for name, said in _COLUMNS.items()} for row in sound])
    words = words.dropna(axis="columns", how="all")
    if words.empty:
        return None
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("cell", no_wrap=True)
    for heading in words:
        table.add_column(str(heading), justify="right", overflow="fold")
    for name, mine in words.groupby([row["group"] for row in sound], sort=False):
        if mine.notna().any(axis=None):
            table.add_row(Text(str(name), style="bold"))
            for place, *cell in mine.fillna("").itertuples():
                table.add_row(Text(f"  {Cell(**sound[place]['axes']).variant}"), *map(Text, cell))
    return table


def _number(value: float | None, unit: float, digits: int = 2) -> str:
    return f"{value / unit:.{digits}f}" if value else ""


def _interval(point: float | None, ends: Sequence[float] | None) -> str:
    if point is None:
        return ""
    return _number(point, 1e6) + (f" [{ends[0] / 1e6:.2f}, {ends[1] / 1e6:.2f}]" if ends else "")


def _list(values: Sequence[float] | None, unit: float) -> str:
    """One number where all ranks have the same, two ranks' both, else the least and the most."""
    if not values or not any(values):
        return ""
    words = [f"{value / unit:.2f}" for value in values]
    if len(set(words)) == 1:
        return words[0]
    return " ".join(words) if len(words) == 2 else f"{min(values) / unit:.2f} to {max(values) / unit:.2f}"
