"""Acknowledging: a note on a confirmed regression or a broken clause, kept in the history."""

from __future__ import annotations

import difflib
import getpass
from datetime import UTC, datetime
from pathlib import Path

from .history import HistoryError, add_note
from .judging import ClauseState, JudgedHistory, State


def acknowledge(judged: JudgedHistory, history: Path, key: str, text: str, *, machine: str = "", who: str = "") -> Path:
    """Write a note on what ``key`` names: a series' key, or a clause's as clause/subject/backend/world.

    The note counts from now on: what has changed so far is known, what changes later is news.
    """
    if not text.strip():
        raise HistoryError("an acknowledgement needs a note: say why with --note '…'")
    place, since = _found(judged, key, machine)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    note = {"machine": place, "key": key, "since": since, "time": now, "who": who or _who(), "text": text.strip()}
    return add_note(history, note)


def _found(judged: JudgedHistory, key: str, machine: str) -> tuple[str, str]:
    """The machine and the night on which the change began that a key speaks of."""
    standing = {
        (one.machine, one.key): one.changes[-1].since
        for one in judged.series
        if one.changes and one.changes[-1].state is State.CONFIRMED
    }
    standing |= {
        (one.machine, one.history): one.night
        for one in judged.clause_changes
        if one.new is ClauseState.BROKEN and one.alarms
    }
    hits = [(place, since) for (place, name), since in standing.items() if name == key and machine in ("", place)]
    if len(hits) == 1:
        return hits[0]
    if hits:
        places = ", ".join(place for place, _ in hits)
        raise HistoryError(f"{key} stands on several machines ({places}): say which with --machine")
    known = {one.key for one in judged.series} | {one.key for one in judged.clauses}
    if key in known:
        raise HistoryError(f"{key} has neither a confirmed regression nor a break that waits for a note")
    near = difflib.get_close_matches(key, sorted(known), 1)
    raise HistoryError(
        f"there is no series or clause {key!r} in this history" + (f"; did you mean {near[0]}?" if near else "")
    )


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
