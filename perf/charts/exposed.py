"""Communication that is exposed, by hook, against the number of hosts."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.derived import exposed
from ..analyse.network import STEPS, ms, setting, step_of, steps
from ..measure.rows import OK, Row
from . import style
from .undrawable import Undrawable

TITLE = "How much communication does each step leave exposed?"
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


def by_setting(groups: list[Measured]) -> list[tuple[str, list[Measured]]]:
    """Groups that differ in nothing but hosts, those with most of them first."""
    found: dict[str, list[Measured]] = {}
    for group in groups:
        found.setdefault(setting(group.axes, hosts=False), []).append(group)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def draw(made: Board) -> Any:
    with_floor = [group for group in steps(made) if any(row["status"] == OK for row in group.find(hook="local"))]
    panels = by_setting(with_floor)[:_MOST_PANELS]
    if not panels:
        raise Undrawable("no paced step stands beside one without communication in the record (sweep network has)")
    rows = [row for _, groups in panels for group in groups for row in group.rows]
    said = [sentence for name, groups in panels for group in groups for sentence in _said(name, group, made.subjects)]
    caption = made.caption(
        "By how much a step is longer than the same step without communication, in the same rounds: median with 95 % "
        "interval. Solid: the first subject; dashed and hollow: the second.", rows,
    )  # fmt: skip
    caption = "\n".join([caption, *said])
    figure, axes = style.sheet(TITLE, caption, len(panels), height_in=2.9, columns=2, legend_lines=4)
    for axis, (name, groups) in zip(axes, panels, strict=True):
        _panel(axis, groups, made.subjects)
        axis.set_title(name)
    axes[0].set_ylabel("exposed, ms a step")
    style.legend(figure, axes, columns=3)
    return figure


def _panel(axis: Any, groups: list[Measured], subjects: list[str]) -> None:
    worlds = [group.axes["world"] for group in groups]
    drawn: dict[tuple[str, str], list[tuple[int, Measured, Row]]] = {}
    for place, group in enumerate(groups):
        for row in group.find():
            if step_of(row):
                drawn.setdefault((row["subject"], step_of(row)), []).append((place, group, row))
    for number, ((subject, step), points) in enumerate(sorted(drawn.items(), key=lambda item: item[0])):
        aside = 0.025 * (number - (len(drawn) - 1) / 2)
        look = {**look_of(step, subject == subjects[0]), "label": f"{subject}, {step}"}
        found = [(place + aside, exposed(row, group.rows)) for place, group, row in points if row["status"] == OK]
        sound = [(place, one.scaled(1e-6)) for place, one in found if one is not None]
        if sound:
            style.line(axis, *zip(*sound, strict=True), **look)
        for place, _, row in points:
            if row["status"] != OK:
                style.void(axis, place + aside, row["status"])
    axis.set_xticks(range(len(worlds)), [str(world) for world in worlds])
    axis.set_xlim(-0.4, len(worlds) - 0.6)
    axis.set_xlabel("hosts")
    style.from_zero(axis)


def _said(name: str, group: Measured, subjects: list[str]) -> list[str]:
    """Which of the first subject's steps leaves least exposed."""
    rows = [row for row in group.find(subject=subjects[0]) if step_of(row) and row["status"] == OK]
    found = [(one, row) for row in rows if (one := exposed(row, group.rows)) is not None]
    if not found:
        return []
    least, row = min(found, key=lambda pair: pair[0].point)
    return [f"{name}, {group.axes['world']} hosts: least is left exposed by {step_of(row)}, {ms(least)}."]
