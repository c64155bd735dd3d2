"""Efficiency against hosts: the share of a step over a network that is its own compute."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.network import step_of, steps
from ..analyse.ratio import by_round, paired
from ..measure.rows import OK, Row
from . import style
from .exposed import by_setting, look_of
from .undrawable import Undrawable

TITLE = "How much of a step is compute, as hosts are added?"
_MOST_PANELS = 4


def draw(made: Board) -> Any:
    known = [group for group in steps(made) if _floor(group) is not None]
    panels = [(name, groups) for name, groups in by_setting(known) if len(groups) > 1][:_MOST_PANELS]
    if not panels:
        raise Undrawable("no paced step was measured on several numbers of hosts (sweep network does)")
    rows = [row for _, groups in panels for group in groups for row in group.rows]
    caption = made.caption(
        "The time of a step without communication over that of the step, in the same rounds: median with 95 % "
        "interval. 1 is perfect. Every host has the same batch whatever their number.", rows,
    )  # fmt: skip
    said = [sentence for name, groups in panels for group in groups for sentence in _said(name, group, made.subjects)]
    caption = "\n".join([caption, *said])
    figure, axes = style.sheet(TITLE, caption, len(panels), height_in=2.9, columns=2, legend_lines=4)
    for axis, (name, groups) in zip(axes, panels, strict=True):
        _panel(axis, groups, made.subjects)
        axis.set_title(name)
    axes[0].set_ylabel("compute / step")
    style.legend(figure, axes, columns=3)
    return figure


def _floor(group: Measured) -> Row | None:
    return next((row for row in group.find(hook="local") if row["status"] == OK), None)


def _panel(axis: Any, groups: list[Measured], subjects: list[str]) -> None:
    worlds = [group.axes["world"] for group in groups]
    kinds = sorted({(row["subject"], step_of(row)) for group in groups for row in group.find() if step_of(row)})
    for number, (subject, step) in enumerate(kinds):
        aside = 0.025 * (number - (len(kinds) - 1) / 2)
        points = [(place + aside, group, row) for place, group in enumerate(groups)
                  for row in group.find(subject=subject) if step_of(row) == step]  # fmt: skip
        sound = [(place, _share(group, row)) for place, group, row in points if row["status"] == OK]
        if sound:
            look = {**look_of(step, subject == subjects[0]), "label": f"{subject}, {step}"}
            style.line(axis, *zip(*sound, strict=True), **look)
        for place, _, row in points:
            if row["status"] != OK:
                style.void(axis, place, row["status"])
    axis.axhline(1, color=style.GREY, linewidth=0.8)
    axis.set_xticks(range(len(worlds)), [str(world) for world in worlds])
    axis.set_xlim(-0.4, len(worlds) - 0.6)
    axis.set_xlabel("hosts")
    axis.set_ylim(0, 1.1)


def _share(group: Measured, row: Row) -> Any:
    floor = _floor(group)
    assert floor is not None
    return paired(by_round(floor), by_round(row))


def _said(name: str, group: Measured, subjects: list[str]) -> list[str]:
    rows = [row for row in group.find(subject=subjects[0], hook="none", zero="off") if step_of(row)]
    sound = [row for row in rows if row["status"] == OK][:1]
    return [f"{name}, {group.axes['world']} hosts: {_share(group, row)} of {subjects[0]}'s DDP step is compute."
            for row in sound]  # fmt: skip
