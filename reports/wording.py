"""Nights, numbers and commits as people read them; shared by the page and the exports."""

from __future__ import annotations

from .judging import Basis, Change, ClauseChange, Series


def moment(night: str) -> str:
    """``2026-11-20T021500Z-3fa2`` as ``2026-11-20 02:15``; the name of a missed night is only a day."""
    return f"{night[:10]} {night[11:13]}:{night[13:15]}" if len(night) > 15 else night


def percent(fraction: float) -> str:
    return f"{fraction:+.1%}".replace("-", "−")


def interval(change: Change) -> str:
    """The effect with its confidence interval."""
    return f"{percent(change.effect)} ({percent(change.low)} to {percent(change.high)})"


def number(value: float | None, basis: Basis) -> str:
    """A value of a series, without its unit where that is a time."""
    if value is None:
        return "–"
    return f"{value:.3f}" if basis.relative else f"{value:.4g}"


def unit(series: Series) -> str:
    return f"times {series.reference}" if series.basis.relative else series.unit


def short(commit: str) -> str:
    """The first letters of a commit; its ``+`` (files were changed) stays."""
    return commit[:10] + ("+" if commit.endswith("+") and len(commit) > 11 else "")


def commits(change: Change | ClauseChange) -> str:
    """The range that ``git log`` takes; empty where it is not known."""
    old, new = change.old_commit.rstrip("+"), change.new_commit.rstrip("+")
    if not old or not new:
        return ""
    return f"{old[:10]}..{new[:10]}" if old != new else old[:10]


def plural(count: int, word: str) -> str:
    """``1 clause``, ``2 clauses``; series and the like are their own plural."""
    return f"{count} {word}" if count == 1 or word.endswith("s") else f"{count} {word}s"
