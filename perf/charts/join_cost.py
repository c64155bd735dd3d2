"""What Join, throwing and a flag add to a step on even inputs, against the number of hosts."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.intervals import Interval, of_difference
from ..analyse.network import even_steps, ms
from ..analyse.ratio import by_round
from ..measure.rows import OK, Row, sibling
from . import style
from .by_hosts import Question, by_setting, drawn
from .undrawable import Undrawable

_STRATEGIES = {"join": ("Join", "-"), "throwing": ("Join that throws", ":"), "flag": ("flag before every step", "--")}


def draw(made: Board) -> Any:
    panels = by_setting([group for group in even_steps(made) if any(_plain(group, row) for row in group.find())])
    if not panels:
        raise Undrawable("no step within Join stands beside a plain one over a network (sweep network-delay has them)")
    figure, axes = drawn(made, panels, QUESTION)
    for axis in axes:
        axis.axhline(0, color=style.GREY, linewidth=0.8)
    return figure


def _plain(group: Measured, row: Row) -> Row | None:
    """The plain step of the same subject, of a row of a strategy."""
    return sibling(row, group.rows, strategy="plain") if row["axes"]["strategy"] in _STRATEGIES else None


def _added(group: Measured, row: Row) -> Interval | None:
    plain = _plain(group, row)
    return None if plain is None or plain["status"] != OK else of_difference(by_round(row), by_round(plain))


def _added_ms(group: Measured, row: Row) -> Interval | None:
    found = _added(group, row)
    return None if found is None else found.scaled(1e-6)


def _line(row: Row, subjects: list[str]) -> dict[str, Any] | None:
    if row["axes"]["strategy"] not in _STRATEGIES:
        return None
    name, dashes = _STRATEGIES[row["axes"]["strategy"]]
    return {**style.subject_look(row["subject"], subjects), "linestyle": dashes, "label": f"{row['subject']}, {name}"}


def _said(name: str, group: Measured, _subjects: list[str]) -> list[str]:
    sound = [row for row in group.find(strategy="join") if row["status"] == OK]
    found = [(row["subject"], added) for row in sound if (added := _added(group, row)) is not None]
    words = "; ".join(f"{subject} {ms(added)}" for subject, added in found)
    return [f"{name}, {group.axes['world']} hosts: Join adds to a step: {words}."] if words else []


QUESTION = Question(
    "What does Join add to a step over a network?",
    "By how much a step is longer than a plain one, in the same rounds, on even inputs: median with 95 % interval.",
    "added, ms a step", _added_ms, _said, _line, "no plain step", legend_lines=2,
)  # fmt: skip
