"""The rows of records as tidy data frames: one row a cell, or one row a sample, rank and phase; units in the names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from ..measure.rows import Row
from ..plan.cells import Cell
from .ratio import by_round, cpu_ns, median_ns

PHASES = ("forward", "backward", "step")
_CLOCKS = ("wall_ns", "cpu_ns", "device_ns")
_ENDS = ("workload_hash", "status", "reason")


def labels(rows: Sequence[Row]) -> pd.DataFrame:
    """What each cell is and what became of it: series, group, every axis, status, reason; of ``rows[i]`` at ``i``."""
    flat = [{"series": row["series"], "group": row["group"], **row["axes"], **{name: row[name] for name in _ENDS}}
            for row in rows]  # fmt: skip
    names = ["series", "group", *(axis.name for axis in fields(Cell)), *_ENDS]
    return pd.DataFrame(flat, columns=None if rows else names).rename_axis("cell")


def cells(rows: Sequence[Row]) -> pd.DataFrame:
    """One row a cell: its labels, medians over rounds (slowest and busiest rank), the gap to one process, figures.

    A figure that a cell does not have is NaN. Figures by rank are there as their least and their most: ``min_wait_ns``,
    ``max_wait_ns``.
    """
    return labels(rows).join(pd.DataFrame([dict(_figures(row)) for row in rows]).rename_axis("cell"))


def samples(rows: Sequence[Row]) -> pd.DataFrame:
    """One row for each sample and rank of each phase: labels, ``phase``, ``round``, ``sample``, ``rank``, times in ns.

    ``phase`` is "all" (the whole sample), a part of it (forward, backward, step), or "warmup", which has no rounds.
    A clock that was not read is missing. Cells without times have no rows.
    """
    long = {place: frame for place, row in enumerate(rows) if not (frame := _long(row)).empty}
    if not long:
        return labels(rows).head(0)
    times = pd.concat(long, names=["cell"]).reset_index(["phase", "sample", "rank"])
    return labels(rows).join(times, how="inner")


# -- cells


def _figures(row: Row) -> Iterator[tuple[str, float]]:
    rounds = by_round(row)
    yield "rounds", len(rounds)
    yield "time_ns", median_ns(row)
    yield "cpu_ns", cpu_ns(row)
    gap = row["verified"].get("gap", math.nan)
    yield "gap_of_allowed", math.inf if gap == "not finite" else gap
    for name, value in row["derived"].items():
        yield from _flat(name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if name.endswith("_interval_ns"):
        cost = name.removesuffix("_interval_ns")
        yield from zip((f"{cost}_low_ns", f"{cost}_high_ns"), value, strict=True)
    elif isinstance(value, Mapping):
        yield from ((f"{name}_{part}", each) for part, each in value.items())
    elif isinstance(value, list):
        yield from (("min_" + name, min(value)), ("max_" + name, max(value)))
    else:
        yield name, value


# -- samples


def _long(row: Row) -> pd.DataFrame:
    """A cell's times, by phase, sample and rank."""
    clocks = {"all": {clock: row[clock] for clock in _CLOCKS}, "warmup": {"wall_ns": row["warmup_ns"]}}
    phases = row.get("phases", {})
    clocks |= {
        phase: {f"{kind}_ns": phases.get(f"{phase}_{kind}", []) for kind in ("wall", "cpu")} for phase in PHASES
    }
    long = pd.concat(
        {phase: pd.DataFrame({clock: _stacked(times) for clock, times in each.items()}) for phase, each in
         clocks.items()}, names=["phase"],
    ).reindex(columns=["round", *_CLOCKS]).astype("Int64")  # fmt: skip
    measured = long.index.get_level_values("phase") != "warmup"
    at = long.index.get_level_values("sample")[measured].astype(int)
    long.loc[measured, "round"] = pd.Series(row["block"], dtype="Int64").iloc[at].to_numpy()
    return long


def _stacked(times: Sequence[Sequence[int]]) -> pd.DataFrame | pd.Series[Any]:
    """[sample][rank] as a series by both."""
    return pd.DataFrame(times).rename_axis(index="sample", columns="rank").stack()
