"""When a cell is void, and why: its result is wrong, it relies on a broken guarantee, or its network is another one.

A void cell has no time and fails the command. The first reason is found on the ranks after every turn, from the gap
that ``verify`` measures; the others before anything is measured, from what ``reliance`` reads of the suite's judgement
and from what ``links`` measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .rows import VOID, Row

_BROKEN = "relies on "
_NETWORK = "the network is not what was asked for"


def by_result(gap: float, worst: str, rank: int, number: int) -> str:
    """Why a turn makes its cell void; empty if the result is right. ``gap`` is in units of what rounding may do."""
    if gap <= 1:
        return ""
    return (
        f"rank {rank}, round {number}: {worst} is {gap:.3g} times as far from what one process computes as rounding "
        "allows"
    )


def by_guarantee(clause: str, subject: str, witness: str) -> str:
    """Why a subject's broken guarantee makes a cell void."""
    return f"{_BROKEN}{clause}, which {subject} does not keep: {witness}"[:500]


def by_network(worst: str) -> str:
    """Why a network that is not what was asked for makes all cells over it void."""
    return f"{_NETWORK}: {worst}"


def short(reason: str) -> str:
    """A reason for the column of a table: without what was seen, which ``sentences`` say."""
    return reason.split(": ")[0] if reason.startswith((_BROKEN, _NETWORK)) else reason


def sentences(rows: Iterable[Row]) -> Iterator[str]:
    """What to say of the void ones among these rows: each reason once, with what was first seen."""
    reasons = [str(row["reason"]) for row in rows if row["status"] == VOID]
    about = [short(reason) if reason.startswith((_BROKEN, _NETWORK)) else "" for reason in reasons]
    for why, count in Counter(about).items():
        whole = reasons[about.index(why)] if why else "the result is not what one process computes"
        cells = "1 cell is" if count == 1 else f"{count} cells are"
        yield f"{cells} void: {whole.replace(_BROKEN, 'it relies on ' if count == 1 else 'they rely on ', 1)}"
