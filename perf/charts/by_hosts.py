"""A figure of steps over a network, by hook, against the number of hosts; a panel for each setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..analyse.board import Board, Measured
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


@dataclass(frozen=True)
class Question:
    """What such a figure asks of each step."""

    title: str
    caption: str
    label: str  # of the vertical axis
    value: Callable[[Measured, Row], Any]  # of a sound row; None where it has none
    said: Callable[[str, Measured, list[str]], list[str]]  # sentences about a group, by setting and subjects


def look_of(step: str, ours: bool) -> dict[str, Any]:
    """Colour and marker of a step, hollow and dashed for the second subject."""
    colour, marker = _LOOKS[step]
    more = {} if ours else {"linestyle": "--", "markerfacecolor": "white"}
    return {"color": colour, "marker": marker, **more}


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
    figure, axes = style.sheet(question.title, caption, len(panels), height_in=2.9, columns=2, legend_lines=4)
    for axis, (name, groups) in zip(axes, panels, strict=True):
        _panel(axis, groups, made.subjects, question.value)
        axis.set_title(name)
    axes[0].set_ylabel(question.label)
    style.legend(figure, axes, columns=3)
    return figure, axes


def _panel(axis: Any, groups: list[Measured], subjects: list[str], value: Callable[[Measured, Row], Any]) -> None:
    points: dict[tuple[str, str], list[tuple[int, Measured, Row]]] = {}
    for place, group in enumerate(groups):
        for row in group.find():
            if step_of(row):
                points.setdefault((row["subject"], step_of(row)), []).append((place, group, row))
    for number, ((subject, step), found) in enumerate(sorted(points.items(), key=lambda item: item[0])):
        aside = 0.025 * (number - (len(points) - 1) / 2)
        values = [(place + aside, value(group, row)) for place, group, row in found if row["status"] == OK]
        sound = [(place, one) for place, one in values if one is not None]
        if sound:
            look = {**look_of(step, subject == subjects[0]), "label": f"{subject}, {step}"}
            style.line(axis, *zip(*sound, strict=True), **look)
        for place, _, row in found:
            if row["status"] != OK:
                style.void(axis, place + aside, row["status"])
    worlds = [group.axes["world"] for group in groups]
    axis.set_xticks(range(len(worlds)), [str(world) for world in worlds])
    axis.set_xlim(-0.4, len(worlds) - 0.6)
    axis.set_xlabel("hosts")
