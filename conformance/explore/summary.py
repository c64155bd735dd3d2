"""What an exploration met, in words: programs, features and pairs of them, failures by cause."""

from __future__ import annotations

from collections.abc import Collection

from . import axes
from .axes import Feature
from .judging import FALLS_OVER
from .listed import listed
from .session import Cause, Explored


def summary(explored: Explored, subject: str, allowed: Collection[Feature]) -> tuple[str, int]:
    """The text, and how many causes no list of deviations explains."""
    possible = [pair for pair in axes.legal_pairs() if pair[0] in allowed and pair[1] in allowed]
    met = [pair for pair in possible if explored.pairs[pair]]
    share = 100 * len(met) / len(possible) if possible else 100.0
    lines = [
        f"# {subject}: {explored.programs} programs, {explored.failures()} failures of {len(explored.causes)} causes",
        "",
        f"{explored.seconds:.0f} s; {len(met)} of {len(possible)} legal pairs of features met ({share:.1f} %).",
        *_partly(explored),
        "",
        *_features(explored, allowed),
        "",
        *_missing(explored, possible),
    ]
    unlisted = 0
    for cause in sorted(explored.causes, key=lambda each: -each.times):
        clauses = listed(cause.program, subject) if cause.kind != FALLS_OVER else []
        unlisted += not clauses
        lines += ["", *_cause(cause, clauses)]
    return "\n".join(lines), unlisted


def _features(explored: Explored, allowed: Collection[Feature]) -> list[str]:
    lines = ["| axis | how often each value was met |", "| --- | --- |"]
    for axis, values in axes.AXES.items():
        parts = [f"{value} {explored.features[axis, value]}" for value in values[1:] if (axis, value) in allowed]
        if parts:
            lines.append(f"| {axis} | {', '.join(parts)} |")
    return lines


def _partly(explored: Explored) -> list[str]:
    """Where rounding had grown so much that it would have explained nearly everything."""
    if not explored.partly:
        return []
    moments = ", ".join(f"{moment} ({times})" for moment, times in sorted(explored.partly.items()))
    return [f"Compared in part, since rounding had grown too much: {explored.partly.total()} programs, from {moments}."]


def _missing(explored: Explored, possible: Collection[tuple[Feature, Feature]]) -> list[str]:
    missing = sorted(pair for pair in possible if not explored.pairs[pair])
    parts = [f"{one[0]}={one[1]} with {other[0]}={other[1]}" for one, other in missing[:20]]
    more = f", and {len(missing) - 20} more" if len(missing) > 20 else ""
    return [f"Never met: {'; '.join(parts)}{more}."] if missing else ["Every legal pair was met."]


def _cause(cause: Cause, clauses: list[str]) -> list[str]:
    why = f"listed: {', '.join(clauses)}" if clauses else "NOT LISTED"
    return [f"{cause.times} × {cause.kind} ({why}): {cause.text}", f"    {cause.program.json()}"]
