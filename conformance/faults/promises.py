"""What is promised of a failure: how soon the error comes, and that it names the rank (or the link) and the stage."""

from __future__ import annotations

import re
from collections.abc import Collection

from .cells import ABOUT, ENDING, LIVE, OF_A_COLLECTIVE, REGROUPING, SPEAKING, Cell

SPEAKING_S = 2.0  # where the failing side could say what has happened
DETECTION_S = 5.0  # where it could not: what the failure guard needs to notice, …
REACTION_S = 1.0  # … and to tell
SHORT_STOP_S = 1.0
#: a survivor that has not ended so long after the promised time hangs; before that it is late
GRACE_S = 2.5
#: forming a group without the lost rank, and training on, may take so long
GOING_ON_S = 20.0
#: an error that the backend raises on the spot, from what was planted in the call
LOCAL_S = 0.1
#: a rank that has said how it ended must be gone by then
LEAVING_S = 3.0
#: the group's own timeout, which must never be what ends a wait
GROUP_TIMEOUT_S = 120.0


def limit_s(cell: Cell) -> float:
    """Within this time after the fault every survivor has ended, or has an error."""
    told_s = SPEAKING_S if cell.kind in SPEAKING else DETECTION_S + REACTION_S
    return told_s + GOING_ON_S if cell.program in REGROUPING else told_s


_RANKS = r"\branks?\s+((?:\d+)(?:\s*(?:\([^)]*\)\s*)?(?:,\s*and|,|and|or)\s*(?:rank\s+)?\d+)*)"
_MENTIONED = re.compile(_RANKS, re.IGNORECASE)
_FAILED = (
    r"(?:stopped answering|has stopped|have stopped|ha(?:s|ve) not answered|does not answer|no longer answers?|"
    r"left the|ha(?:s|ve) failed|failed with|died|is gone|was killed|was lost|has ended|exited|raised|has frozen|"
    r"froze|is frozen|ha(?:s|ve) not been heard|silent|went away|not responding)"
)
_BLAMED = re.compile(_RANKS + r"[^.;]{0,60}?\b" + _FAILED, re.IGNORECASE)
_STAGE = re.compile(
    r"roll call|control message|buffer|bucket|gradient|reduc|agree|publish|shard|consolidat|construct|verif|forward|"
    r"backward|zero step|final|synchroni[sz]|iteration|parameter|between|"
    r"was waiting for: \S|collective that failed: \S",
    re.IGNORECASE,
)
#: of what a rank waits for, leaving out a context's messages: joined ranks wait for those between iterations, too; in
#: strict mode all ranks agree on such a message first
_ITERATION = re.compile(r"was waiting for: (?!(?:the other ranks' agreement on )?Join\b)[^.]* in iteration (\d+)")
_LINK = re.compile(r"\blink\b|\bnetwork\b|\bhost\b", re.IGNORECASE)
_STORE = re.compile(r"\bstore\b", re.IGNORECASE)


def names_culprit(cell: Cell, text: str, reader: int) -> str:
    """Empty if the text names who failed; else what it does instead."""
    blamed = _numbers(_BLAMED, _bare(text))  # brackets tell of processes and hosts
    failing = set(cell.failing)
    if cell.on_hosts and reader in failing:  # seen from here, it is the other side of the link that has gone
        failing = set(range(cell.world)) - failing
    if cell.kind == "store gone":
        return "" if _STORE.search(text) else _instead(blamed)
    if cell.kind in OF_A_COLLECTIVE:
        named = bool(failing & _numbers(_MENTIONED, text)) or (reader in failing and "this rank" in text)
        return "" if named else _instead(blamed)
    if cell.on_hosts and _LINK.search(text) and not blamed - failing:
        return ""
    if blamed:
        return "" if blamed <= failing else "blames another"
    return "" if failing & (_numbers(_MENTIONED, text) - {reader}) else "names nobody"


def _instead(blamed: Collection[int]) -> str:
    return "blames another" if blamed else "names nobody"


def _numbers(pattern: re.Pattern[str], text: str) -> set[int]:
    return {int(number) for found in pattern.finditer(text) for number in re.findall(r"\d+", _bare(found[1]))}


def _bare(ranks: str) -> str:
    """A text without what stands in brackets, as global ranks and processes do."""
    return re.sub(r"\([^)]*\)", "", ranks)


def names_stage(cell: Cell, text: str) -> bool:
    """Whether the text says what was being done, and if it counts iterations, in the one in which that was."""
    told = {int(number) for number in _ITERATION.findall(text)}
    return _STAGE.search(text) is not None and told <= _iterations(cell, told)


def _iterations(cell: Cell, told: set[int]) -> set[int]:
    """Those in which a survivor may have waited when the rank in question ended, from 1; all where that is open."""
    at = cell.where.iteration + 1
    allowed = {"forward": {at}, "backward": {at}, "step": {at, at + 1}, "between": {at, at + 1}}
    known = cell.kind in ENDING and cell.role in (LIVE, ABOUT)
    return allowed.get(cell.where.phase, told) if known else told
