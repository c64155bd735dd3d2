"""Made-up rows and records with known truth, for the tests of what is made from records."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reports.records import RecordFile, Writer, read

from ..measure.records import header
from ..measure.rows import OK, Row, blank
from ..plan.cells import Cell
from ..plan.planning import Place, plan
from ..plan.sweep import _checked

ROUNDS, PER_ROUND = 20, 3
TimeMs = Callable[[Cell, int], float]  # of a rank


def rows(cells: Sequence[dict[str, Any]], time_ms: TimeMs, subjects: Sequence[str] = ("impl", "torch"),
         world: int = 2, seed: int = 1, rounds: int = ROUNDS) -> list[Row]:  # fmt: skip
    """The rows of a sweep, each sample within a percent or so of what ``time_ms`` says of its cell and rank."""
    sweep = _checked("mine", {"cells": list(cells)}, "mine")
    planned = plan(sweep, list(subjects), world, lambda _: Place("gloo", "cpu"))
    generator = random.Random(seed)
    return [_row(cell, group, time_ms, generator, rounds) for group in planned.groups for cell in group]


def _row(cell: Cell, group: Any, time_ms: TimeMs, generator: random.Random, rounds: int) -> Row:
    row = blank(cell, group, OK, "")
    for number in range(rounds):
        weather = generator.gauss(1, 0.01)
        for _ in range(PER_ROUND):
            sample = [max(1, round(time_ms(cell, rank) * 1e6 * weather)) for rank in range(cell.world)]
            row["wall_ns"].append(sample)
            row["block"].append(number)
    row["cpu_ns"] = row["wall_ns"]
    third = [[time // 3 for time in sample] for sample in row["wall_ns"]]
    row["phases"] = {f"{phase}_{kind}": third for phase in ("forward", "backward", "step") for kind in ("wall", "cpu")}
    counts = cell.trained(8) if cell.unit == "epoch" else (PER_ROUND,) * cell.world
    paced = {"compute_ns": 5e6 * cell.pace, "link_bytes_per_s": 1e6, "empty_ns": 2e5} if cell.network else {}
    row["derived"] = {
        **paced,
        "parameters": 10, "parameter_bytes": 4000, "buffer_bytes": 100, "iterations": list(counts),
        "optimizer_bytes": [8000 // (cell.world if cell.zero != "off" else 1)] * cell.world,
        "peak_bytes": [20_000] * cell.world,
    }  # fmt: skip
    return row


def record(path: Path, made: Sequence[Row], commit: str = "0123456789abcdef", time: str = "") -> RecordFile:
    """A record file with these rows, as a run at ``commit`` would leave it."""
    first = {**header({"subjects": {"impl": "impl", "torch": "torch"}}, [], ["perf"]), "commit": commit}
    with Writer(path, {**first, **({"time": time} if time else {})}) as writer:
        for row in made:
            writer.write(row)
        writer.close()
    return read(path)
