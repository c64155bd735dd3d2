"""A figure of steps over a network against the number of hosts: a panel for each setting, a line for each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.intervals import Interval
from ..analyse.network import STEPS, setting, step_of
from ..measure.rows import OK, Row
from ..wording import more
from . import style

Panels = list[tuple[str, list[Measured]]]

_LOOKS = dict(zip(STEPS.values(), (
    (style.INK, "o"), (style.GREY, "s"), (style.SKY, "D"), (style.ORANGE, "^"), (style.BLUE, "v"), (style.PURPLE, "P"),
    (style.GREEN, "X"),
), strict=True))  # fmt: skip
_MOST_PANELS = 4


def look_of(step: str, ours: bool) -> dict[str, Any]:
    """Colour and marker of a step, hollow and dashed for the second subject."""
    colour, marker = _LOOKS[step]
    more = {} if ours else {"linestyle": "--", "markerfacecolor": "white"}
    return {"color": colour, "marker": marker, **more}


def of_step(row: Row, subjects: list[str]) -> dict[str, Any] | None:
    """A line for each step of each subject."""
    subject, step = row["subject"], step_of(row)
    return {**look_of(step, subject == subjects[0]), "label": f"{subject}, {step}"} if step else None


@dataclass(frozen=True)
class Question:
    """What such a figure asks of each step."""

    title: str
    caption: str
    label: str  # of the vertical axis
    value: Callable[[Measured, Row], Interval | None]  # of a sound row
    said: Callable[[str, Measured, list[str]], list[str]]  # sentences about a group, by setting and subjects
    line: Callable[[Row, list[str]], dict[str, Any] | None] = of_step  # which one a row is on: its look and label
    lacking: str = ""  # marks a sound row without a value; else it is left out
    legend_lines: int = 4


def by_setting(groups: list[Measured]) -> Panels:
    """Groups that differ in nothing but hosts, those with most of them first."""
    found: dict[str, list[Measured]] = {}
    for group in groups:
        found.setdefault(setting(group.axes, hosts=False), []).append(group)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def drawn(made: Board, panels: Panels, question: Question) -> tuple[Any, list[Any]]:
    """The figure and its axes."""
    left = more(max(0, len(panels) - _MOST_PANELS), "panel")
    panels = panels[:_MOST_PANELS]
    rows = [row for _, groups in panels for group in groups for row in group.rows]
    said = [each for name, groups in panels for group in groups for each in question.said(name, group, made.subjects)]
    caption = "\n".join([made.caption(question.caption + left, rows), *said])
    lines = question.legend_lines
    figure, axes = style.sheet(question.title, caption, len(panels), height_in=2.9, columns=2, legend_lines=lines)
    for axis, (name, groups) in zip(axes, panels, strict=True):
        _panel(axis, groups, made.subjects, question)
        axis.set_title(name)
    axes[0].set_ylabel(question.label)
    style.legend(figure, axes, columns=3)
    return figure, axes


def _panel(axis: Any, groups: list[Measured], subjects: list[str], question: Question) -> None:
    looks: dict[str, dict[str, Any]] = {}
    points: dict[str, list[tuple[int, Interval | None, str]]] = {}  # by label: place, value, or what stands for it
    for place, group in enumerate(groups):
        for row in group.find():
            if look := question.line(row, subjects):
                looks[look["label"]], sound = look, row["status"] == OK
                value = question.value(group, row) if sound else None
                word = question.lacking if sound else row["status"]
                points.setdefault(look["label"], []).append((place, value, word))
    for number, (label, found) in enumerate(sorted(points.items())):
        aside = 0.025 * (number - (len(points) - 1) / 2)
        drawn = [(place + aside, value) for place, value, _ in found if value is not None]
        if drawn:
            style.line(axis, *zip(*drawn, strict=True), **looks[label])
        for place, value, word in found:
            if value is None and word:
                style.void(axis, place + aside, word)
    worlds = [group.axes["world"] for group in groups]
    axis.set_xticks(range(len(worlds)), [str(world) for world in worlds])
    axis.set_xlim(-0.4, len(worlds) - 0.6)
    axis.set_xlabel("hosts")
