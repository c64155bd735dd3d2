"""What a part's command left behind, read from its files: its outcome, what it counts and what it found."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from ..nightly.child import Ended
from ..records import RecordError, RecordFile, read, register
from ..records.schema import Fields
from ..records.writer import PART

Row = dict[str, Any]

ROW: Fields = {
    "part": str,
    "proves": str,
    "outcome": str,  # see Outcome
    "why": str,  # it is not proved
    "seconds": (int, float),
    "command": list,
    "record": str,  # what its command wrote, beside this record; empty if there is nothing
    "counts": dict,  # of cases or findings, by how they ended
    "findings": list,  # what, state, why, value, theirs, unit: see ``conformance gpu``
}
KIND = "accelerator"
register(KIND, ROW)

_KEPT = ("passed", "unsupported", "skipped", "not run")
_MOST_NAMED = 8
TARGETS = "targets.md"
_LINE = "on a GPU, world 1"  # of the table of targets
_VERDICTS = {"reached": "held", "missed": "broken", "cannot tell": "open"}
_REFUSED = 2  # the status of a command that cannot do what it was asked for


class Outcome(Enum):
    """How a part stands."""

    PROVED = "proved"
    DISPROVED = "disproved"  # it ran to its end, and something does not hold
    OPEN = "open"  # it ran to its end, and what it measured says neither
    NOT_RUN = "not run"  # cannot be had here
    FAILED = "failed"  # ended without saying what it should
    UNFINISHED = "unfinished"  # stopped, or its turn has not come: the same command goes on

    @property
    def final(self) -> bool:
        """Whether the same command would not run it again."""
        return self not in (Outcome.UNFINISHED, Outcome.FAILED)


def row(
    part: str, proves: str, outcome: Outcome, why: str = "", seconds: float = 0.0, command: Sequence[str] = (),
    record: str = "", counts: Mapping[str, int] | None = None, findings: Sequence[Row] = (),
) -> Row:  # fmt: skip
    return {
        "part": part, "proves": proves, "outcome": outcome.value, "why": why, "seconds": round(seconds, 1),
        "command": list(command), "record": record, "counts": dict(counts or {}), "findings": list(findings),
    }  # fmt: skip


def outcome_of(ended: Ended, said: str) -> tuple[Outcome, str]:
    """What an exit status means, and why it is not a proof. ``said``: the command's last line."""
    if ended.late:
        return Outcome.UNFINISHED, f"stopped after {ended.seconds:.0f} s, its deadline; the same command goes on"
    if ended.status == 0:
        return Outcome.PROVED, ""
    if ended.status == 1:
        return Outcome.DISPROVED, ""
    if ended.status == _REFUSED and "unrecognized arguments" in said:
        return Outcome.NOT_RUN, f"not available in this version: {said}"
    if ended.status == _REFUSED:
        return Outcome.NOT_RUN, said
    return Outcome.FAILED, f"ended with status {ended.status}: {said}"


def judged_by_sanitizer(outcome: Outcome, why: str, log: str) -> tuple[Outcome, str]:
    """What the tool's own summaries say, one for each process that it watched; without any it has watched nothing."""
    errors = [int(count) for count in re.findall(r"ERROR SUMMARY: (\d+) error", log)]
    if any(errors):
        return Outcome.DISPROVED, f"{sum(errors)} errors reported by compute-sanitizer; its log says where"
    if outcome is Outcome.PROVED and not errors:
        return Outcome.FAILED, "compute-sanitizer has written no summary"
    return outcome, why


def found_by(kind: str, folder: Path) -> tuple[dict[str, int], list[Row], str]:
    """Counts, findings and the file that they are in, as far as the command came."""
    if kind in ("findings", "sanitized"):
        findings = _findings(folder / "findings.json")
        states = [str(one["state"]) for one in findings]
        return {state: states.count(state) for state in dict.fromkeys(states)}, findings, "findings.json"
    if kind == "targets":
        findings = _targets(folder / TARGETS)
        states = [str(one["state"]) for one in findings]
        return {state: states.count(state) for state in dict.fromkeys(states)}, findings, TARGETS if findings else ""
    record = _record(folder)
    if record is None:
        return {}, [], ""
    counted, findings = (_suite if record.header["of"] == "conformance" else _perf)(record)
    return counted, findings, record.path.name


def _findings(path: Path) -> list[Row]:
    try:
        found: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found


def _targets(path: Path) -> list[Row]:
    """The figures of the GPU's line in the table of targets; the line itself where none was measured."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    start = next((at for at, row in enumerate(rows) if row[0] == f"**{_LINE}**"), None)
    if start is None:
        return []
    after = rows[start + 1 :]
    end = next((at for at, row in enumerate(after) if row[0].startswith("**")), len(after))
    return [_target(row) for row in after[:end] or [rows[start]]]


def _target(cells: Sequence[str]) -> Row:
    """What a line of the table says: its name, target, figure, lag, torch's, noise and verdict."""
    verdict, _, reason = cells[-1].strip("*").partition(": ")
    detail = reason or ", ".join(word for word in (cells[2], cells[4] and f"torch's {cells[4]}") if word)
    return _finding(f"{cells[0].strip('*')}: {cells[1]} of torch's", _VERDICTS.get(verdict, "not run"), detail)


def _record(folder: Path) -> RecordFile | None:
    """The latest record of the folder, whole or not."""
    files = [*folder.glob("*.jsonl"), *folder.glob(f"*.jsonl{PART}")]
    for path in sorted(files, key=lambda one: (one.suffix == ".jsonl", one.stat().st_mtime), reverse=True):
        try:
            return read(path, partial=True)
        except RecordError:
            continue
    return None


def _suite(record: RecordFile) -> tuple[dict[str, int], list[Row]]:
    """Cases by outcome; what is broken and not listed by name."""
    states: dict[str, int] = {}
    broken: dict[str, str] = {}
    for one in record.rows:
        listed = one["outcome"] not in _KEPT and bool(one["deviation"])
        state = "listed" if listed else str(one["outcome"])
        states[state] = states.get(state, 0) + 1
        if one["outcome"] not in _KEPT and not listed:
            name = f"{one['clause']} by {one['subject']} at {one['world']} ranks on {one['backend']}"
            broken.setdefault(name, str(one["witness"] or one["outcome"]).strip().split("\n")[0][:300])
    return states, [_finding(what, "broken", why) for what, why in list(broken.items())[:_MOST_NAMED]]


def _perf(record: RecordFile) -> tuple[dict[str, int], list[Row]]:
    """Cells by status; the figures of ours beside torch's."""
    states = [str(one["status"]) for one in record.rows]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    wrong = [one for one in record.rows if one["status"] not in ("ok", "not run")]
    found = [_finding(one["series"], "broken", f"{one['status']}: {one['reason']}") for one in wrong]
    unmeasured = [str(one["reason"]) for one in record.rows if one["status"] == "not run"]
    if unmeasured:
        found.append(_finding(f"{len(unmeasured)} of {len(states)} cells", "not run", unmeasured[0]))
    pairs: dict[str, dict[str, Row]] = {}
    for one in record.rows:
        if one["status"] == "ok" and one["axes"].get("copy", 1) == 1:
            pairs.setdefault(_alike(one), {})[one["subject"]] = one
    for cell, each in pairs.items():
        if {"impl", "torch"} <= each.keys():
            found += _figures(cell, each["impl"], each["torch"])
    return counts, found


def _alike(one: Row) -> str:
    """What a cell shares with that of the other subject, in words."""
    axes = one["axes"]
    views = ", views" if axes.get("bucket_view") else ""
    best = f", {axes['settings']}" if axes.get("settings", "default") != "default" else ""
    hook = f", {axes['hook']}" if axes.get("hook", "none") != "none" else ""
    more = "".join(f", {name} {axes[name]}" for name in ("strategy", "zero", "skew") if axes.get(name) in _TOLD)
    return f"{axes['workload']} at {axes['world']}{views}{best}{hook}{more}"


_TOLD = ("join", "throwing", "on", "views", "linear", "straggler")


def _figures(cell: str, ours: Row, theirs: Row) -> list[Row]:
    found = []
    for what, name in (("step", "wall_ns"), ("host time", "cpu_ns"), ("time on the GPU", "device_ns")):
        mine, other = _median_ms(ours[name]), _median_ms(theirs[name])
        if mine is not None and other is not None:
            found.append(_finding(f"{cell}: {what}", "figure", value=mine, theirs=other, unit="ms"))
    for what, unit, scale in (
        ("launches", "", 1), ("synchronisations", "", 1), ("collectives", "", 1), ("peak_bytes", "MiB", 2**20),
    ):  # fmt: skip
        mine, other = (_largest(one["derived"].get(what)) for one in (ours, theirs))
        if isinstance(mine, (int, float)) and isinstance(other, (int, float)):
            name = "memory at its peak" if what == "peak_bytes" else what
            found.append(_finding(f"{cell}: {name}", "figure", value=mine / scale, theirs=other / scale, unit=unit))
    return found


def _largest(counted: Any) -> Any:
    """Of all ranks', where each has its own."""
    return max(counted, default=None) if isinstance(counted, list) else counted


def _median_ms(samples: Sequence[Sequence[int]]) -> float | None:
    """The median over samples of the slowest rank's time."""
    return statistics.median(max(sample) for sample in samples) / 1e6 if samples and samples[0] else None


def _finding(
    what: str, state: str, why: str = "", *, value: float | None = None, theirs: float | None = None, unit: str = ""
) -> Row:
    return {"what": what, "state": state, "why": why, "value": value, "theirs": theirs, "unit": unit}
