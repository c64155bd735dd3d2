"""One night: measure, keep, judge, measure again what looks wrong, judge again, build the page."""

from __future__ import annotations

import json
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from ..history import add_file, add_night
from ..judging import ClauseState, Health, JudgedHistory, judge
from ..records import identity
from ..records.writer import PART
from . import child, verdict
from .lock import locked
from .plan import Asked

INTERRUPTED = 130


@dataclass
class _Tonight:
    """What one run has done so far."""

    asked: Asked
    work: Path  # logs, and records until they are in the history; emptied by nobody but the user
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    start: float = field(default_factory=time.monotonic)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.start


def nightly(asked: Asked) -> int:
    """Do it all; returns the exit status."""
    with locked(asked.history / f".lock-{asked.machine}"), _terminated_like_interrupted():
        work = asked.out / f"work-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:4]}"
        work.mkdir(parents=True)
        tonight = _Tonight(asked, work)
        interrupted = not _measured(tonight)
        night = add_night(asked.history, asked.machine, tonight.began, _manifest(tonight), tonight.files)
        if interrupted:
            print(f"nightly: interrupted; what was finished is in {night}", file=sys.stderr)
            return INTERRUPTED
        try:
            judged = judge(asked.history)
            if _again(tonight, judged, night):
                judged = judge(asked.history)
            return _concluded(asked, judged, night)
        except KeyboardInterrupt:
            print(f"nightly: interrupted; the night is kept in {night}, and the next run judges it", file=sys.stderr)
            return INTERRUPTED


def _measured(tonight: _Tonight) -> bool:
    """Run both parts once. False if interrupted: then what there is, is kept."""
    for part in tonight.asked.parts:
        budget_s = tonight.asked.limit_s(part, tonight.spent_s)
        try:
            status, why = _run(tonight, part, budget_s, tonight.work / part)
        except KeyboardInterrupt:
            tonight.parts[part] = {"status": None, "why": "interrupted"}
            _collect(tonight, part, tonight.work / part)
            return False
        tonight.parts[part] = {"status": status, "why": why}
        if not _collect(tonight, part, tonight.work / part) and not why:
            tonight.parts[part]["why"] = f"left no record (exit status {status})"
    return True


def _run(tonight: _Tonight, part: str, budget_s: float, out: Path, select: str = "*") -> tuple[int, str]:
    """Run a part's command; its exit status, and why it is not whole (empty if it is)."""
    command = tonight.asked.command(part, out, budget_s, select)
    limit_s = budget_s if part == "conformance" else tonight.asked.stop_s(budget_s)
    log = tonight.work / f"{out.name}.log"
    print(f"nightly: {part}, at most {limit_s:.0f} s (output in {log})", file=sys.stderr, flush=True)
    try:
        ended = child.run(command, log, limit_s)
    except OSError as error:
        return 127, f"its command cannot be started: {error}"
    if ended.late:
        return ended.status, f"stopped after {ended.seconds:.0f} s, which is all that the budget gives it"
    # 0 and 1 are verdicts; anything else is a run that did not get to its end
    why = "" if ended.status in (0, 1) else f"ended with status {ended.status}: {_last_words(log)}"
    return ended.status, why


def _last_words(log: Path) -> str:
    """The last line that a command said."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _collect(tonight: _Tonight, part: str, out: Path, number: int = 1) -> Path | None:
    """Find a part's record, whole or not, for the history."""
    name = f"{part}.jsonl" if number == 1 else f"{part}-{number}.jsonl"
    found = [path for path in sorted(out.glob("*.jsonl")) + sorted(out.glob(f"*.jsonl{PART}")) if _is_of(part, path)]
    if found:
        tonight.files[name] = found[0]
    return found[0] if found else None


def _is_of(part: str, path: Path) -> bool:
    """Whether a file is a record of this part, by its first line: commands name their files as they like."""
    try:
        with path.open(encoding="utf-8") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(header, dict) and header.get("line") == "header" and header.get("of") == part


def _manifest(tonight: _Tonight) -> dict[str, Any]:
    header = identity("night")
    told = {name: header[name] for name in ("machine", "versions", "commit", "environment", "command")}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    began = tonight.began.isoformat(timespec="seconds")
    missing = {
        part: {"status": None, "why": "not asked for", "off": True}
        for part in ("conformance", "perf")
        if part not in tonight.asked.parts
    }
    return {"schema": 1, "of": "night", "began": began, "finished": finished, "parts": tonight.parts | missing, **told}


# -- again


def _again(tonight: _Tonight, judged: JudgedHistory, night: Path) -> bool:
    """Measure again what looks changed, and ask again about clauses that look broken. True if anything was added."""
    machine = tonight.asked.machine
    doubtful = [one.name for one in judged.series if one.machine == machine and one.doubtful]
    broken = sorted(
        {
            one.clause
            for one in judged.clauses
            if one.machine == machine and one.states and one.states[-1] is ClauseState.BROKEN
        }
    )
    added = False
    if broken:
        select = ",".join(broken)
        added |= _once_more(
            tonight, "conformance", 2, max(60.0, tonight.asked.budget_s - tonight.spent_s), night, select
        )
    times = judged.parameters.again
    for number in range(2, 2 + times if doubtful else 2):
        left_s = max(tonight.asked.budget_s - tonight.spent_s, 0.1 * tonight.asked.budget_s)
        added |= _once_more(tonight, "perf", number, left_s / (2 + times - number), night)
    return added


def _once_more(tonight: _Tonight, part: str, number: int, budget_s: float, night: Path, select: str = "*") -> bool:
    out = tonight.work / f"{part}-{number}"
    _, why = _run(tonight, part, budget_s, out, select)
    record = _collect(tonight, part, out, number)
    if why or record is None:
        print(f"nightly: {part} again: {why or 'left no record'}", file=sys.stderr)
    if record is not None:
        add_file(night, f"{part}-{number}.jsonl", record)
    return record is not None


# -- the end


def _concluded(asked: Asked, judged: JudgedHistory, night: Path) -> int:
    """Keep the verdict, build the page, say it all; returns the exit status."""
    machine = next(one for one in judged.machines if one.name == asked.machine)
    add_file(night, verdict.VERDICT, verdict.written(judged, machine, asked.out / verdict.VERDICT))
    print(verdict.told(judged, machine))
    page = _page(judged, asked)
    if page is not None:
        print(f"page: {page}")
    return machine.health.exit_status


def _page(judged: JudgedHistory, asked: Asked) -> Path | None:
    """Build the page. One that cannot be built does not change the verdict."""
    try:
        from ..dashboard import build

        return build(judged, asked.history, asked.out)
    except Exception as error:
        print(f"nightly: the page could not be built: {type(error).__name__}: {error}", file=sys.stderr)
        return None


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """A polite request to end (SIGTERM) ends a run as Ctrl-C does: kept as far as it came, and without children."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["INTERRUPTED", "Health", "nightly"]
