"""The noise of a measurement: what comes out when a cell is compared with itself, measured like any other pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..measure.rows import OK, Row, sibling
from .ratio import Ratio, ratio
from .ratio import verdicts as ratio_verdicts

DIFFERENT = ("faster", "slower")
WITHIN = "within the noise"


def of_group(rows: Sequence[Row]) -> Ratio | None:
    """The group's cell that was measured twice, against its copy; None if one of the two came to nothing."""
    for duplicate in rows:
        if duplicate["axes"]["copy"] == 1:
            continue
        first = sibling(duplicate, rows, copy=1)
        if first is not None and first["status"] == duplicate["status"] == OK:
            return ratio(first, duplicate)
    return None


def figure(noise: Ratio | None) -> float | None:
    """How far from 1, up or down, the comparison of a cell with itself comes out, as a share; None if nobody knows."""
    if noise is None:
        return None
    ends = [end for end in (noise.point, noise.low, noise.high) if end > 0]  # not NaN
    return max(max(end, 1 / end) for end in ends) - 1 if ends else None


def verdicts(found: Sequence[tuple[Ratio, Ratio | None]]) -> list[str]:
    """What ratios say that are told together, each beside the noise of its group, as far as that is known.

    Nothing is called a difference that a cell shows against itself, too.
    """
    said = ratio_verdicts([one for one, _ in found])
    return [
        WITHIN if word in DIFFERENT and _covers(noise, one) else word
        for word, (one, noise) in zip(said, found, strict=True)
    ]


def _covers(noise: Ratio | None, found: Ratio) -> bool:
    """Whether the machine is known to see differences between a cell and itself, and as large ones."""
    share = figure(noise)
    restless = noise is not None and noise.said in DIFFERENT
    return restless and share is not None and max(found.point, 1 / found.point) <= 1 + share


def noted(rows: Sequence[Row]) -> list[Row]:
    """The rows of a group with its noise among their derived figures."""
    noise = of_group(rows)
    share = figure(noise)
    if noise is None or share is None:
        return list(rows)
    figures: dict[str, Any] = {name: getattr(noise, name) for name in ("point", "low", "high", "rounds")}
    figures["lag_1"] = noise.sample.correlation
    figures = {name: value for name, value in figures.items() if value == value}
    return [{**row, "derived": {**row["derived"], "noise": share, "noise_ratio": figures}} for row in rows]
