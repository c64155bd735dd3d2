"""Interleaved against sequential: the differences of their steps, round by round, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..analyse.board import Board
from ..analyse.intervals import NOTHING, Interval, Rounds, of_difference
from ..analyse.ratio import by_round
from ..analyse.signs import less_p, more_p, significant
from ..measure.rows import OK, Row, sibling
from ..plan.cells import Cell
from ..wording import counted, more
from . import style
from .undrawable import Undrawable

TITLE = "Does the interleaved hook beat the sequential one?"
_PAIRS = (("sequential", "interleaved"), ("reduce_scatter", "reduce_scatter_interleaved"))
_MOST_LINES = 24


@dataclass(frozen=True)
class Difference:
    """Interleaved minus sequential of one configuration, in milliseconds."""

    name: str
    subject: str
    rounds: Rounds
    whole: Interval
    trouble: str  # why there is no difference
    rows: tuple[Row, Row]


def draw(made: Board) -> Any:
    found = _differences(made)
    if not found:
        raise Undrawable("the record has no interleaved step beside a sequential one (sweeps default and overlap have)")
    shown = found[:_MOST_LINES]
    caption = made.caption(
        "Differences of the times of a step, interleaved minus sequential, in the same round and the same processes: "
        "small dots are rounds, the large mark is their median with its 95 % interval by order statistics (filled: not "
        "0, corrected for the number of lines by Benjamini and Hochberg)." + more(len(found) - len(shown), "line"),
        [row for one in shown for row in one.rows],
    )
    figure, (axis,) = style.sheet(TITLE, caption, 1, height_in=0.75 + 0.36 * len(shown))
    for place, (one, clear) in enumerate(zip(shown, _clear(shown), strict=True)):
        _drawn(axis, place, one, made.subjects, clear)
    axis.axvline(0, color=style.INK, linewidth=1)
    axis.set_yticks(range(len(shown)), [f"{one.subject} · {one.name}" for one in shown])
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    far = max([1e-3, *(abs(value) for one in shown for value in one.rounds.values())]) * 1.08
    axis.set_xlim(-far, far)
    axis.set_xlabel("interleaved − sequential, ms a step\nleft of 0: interleaved is faster")
    return figure


def _differences(made: Board) -> list[Difference]:
    found = []
    for group in made.groups:
        for one, other in _PAIRS:
            for first in group.find(hook=one):
                second = sibling(first, group.rows, hook=other)
                if second is not None:
                    found.append(_difference(first, second))
    return found


def _difference(sequential: Row, interleaved: Row) -> Difference:
    cell = Cell(**sequential["axes"])
    words = [cell.workload, cell.optimizer, f"cap {cell.cap_mib:g}" if cell.cap_mib else ""]
    words.append("sharded" if cell.shard_buckets else "")
    words += ["reduce-scatter" if cell.hook == "reduce_scatter" else "", f"{counted(cell.world, 'rank')}"]
    name = " · ".join(word for word in words if word)
    wrong = next((row for row in (interleaved, sequential) if row["status"] != OK), None)
    if wrong is not None:
        trouble = f"{Cell(**wrong['axes']).hook}: {wrong['status']}"
        return Difference(name, cell.subject, {}, NOTHING, trouble, (sequential, interleaved))
    ahead, behind = by_round(interleaved), by_round(sequential)
    both = {number: (ahead[number] - behind[number]) / 1e6 for number in ahead.keys() & behind.keys()}
    whole = of_difference(ahead, behind).scaled(1e-6)
    return Difference(name, cell.subject, both, whole, "", (sequential, interleaved))


def _clear(shown: list[Difference]) -> list[bool]:
    """Which are not 0, told together."""
    known = [place for place, one in enumerate(shown) if one.whole.known]
    samples = [shown[place].whole.sample for place in known]
    stands = significant([2 * min(less_p(one, 0.0), more_p(one, 0.0)) for one in samples])
    return [dict(zip(known, stands, strict=True)).get(place, False) for place in range(len(shown))]


def _drawn(axis: Any, place: int, one: Difference, subjects: list[str], clear: bool) -> None:
    if one.trouble:
        axis.plot([0], [place], marker="x", color=style.WRONG, zorder=5)
        axis.annotate(one.trouble, (0, place), (8, 0), textcoords="offset points", va="center", fontsize=7.5,
                      color=style.WRONG)  # fmt: skip
        return
    look = style.subject_look(one.subject, subjects)
    spread = [place + 0.22 * ((number * 7) % 5 - 2) / 2 for number in one.rounds]  # apart, but the same on every run
    axis.scatter(list(one.rounds.values()), spread, s=9, color=look["color"], alpha=0.35, linewidths=0)
    if one.whole.known:
        axis.plot([one.whole.low, one.whole.high], [place, place], color=look["color"], linewidth=2.4)
    axis.plot([one.whole.point], [place], markersize=7.5, markerfacecolor=look["color"] if clear else "white",
              linestyle="", zorder=4, **look)  # fmt: skip
