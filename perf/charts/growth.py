"""Every cost against what it grows with, each with the law that fits it and the law that it should follow."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board
from ..analyse.growth.costs import RANKS, Series, of_board
from ..analyse.growth.laws import LINEAR, LOG, NONE, POWER, Fit
from ..analyse.intervals import Interval
from . import style
from .undrawable import Undrawable

TITLE = "How does each cost grow?"
_NORMAL = 1.96
_SHAPES = {NONE: "constant", LOG: "a + b log x", LINEAR: "a + b x", POWER: "a + b x^k"}


def draw(made: Board) -> Any:
    found = of_board(made)
    if all(one.fit is None for one in found):
        raise Undrawable("no cost was measured at enough sizes to have a law (sweep growth does)")
    # with a law or without: void cells are to be seen
    panels = list(dict.fromkeys((one.cost, one.against) for one in found))
    figure, axes = style.sheet(TITLE, made.caption(_said(made, found)), len(panels), height_in=2.05, legend_lines=1)
    for axis, (cost, against) in zip(axes, panels, strict=True):
        mine = [one for one in found if (one.cost, one.against) == (cost, against)]
        _panel(axis, mine, made.subjects)
        axis.set_title(cost)
        axis.set_xlabel(f"{against}      (should be {_SHAPES[mine[0].expected]})", fontsize=7.5)
        axis.set_ylabel("ms")
    style.legend(figure, axes)
    return figure


def _said(made: Board, found: list[Series]) -> str:
    cores = made.headers[-1]["machine"]["cores"]
    most = max((point.x for one in found if one.against == RANKS for point in one.points), default=0)
    crowd = f"Beyond {cores} ranks they take turns on {cores} cores: linear growth there is the machine's. "
    return (
        "Medians with 95 % intervals; lines: the fitted law, chosen by the corrected Akaike score. 400 tiny parameters "
        f"and 2 ranks where that does not vary; 100 against ranks. {crowd if most > cores else ''}"
        "Red: the cost grows faster than it should."
    )


def _panel(axis: Any, mine: list[Series], subjects: list[str]) -> None:
    import numpy as np

    labels = []
    for one in mine:
        look = _look(one.subject, subjects)
        points = [_interval(point.y, point.error) for point in one.points]
        xs = [point.x for point in one.points]
        style.line(axis, xs, points, linestyle="", label=one.subject, **look)
        for x, status in one.lost:
            style.void(axis, x, f"{one.subject}: {status}")
        fit = one.fit
        if fit is None or one.verdict.startswith("cannot tell"):
            few = "sizes" if fit is None else "rounds"
            labels.append((f"no law: too few {few}", look["color"]))
            continue
        line = np.linspace(xs[0], xs[-1], 100)
        axis.plot(line, fit(line), color=look["color"], linewidth=1.2, linestyle=":" if one.subject == "suite" else "-")
        labels.append((_short(fit), look["color"]))
        if one.verdict.startswith("grows faster"):
            labels.append(("grows too fast", style.WRONG))
    style.from_zero(axis, room=1.12 + 0.13 * len(labels))
    low, _ = axis.get_ylim()
    axis.set_ylim(min(low, 0.0))
    for place, (words, colour) in enumerate(labels):
        axis.text(0.03, 0.97 - 0.1 * place, words, transform=axis.transAxes, fontsize=7, va="top", color=colour)


def _look(subject: str, subjects: list[str]) -> dict[str, Any]:
    return {"color": style.INK, "marker": "D"} if subject == "suite" else style.subject_look(subject, subjects)


def _interval(y: float, error: float) -> Interval:
    return Interval(y, y - _NORMAL * error, y + _NORMAL * error, 1)


def _short(fit: Fit) -> str:
    numbers = [f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}" for value in fit.values]
    patterns = {NONE: "{}", LOG: "{} + {} log x", LINEAR: "{} + {} x", POWER: "{} + {} x^{}"}
    return patterns[fit.kind].format(*numbers).replace("+ -", "− ")
