"""The matrix as a table: for each fault how many cells are good under each program, and how soon the error comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from . import known
from .cells import KINDS, PROGRAMS
from .judging import BAD, NOTHING
from .running import Row


def table(rows: Sequence[Row]) -> str:
    """Good of all that ran, by fault and program; seconds from the fault to the last survivor's error."""
    lines = [
        f"| fault | {' | '.join(PROGRAMS)} | error after (median, worst) |",
        f"| --- | {' | '.join('---' for _ in PROGRAMS)} | --- |",
    ]
    for kind in KINDS:
        mine = [row for row in rows if row.cell.kind == kind]
        if mine:
            shares = [_share([row for row in mine if row.cell.program == program]) for program in PROGRAMS]
            lines.append(f"| {kind} | {' | '.join(shares)} | {_times(mine)} |")
    return "\n".join(lines)


def _share(rows: Sequence[Row]) -> str:
    ran = [row for row in rows if row.judged.verdict not in NOTHING]
    return f"{sum(row.judged.good for row in ran)}/{len(ran)}" if ran else "–"


def _times(rows: Sequence[Row]) -> str:
    told = [row.judged.told_s for row in rows if row.judged.told_s]
    return f"{median(told):.1f} s, {max(told):.1f} s" if told else "–"


def summary(subject: str, rows: Sequence[Row], listed: Sequence[known.Listed]) -> tuple[str, int]:
    """The table, what is bad by kind of badness, and how many cells are bad and not listed, or listed and good."""
    ran = [row for row in rows if row.judged.verdict not in NOTHING]
    good = sum(row.judged.good for row in ran)
    nothing = Counter(row.judged.verdict for row in rows if row.judged.verdict in NOTHING)
    left = "".join(f", {count} {what}" for what, count in nothing.items())
    worst = Counter(row.judged.verdict for row in ran if not row.judged.good)
    bad = ", ".join(f"{worst[what]} {what}" for what in BAD if worst[what]) or "none bad"
    lines = [f"# {subject}: {good} of {len(ran)} cells good ({bad}){left}", "", table(rows)]
    surprising = known.surprises(subject, rows, listed)
    lines += ["", *surprising] if surprising else []
    return "\n".join(lines), len(surprising)
