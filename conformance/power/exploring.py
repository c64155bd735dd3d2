"""What the quick tier let pass meets a tenth of the fault matrix, then random programs.

What these two execute is found first, by impl with marks: where they never come, they need not be run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reports.records.lines import whole_lines

from ..child import end_with_parent
from ..engine.judgement import BROKEN, OK
from ..explore.session import RECORD as EXPLORED
from ..faults import known
from ..faults.judging import BAD
from ..faults.running import RECORD as FAULTS
from ..faults.running import Row
from . import marks
from .drawing import SUBJECT, VARIABLE, read

PROGRAMS, MATRIX = "random programs", "the fault matrix"
_START_S = 600.0  # for loading and for the last batch, besides the minutes


@dataclass(frozen=True)
class Asked:
    """How long, on which programs, and where to put what was found."""

    minutes: float
    seed: int
    jobs: int
    out: Path


def explored(identity: str, concerned: frozenset[int], asked: Asked) -> Mapping[str, Any]:
    """Whether faults or random programs kill a mutant, by which and with a witness; else why they could not be run.

    ``concerned``: the marks of what it changes.
    """
    folder = asked.out / "explored" / re.sub(r"[^\w.]+", "-", identity)
    found: Mapping[str, Any] = {"killed": False, "witness": "no fault and no random program comes to it"}
    for by, meet in ((MATRIX, _met_by_faults), (PROGRAMS, _met_by_programs)):
        if concerned & executed(by, asked) and (found := meet(identity, asked, folder)).get("killed"):
            break
    return found


@cache
def executed(by: str, asked: Asked) -> frozenset[int]:
    """The marks that a tenth of the matrix, or the random programs, make; all where something fails that should not."""
    folder = asked.out / "explored" / f"marks of {by}"
    folder.mkdir(parents=True, exist_ok=True)
    sources = read()
    size = len(marks.places(sources))
    taken = marks.Map(folder / "marks", size, new=True)
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"sources": marks.marked(sources), "marks": [str(folder / "marks"), size]}))
    done = _run(*_question(by, asked, folder), str(plan))
    return frozenset(taken.taken() if done.returncode == OK else range(size))


def _question(by: str, asked: Asked, folder: Path) -> tuple[str, Sequence[str], float]:
    """Which command puts a subject to the test, with which words, and how many seconds it takes."""
    words = ["--subject", SUBJECT, "--seed", str(asked.seed), "--jobs", str(asked.jobs), "--out", str(folder)]
    if by == MATRIX:
        return "faults", [*words, "--tenth"], 0.0
    return "explore", [*words, "--minutes", str(asked.minutes), "--first"], 60 * asked.minutes


def _met_by_faults(identity: str, asked: Asked, folder: Path) -> Mapping[str, Any]:
    folder /= "faults"
    try:
        done = _run(*_question(MATRIX, asked, folder), identity)
    except subprocess.TimeoutExpired:
        return {"killed": True, "by": MATRIX, "outcome": "hung", "witness": "the matrix did not come to its end"}
    if done.returncode not in (OK, BROKEN):
        return {"trouble": " ".join(done.stderr.split())[-300:]}
    for row in _bad(folder):
        sound = folder / "sound"
        _run("faults", ["--subject", "impl", "--select", row.cell.id, "--jobs", "1", "--out", str(sound)])
        if not _bad(sound):
            witness = f"{row.cell.id}: {row.judged.why}"
            return {"killed": True, "by": MATRIX, "outcome": row.judged.verdict, "witness": witness}
    return {"killed": False}


def _bad(folder: Path) -> list[Row]:
    """The cells of a record that are bad and not known to be so."""
    lines = whole_lines(next(folder.glob(f"*/{FAULTS}")))
    rows = [Row.read(line) for line in lines if line.get("verdict") in BAD]
    return [row for row in rows if not any(one.covers("impl, strict", row) for one in known.load())]


def _met_by_programs(identity: str, asked: Asked, folder: Path) -> Mapping[str, Any]:
    try:
        done = _run(*_question(PROGRAMS, asked, folder), identity)
    except subprocess.TimeoutExpired:
        return {"killed": True, "by": PROGRAMS, "outcome": "hung", "witness": "the exploration did not end"}
    if done.returncode not in (OK, BROKEN):
        return {"trouble": " ".join(done.stderr.split())[-300:]}
    for failure in _failures(folder) if done.returncode == BROKEN else ():
        sound = _run("explore", ["--subject", "impl", "--program", str(failure["program"]), "--out", str(folder)])
        if sound.returncode == OK:
            witness = f"{failure.get('text', '')} (program {failure['program']})"
            return {"killed": True, "by": PROGRAMS, "outcome": "failed", "witness": witness}
    return {"killed": False}


def _run(
    command: str, words: Sequence[str], seconds: float = 0.0, mutant: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "conformance", command, *words], env={**os.environ, VARIABLE: mutant},
        capture_output=True, text=True, timeout=seconds + _START_S, check=False, preexec_fn=end_with_parent,
    )  # fmt: skip


def _failures(folder: Path) -> list[Mapping[str, Any]]:
    """The failures in the record of an exploration, in the order in which they were met."""
    rows = [row for path in sorted(folder.rglob(EXPLORED)) for row in whole_lines(path)]
    return [failure for row in rows for failure in row.get("new", ())]
