"""One night: measure, keep, judge, measure again what looks wrong, judge again, build the page."""

from __future__ import annotations

import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from ..history import add_file, add_night
from ..judging import Health, JudgedHistory, judge
from ..records import identity
from . import verdict
from .again import again
from .lock import locked
from .plan import Asked
from .tonight import Tonight, collect, run

INTERRUPTED = 130


def nightly(asked: Asked) -> int:
    """Do it all; returns the exit status."""
    with locked(asked.history / f".lock-{asked.machine}"), terminated_like_interrupted():
        work = asked.out / f"work-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:4]}"
        work.mkdir(parents=True)
        tonight = Tonight(asked, work)
        interrupted = not _measured(tonight)
        night = add_night(asked.history, asked.machine, tonight.began, _manifest(tonight), tonight.files)
        if interrupted:
            print(f"nightly: interrupted; what was finished is in {night}", file=sys.stderr)
            return INTERRUPTED
        try:
            judged = judge(asked.history)
            if _is_about(judged, asked, night) and again(tonight, judged, night):
                judged = judge(asked.history)
            return _concluded(asked, judged, night)
        except KeyboardInterrupt:
            print(f"nightly: interrupted; the night is kept in {night}, and the next run judges it", file=sys.stderr)
            return INTERRUPTED


def _measured(tonight: Tonight) -> bool:
    """Run both parts once. False if interrupted: then what there is, is kept."""
    for part in tonight.asked.parts:
        try:
            status, why = run(tonight, part, tonight.asked.first_s, tonight.work / part)
        except KeyboardInterrupt:
            tonight.parts[part] = {"status": None, "why": "interrupted"}
            collect(tonight, part, tonight.work / part)
            return False
        tonight.parts[part] = {"status": status, "why": why}
        if not collect(tonight, part, tonight.work / part) and not why:
            tonight.parts[part]["why"] = f"left no record (exit status {status})"
    return True


def _manifest(tonight: Tonight) -> dict[str, Any]:
    header = identity("night")
    facts = {name: header[name] for name in ("machine", "versions", "commit", "environment", "command")}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    began = tonight.began.isoformat(timespec="seconds")
    missing = {
        part: {"status": None, "why": "not asked for", "off": True}
        for part in ("conformance", "perf")
        if part not in tonight.asked.parts
    }
    return {"schema": 1, "of": "night", "began": began, "finished": finished, "parts": tonight.parts | missing, **facts}


def _concluded(asked: Asked, judged: JudgedHistory, night: Path) -> int:
    """Keep the verdict, build the page, say it all; returns the exit status."""
    if not _is_about(judged, asked, night):
        path = f"{asked.machine}/{night.name}"
        why = next((one.why for one in judged.left_out if one.path == path), "another is later")
        print(f"nightly: could not judge: {night} is not the latest night of the history: {why}", file=sys.stderr)
        _page(judged, asked)
        return Health.UNJUDGED.exit_status
    machine = next(one for one in judged.machines if one.name == asked.machine)
    add_file(night, verdict.VERDICT, verdict.written(judged, machine, asked.out / verdict.VERDICT))
    print(verdict.summary(judged, machine))
    page = _page(judged, asked)
    if page is not None:
        print(f"page: {page}")
    return machine.health.exit_status


def _is_about(judged: JudgedHistory, asked: Asked, night: Path) -> bool:
    """Whether the machine's answer is that of this night: a clock that is set back makes another the latest."""
    mine = [one for one in judged.machines if one.name == asked.machine]
    return [one.nights[-1 - one.silent].name for one in mine] == [night.name]


def _page(judged: JudgedHistory, asked: Asked) -> Path | None:
    """Build the page. One that cannot be built does not change the verdict."""
    try:
        from ..dashboard import build

        return build(judged, asked.history, asked.out)
    except Exception as error:
        print(f"nightly: the page could not be built: {type(error).__name__}: {error}", file=sys.stderr)
        return None


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """A polite request to end (SIGTERM) ends a run as Ctrl-C does: kept as far as it came, and without children."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["INTERRUPTED", "Health", "nightly", "terminated_like_interrupted"]
