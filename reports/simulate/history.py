"""Writes a simulated year as a history folder, raw records and all: to try pages, and to time judging on."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ..history import add_file, add_night, add_note, machine_name, opened
from ..records import identity
from .made_rows import conformance_rows, perf_row, write
from .year import World, Year, year

MACHINES = (
    {"host": "sim-1", "processor": "Simulated 8-core", "cores": 8, "kernel": "6.1.0", "gpus": []},
    {"host": "sim-2", "processor": "Simulated 16-core", "cores": 16, "kernel": "6.1.0", "gpus": []},
)
_RERUN_FROM = 2.2  # times the noise off the truth: about what the nightly command measures again


@dataclass(frozen=True)
class Planted:
    """What really happened to the cell of this number."""

    cell: int
    what: str
    night: int
    until: int
    factor: float


def planted(nights: int) -> list[Planted]:
    """One of each kind; a year shorter than 60 nights has none."""
    if nights < 60:
        return []
    late = nights - 6
    return [
        Planted(0, "slower by 10 %, to this day", late, nights, 1.10),
        Planted(1, "slower by 15 %, acknowledged", nights // 2, nights, 1.15),
        Planted(2, "slower by 20 %, then repaired", nights // 3, nights // 3 + 20, 1.20),
        Planted(3, "faster by 12 %", nights // 2, nights, 0.88),
        Planted(4, "slower by 5 %", nights // 2, nights, 1.05),
        Planted(5, "slower by 3 %, hardly to be seen", nights // 2, nights, 1.03),
    ]


def write_history(folder: Path, *, nights: int = 365, cells: int = 65, seed: int = 1) -> list[Planted]:
    """A year of a machine that is replaced for its last 60 nights; each cell is measured with impl and with torch.

    Ratios included there are about three times as many series as cells. What was planted is returned, and written
    beside the folder.
    """
    history = opened(folder)
    world = World(series=cells, nights=nights, noise=0.02, earliest=0, latest=0)
    drawn = year(world, seed, 1)
    machine_noise = np.random.default_rng(seed + 1).normal(size=nights) * 0.02
    truth = planted(nights)
    start = datetime.now(UTC).replace(hour=2, minute=15, second=0, microsecond=0) - timedelta(days=nights)
    header = identity("perf", ["python", "-m", "perf", "run", "--sweep", "nightly"])
    for night in range(nights):
        if np.isnan(drawn.first[0, night]):
            continue
        facts = MACHINES[0] if night < nights - 60 or nights < 200 else MACHINES[1]
        about = {**header, "machine": facts, "commit": hashlib.sha1(b"%d" % (night // 3)).hexdigest()}
        _night(history, folder, drawn, night, start + timedelta(days=night), about, truth, machine_noise)
    note = {"machine": machine_name(MACHINES[0]), "who": "sim", "text": "new allocator, <accepted>"}
    _acknowledge(history, truth, note, start)
    shifts = [vars(one) for one in truth]
    folder.with_name(f"{folder.name}.truth.json").write_text(json.dumps(shifts, indent=1) + "\n", encoding="utf-8")
    return truth


def _night(
    history: Path, folder: Path, drawn: Year, night: int, when: datetime, about: Mapping[str, Any],
    truth: list[Planted], machine_noise: Any,
) -> None:  # fmt: skip
    work = folder.with_name(f"{folder.name}.work")
    draw = random.Random(night)
    machine = machine_name(about["machine"])
    factors = {one.cell: one.factor for one in truth if one.night <= night < one.until}

    def rows(values: Any, only: set[int] | None = None) -> list[dict[str, Any]]:
        found = []
        for cell in range(len(values)) if only is None else sorted(only):
            base = (2.0 + cell % 13) * float(np.exp(machine_noise[night]))
            mine = base * float(np.exp(values[cell])) * factors.get(cell, 1.0)
            found.append(perf_row(f"cell{cell:03}", "impl", mine, draw, samples=1))
            found.append(perf_row(f"cell{cell:03}", "torch", base * 1.1, draw, samples=1))
            if cell % 10 == 0:
                found.append(perf_row(f"cell{cell:03}", "impl", mine, draw, samples=1, copy=2))
        return found

    files = {}
    if night % 90 != 45:  # now and then a night is half
        files["perf.jsonl"] = write(work / "perf.jsonl", "perf", rows(drawn.first[:, night]), about)
    broken = ("JOIN-002",) if night % 120 in (70, 71, 72) else ()
    about_clauses = {**about, "of": "conformance"}
    files["conformance.jsonl"] = write(
        work / "conformance.jsonl", "conformance", conformance_rows(broken), about_clauses
    )
    place = add_night(history, machine, when, {"parts": {}}, files)
    doubtful = {int(cell) for cell in np.flatnonzero(np.abs(drawn.first[:, night]) > _RERUN_FROM * drawn.world.noise)}
    if doubtful and "perf.jsonl" in files:
        again = write(work / "again.jsonl", "perf", rows(drawn.again[0, :, night], doubtful), about)
        add_file(place, "perf-2.jsonl", again)


def _acknowledge(history: Path, truth: list[Planted], note: Mapping[str, str], start: datetime) -> None:
    """A note on what is planted as acknowledged, a week after it came."""
    from ..judging import Basis, judge

    for one in truth:
        if "acknowledged" not in one.what:
            continue
        for series in judge(history).series:
            found = [change for change in series.changes if change.worse and change.alarms]
            if series.axes["workload"] == f"cell{one.cell:03}" and series.basis is Basis.RATIO and found:
                time = (start + timedelta(days=one.night + 12)).isoformat(timespec="seconds")
                add_note(history, {**note, "key": series.key, "since": found[-1].since, "time": time})
