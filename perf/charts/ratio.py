"""The time of every cell over that of the other subject's same cell, with its interval and the noise of the machine."""

from __future__ import annotations

import statistics
from typing import Any

from ..analyse.board import Board, Measured, label
from ..analyse.noise import DIFFERENT, of_group, verdicts
from ..analyse.ratio import Ratio, ratio
from ..measure.rows import OK, Row, sibling
from ..plan.cells import Cell
from ..wording import counted, more
from . import style
from .undrawable import Undrawable

_MOST_LINES = 30
_FINE = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2)
_COARSE = (0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 1, 1.5, 2, 3, 5, 10, 20)


def draw(made: Board) -> Any:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    pairs = _pairs(made)
    if not pairs:
        raise Undrawable("no two subjects were measured side by side in the record (SUBJECT=impl,torch)")
    shown = pairs[:_MOST_LINES]
    first, last = shown[0][1]["subject"], shown[0][2]["subject"]
    caption = made.caption(
        f"Median of the rounds' ratios, time of {first} over {last}, measured interleaved in the same processes, with "
        "its 95 % interval by order statistics (none: too few rounds; circle: below 1, square: not; filled: surely not "
        "1, corrected for the number of lines by Benjamini and Hochberg). Grey: how far from 1 the same "
        f"cell comes out against itself here. {counted(_usual_world(shown), 'rank')} where nothing else is said."
        + more(len(pairs) - len(shown), "pair"),
        [row for _, *both in shown for row in both],
    )  # fmt: skip
    figure, (axis,) = style.sheet(f"Is {first} faster than {last}?", caption, 1, height_in=0.6 + 0.235 * len(shown))
    found = [_ratio(*pair) for pair in shown]
    clear = _clear(shown, found)
    for place, pair in enumerate(shown):
        _drawn(axis, place, *pair, found[place], clear[place])
    axis.axvline(1, color=style.INK, linewidth=1)
    axis.set_yticks(range(len(shown)), [_name(pair, shown) for pair in shown])
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    low, high = _ends([one for one in found if one is not None])
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    ticks = _FINE if high < 2 else _COARSE
    axis.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(f"time of {first} / time of {last}      (left of 1: {first} is faster)")
    return figure


Pair = tuple[Measured, Row, Row]


def _pairs(made: Board) -> list[Pair]:
    """Every cell of the first subject beside the last subject's: plain steps first, then by workload."""
    if len(made.subjects) < 2:
        return []
    first, last = made.subjects[0], made.subjects[-1]
    found: list[Pair] = []
    for group in made.groups:
        for row in group.find(subject=first):
            duplicate = sibling(row, group.rows, subject=last)
            if duplicate is not None:
                found.append((group, row, duplicate))
    order = list(dict.fromkeys(pair[1]["axes"]["workload"] for pair in found))
    return sorted(found, key=lambda pair: (not _plain(pair[1]), order.index(pair[1]["axes"]["workload"])))


def _plain(row: Row) -> bool:
    """Whether it is a step of DDP as it comes: those stand first, one for each workload."""
    cell = Cell(**row["axes"])
    return (label(cell), cell.optimizer, cell.unit) == ("DDP", "sgd", "step")


def _ratio(_: Measured, row: Row, duplicate: Row) -> Ratio | None:
    return ratio(row, duplicate) if row["status"] == duplicate["status"] == OK else None


def _clear(shown: list[Pair], found: list[Ratio | None]) -> list[bool]:
    """Which differ, told together."""
    beside = [(one, of_group(group.rows)) for one, (group, *_) in zip(found, shown, strict=True) if one]
    said = iter(verdicts(beside))
    return [one is not None and next(said) in DIFFERENT for one in found]


def _drawn(axis: Any, place: int, group: Measured, row: Row, duplicate: Row, found: Ratio | None, clear: bool) -> None:
    noise = group.noise
    if noise is not None:
        axis.fill_betweenx([place - 0.5, place + 0.5], 1 / (1 + noise), 1 + noise, color=style.BAND, linewidth=0)
    if found is None:
        wrong = next(each for each in (row, duplicate) if each["status"] != OK)
        axis.plot([1], [place], marker="x", color=style.WRONG, zorder=5)
        axis.annotate(f"{wrong['subject']}: {wrong['status']}", (1, place), (8, 0), textcoords="offset points",
                      va="center", fontsize=7.5, color=style.WRONG)  # fmt: skip
        return
    colour = style.INK if not clear else style.BLUE if found.point < 1 else style.VERMILION
    if found.known:
        axis.plot([found.low, found.high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
    look = {"marker": "o" if found.point < 1 else "s", "markerfacecolor": colour if clear else "white"}
    axis.plot([found.point], [place], color=colour, zorder=4, **look)


def _ends(found: list[Ratio]) -> tuple[float, float]:
    """The same distance on both sides of 1, as far as the intervals reach."""
    values = [value for one in found for value in (one.point, one.low, one.high) if value > 0]
    far = max([1.15, *(max(value, 1 / value) for value in values)]) * 1.06
    return 1 / far, far


def _usual_world(shown: list[Pair]) -> int:
    return statistics.mode(int(row["axes"]["world"]) for _, row, _ in shown)


def _name(pair: Pair, shown: list[Pair]) -> str:
    """What tells this line from the others."""
    cell = Cell(**pair[1]["axes"])
    words = [cell.workload, label(cell).replace("DDP", ""), cell.optimizer.replace("sgd", "")]
    if cell.unit == "epoch":
        words.append(f"{cell.skew.replace('_', ' ')} {cell.skew_fraction:g}")
    if cell.world != _usual_world(shown):
        words.append(counted(cell.world, "rank"))
    return " · ".join(word for word in words if word)
