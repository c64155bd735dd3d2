"""Made-up records, for tests and for simulated histories: of the shape that the commands write, with known truth.

``python -m reports.simulate.made_rows perf|conformance --out FOLDER`` stands in for a command in tests of the nightly.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..records import Writer, identity

Row = dict[str, Any]

BLOCKS, SAMPLES = 8, 3


def perf_rows(
    times_ms: Mapping[str, Mapping[str, float]], seed: int, *, noise: float = 0.005, again: bool = True
) -> list[Row]:
    """Rows of interleaved cells: workload -> subject -> time. A copy of impl is measured against itself, too."""
    draw = random.Random(seed)
    rows = []
    for workload, subjects in times_ms.items():
        cells = [(subject, 1, time_ms) for subject, time_ms in subjects.items()]
        cells += [("impl", 2, subjects["impl"])] if again and "impl" in subjects else []
        rows += [perf_row(workload, subject, time_ms, draw, noise=noise, copy=copy) for subject, copy, time_ms in cells]
    return rows


def perf_row(
    workload: str,
    subject: str,
    time_ms: float,
    draw: random.Random,
    *,
    noise: float = 0.005,
    copy: int = 1,
    samples: int = SAMPLES,
) -> Row:
    """One cell at two ranks; the second rank is always the slower one."""
    slowest = [int(time_ms * 1e6 * draw.gauss(1, noise)) for _ in range(BLOCKS * samples)]
    group = f"{workload} · cpu · world 2 · gloo · even · step · sgd"
    return {
        "series": f"{group} | {subject}" + (" · again" if copy > 1 else ""),
        "group": group,
        "subject": subject,
        "axes": {"workload": workload, "world": 2, "backend": "gloo", "subject": subject, "copy": copy},
        "workload_hash": f"hash of {workload}",
        "unit": "step",
        "status": "ok",
        "reason": "",
        "wall_ns": [[time_ns * 9 // 10, time_ns] for time_ns in slowest],
        "cpu_ns": [],
        "device_ns": [],
        "block": [number // samples for number in range(BLOCKS * samples)],
        "warmup_ns": [],
        "derived": {},
        "verified": {"gap": 0.0},
    }


def conformance_rows(broken: Sequence[str] = ()) -> list[Row]:
    """Three clauses kept by two subjects, except those of impl that are named."""
    return [
        {
            "clause": clause, "check": "test_it", "scenario": "", "subject": subject, "backend": "gloo", "world": 2,
            "outcome": "failed" if clause in broken and subject == "impl" else "passed", "seconds": 0.1,
            "witness": "rank 1 has 2, one process 3" if clause in broken else "", "level": "MUST", "deviation": "",
            "notes": [],
        }
        for clause in ("JOIN-001", "JOIN-002", "DDP-001")
        for subject in ("impl", "torch")
    ]  # fmt: skip


def write(path: Path, kind: str, rows: Sequence[Row], header: Mapping[str, Any] | None = None) -> Path:
    """A whole record; ``header`` replaces fields of the ordinary one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Writer(path, {**_identity(kind), **(header or {})}) as writer:
        for row in rows:
            writer.write(row)
    return writer.path


@cache
def _identity(kind: str) -> dict[str, Any]:
    """Asked once: it starts programs."""
    return identity(kind)


def main() -> int:
    """What a test wants of the command comes in the environment, so that the command line is the real one."""
    command = argparse.ArgumentParser()
    command.add_argument("part", choices=("perf", "conformance"))
    command.add_argument("--out", type=Path)
    command.add_argument("--select", default="*")
    command.add_argument("--only", default=[], action="append")
    given = command.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / ("conformance.jsonl" if given.part == "conformance" else "nightly-20260101.jsonl")
    if "FAKE_SLEEP" in os.environ:
        with Writer(path, identity(given.part)) as writer:
            for row in conformance_rows() if given.part == "conformance" else []:
                writer.write(row)
            print("asleep", flush=True)
            time.sleep(float(os.environ["FAKE_SLEEP"]))
    if os.environ.get("FAKE_FAILS") == given.part:
        print("the fake fails, as it was told", file=sys.stderr)
        return 3
    if given.part == "perf":
        # FAKE_ONCE: gone when it is measured again
        slow = float(os.environ.get("FAKE_SLOW", "1")) * _pace()
        if os.environ.get("FAKE_ONCE") and given.out.name != "perf":
            slow = 1.0
        times = {"mlp": {"impl": 10.0 * slow, "torch": 11.0}, "tiny": {"impl": 4.0, "torch": 5.0}}
        rows = perf_rows(times, seed=time.time_ns())
        groups = {row["group"] for row in rows if row["series"] in given.only or not given.only}
        again = ["python", "-m", "reports.simulate.made_rows", "perf", "--only", "{series}"]
        write(path, "perf", [row for row in rows if row["group"] in groups], {"again": again})
        return 0
    broken = os.environ.get("FAKE_BROKEN", "").split(",")
    if os.environ.get("FAKE_ONCE") and given.select != "*":
        broken = []
    rows = conformance_rows(broken)
    write(path, "conformance", [row for row in rows if given.select == "*" or row["clause"] in given.select.split(",")])
    return 1 if any(row["outcome"] == "failed" for row in rows) else 0


def _pace() -> float:
    """What stands for the code that is measured: a number in a file of the folder that the command runs in."""
    return float(Path("pace").read_text(encoding="utf-8")) if Path("pace").exists() else 1.0


if __name__ == "__main__":
    sys.exit(main())
