"""Communication that is exposed, by hook, against the number of hosts."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.derived import exposed
from ..analyse.intervals import of_difference
from ..analyse.network import ms, step_of, steps
from ..analyse.ratio import by_round
from ..measure.rows import OK, Row
from . import style
from .by_hosts import Question, by_setting, drawn
from .undrawable import Undrawable


def draw(made: Board) -> Any:
    with_floor = [group for group in steps(made) if any(row["status"] == OK for row in group.find(hook="local"))]
    panels = by_setting(with_floor)
    if not panels:
        raise Undrawable("no paced step stands beside one without communication in the record (sweep network has)")
    figure, axes = drawn(made, panels, QUESTION)
    for axis in axes:
        style.from_zero(axis)
    return figure


def _exposed_ms(group: Measured, row: Row) -> Any:
    found = exposed(row, group.rows)
    return None if found is None else found.scaled(1e-6)


def _said(name: str, group: Measured, subjects: list[str]) -> list[str]:
    """Which of the first subject's steps leaves least exposed, and how much less than the next."""
    rows = [row for row in group.find(subject=subjects[0]) if step_of(row) and row["status"] == OK]
    found = [(one, row) for row in rows if (one := exposed(row, group.rows)) is not None]
    if not found:
        return []
    (least, row), *others = sorted(found, key=lambda pair: pair[0].point)
    sentence = f"{name}, {group.axes['world']} hosts: least is left exposed by {step_of(row)}, {ms(least)}"
    for _, beside in others[:1]:
        sentence += f", {ms(of_difference(by_round(beside), by_round(row)))} less than by {step_of(beside)}"
    return [f"{sentence}."]


QUESTION = Question(
    "How much communication does each step leave exposed?",
    "By how much a step is longer than the same step without communication, in the same rounds: median with 95 % "
    "interval. Solid: the first subject; dashed and hollow: the second.",
    "exposed, ms a step", _exposed_ms, _said,
)  # fmt: skip
