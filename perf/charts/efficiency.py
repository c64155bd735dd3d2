"""Efficiency against hosts: the share of a step over a network that is its own compute."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.network import step_of, steps
from ..analyse.ratio import by_round, paired
from ..measure.rows import OK, Row
from . import style
from .by_hosts import Question, by_setting, drawn
from .undrawable import Undrawable


def draw(made: Board) -> Any:
    known = [group for group in steps(made) if _floor(group) is not None]
    panels = [(name, groups) for name, groups in by_setting(known) if len(groups) > 1]
    if not panels:
        raise Undrawable("no paced step was measured on several numbers of hosts (sweep network does)")
    figure, axes = drawn(made, panels, QUESTION)
    for axis in axes:
        axis.axhline(1, color=style.GREY, linewidth=0.8)
        axis.set_ylim(0, 1.1)
    return figure


def _floor(group: Measured) -> Row | None:
    return next((row for row in group.find(hook="local") if row["status"] == OK), None)


def _share(group: Measured, row: Row) -> Any:
    floor = _floor(group)
    assert floor is not None
    return paired(by_round(floor), by_round(row))


def _said(name: str, group: Measured, subjects: list[str]) -> list[str]:
    rows = [row for row in group.find(subject=subjects[0], hook="none", zero="off") if step_of(row)]
    sound = [row for row in rows if row["status"] == OK][:1]
    return [f"{name}, {group.axes['world']} hosts: {_share(group, row)} of {subjects[0]}'s DDP step is compute."
            for row in sound]  # fmt: skip


QUESTION = Question(
    "How much of a step is compute, as hosts are added?",
    "The time of a step without communication over that of the step, in the same rounds: median with 95 % interval. 1 "
    "is perfect. Every host has the same batch whatever their number.",
    "compute / step", _share, _said,
)  # fmt: skip
