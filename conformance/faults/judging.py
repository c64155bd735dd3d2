"""What became of a cell: each survivor is right, or told in time who has failed and in which stage, or it is bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import promises
from .cells import MIRRORED, OF_A_COLLECTIVE, OVERLAPPED, Cell
from .injecting import FAULT, read
from .training import Segments, expected, survivors

RIGHT, TOLD = "right", "told"
GOOD = (RIGHT, TOLD)
#: from the worst; a cell is as bad as its worst survivor
BAD = (
    "hang", "aborted process", "wrong", "left processes", "blames another", "names nobody", "unnamed stage", "late",
)  # fmt: skip
NOTHING = ("not reached", "not run")
_WARM_UP = 2  # iterations in which torch's overlap hooks may not step yet


@dataclass(frozen=True)
class Judged:
    """The verdict on a cell, and what it rests on."""

    verdict: str  # one of GOOD, BAD or NOTHING
    told_s: float = 0.0  # after the fault, until the last survivor had its error; 0 where none had one
    why: str = ""  # the rank that decided, and what it said

    @property
    def good(self) -> bool:
        return self.verdict in GOOD


def judged(cell: Cell, folder: Path, exits: Mapping[int, int], subject: str) -> Judged:
    """Judge what the ranks of a cell have left in its folder. ``exits``: how their processes ended."""
    struck = read(folder / FAULT)
    reports = {rank: read(folder / f"{rank}.json") for rank in range(cell.world)}
    for mine in reports.values():
        if mine is not None and "unsupported" in mine:
            return Judged("not run", why=mine["unsupported"])
    if struck is None:
        return _without_fault(folder, reports, exits)
    verdicts = [
        _of_rank(cell, rank, struck["at"], reports[rank], folder, exits.get(rank, 0), subject)
        for rank in survivors(cell)
    ]
    told_s = max((verdict.told_s for verdict in verdicts), default=0.0)
    if astray := gone_astray(cell, reports):
        verdicts.append(Judged("wrong", why=astray))
    for bad in BAD:
        for verdict in verdicts:
            if verdict.verdict == bad:
                return Judged(bad, told_s, verdict.why)
    return Judged(TOLD if any(verdict.verdict == TOLD for verdict in verdicts) else RIGHT, told_s)


def _without_fault(folder: Path, reports: Mapping[int, Any], exits: Mapping[int, int]) -> Judged:
    """Nothing has struck: then all must be as without a fault."""
    failed = {rank: mine for rank, mine in reports.items() if mine is None or "error" in mine}
    stacks = {rank: _stacks(folder, rank, "hung") or _stacks(folder, rank, "words") for rank in failed}
    if failed:
        why = "; ".join(
            f"rank {rank} ended with {exits.get(rank, 0)}: {'' if mine is None else mine['text']}{stacks[rank]}"
            for rank, mine in failed.items()
        )
        return Judged("hang" if any(stacks.values()) else "aborted process", why=f"without a fault, {why}")
    return Judged("not reached")


def _of_rank(
    cell: Cell, rank: int, struck_at: float, report: Any, folder: Path, status: int, subject: str
) -> Judged:
    if report is None:
        stacks = _stacks(folder, rank, "hung")
        if stacks or status == 0:
            return Judged("hang", why=f"rank {rank} still waits\n{stacks}")
        return Judged("aborted process", why=f"rank {rank} ended with {status}")
    stuck = _stacks(folder, rank, "stuck")
    if stuck:
        return Judged("left processes", why=f"rank {rank} has ended its training and cannot leave\n{stuck}")
    if "parameters" in report:
        segments = _segments(report)
        right = _right(cell, subject, segments)
        if report["parameters"] in right:
            return Judged(RIGHT)
        told = f" with the ranks and steps {segments}" if segments else ""
        return Judged("wrong", why=f"rank {rank} has {report['parameters'][0]}, one process{told} {right[0][0]}")
    return _of_error(cell, rank, report, report["at"] - struck_at)


def _of_error(cell: Cell, rank: int, report: Any, seconds: float) -> Judged:
    text = f"rank {rank} after {seconds:.1f} s: {report['error']}: {report['text']}"
    if cell.kind in OF_A_COLLECTIVE and report["struck"] and seconds - report["starved"] < promises.LOCAL_S:
        return Judged(TOLD, seconds)  # the backend itself has refused what was planted
    instead = promises.names_culprit(cell, report["text"], rank)
    if instead:
        return Judged(instead, seconds, text)
    if not promises.names_stage(cell, report["text"]):
        return Judged("unnamed stage", seconds, text)
    if seconds - report["starved"] > promises.limit_s(cell):
        return Judged("late", seconds, text)
    return Judged(TOLD, seconds)


def _segments(report: Any) -> Segments:
    """From which step on which ranks took part, where some went on without others."""
    return tuple((first, tuple(ranks)) for first, ranks, _ in report.get("segments", ()))


def gone_astray(cell: Cell, reports: Mapping[int, Any]) -> str:
    """Whether ranks that have gone on without another differ in that, or have lost more steps than they may."""
    told = {rank: mine["segments"] for rank, mine in reports.items() if mine is not None and mine.get("segments")}
    if len({_segments(reports[rank]) for rank in told}) > 1:
        return f"ranks went on differently: {told}"
    for alike in zip(*told.values(), strict=True):
        steps, made = alike[0][0], max(each[2] for each in alike)
        if not made - (cell.program == MIRRORED) <= steps <= made:
            return f"{made} steps were made, and they went on as after {steps}: {told}"
    return ""


def _right(cell: Cell, subject: str, segments: Segments) -> list[list[list[float]]]:
    """The parameters that are right; torch's overlap hooks may skip the first iterations."""
    skips = (0, _WARM_UP) if subject == "torch" and cell.program in OVERLAPPED else (0,)
    return [expected(cell, segments, skip) for skip in skips]


def _stacks(folder: Path, rank: int, what: str) -> str:
    path = folder / f"{rank}.{what}"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
