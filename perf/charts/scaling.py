"""Efficiency against world size: the time of a step on one rank over that on many, and the machine's own share."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board
from ..analyse.intervals import Interval, apart
from ..analyse.network import setting
from ..analyse.ratio import by_round
from ..measure.rows import OK, Row
from ..plan.axes import variant_defaults
from . import style
from .undrawable import Undrawable

TITLE = "How well does a step keep its time when ranks are added?"
_PLAIN = {"optimizer": "sgd", "unit": "step", "skew": "even"}
_SETTING = variant_defaults()

Worlds = dict[int, dict[str, Row]]  # rows by world and by subject ("none": the floor)


def draw(made: Board) -> Any:
    panels = {name: worlds for name, worlds in _worlds(made).items() if len(worlds) > 1 and _sound(worlds.get(1, {}))}
    if not panels:
        raise Undrawable("no workload was measured on one rank and on several (sweeps default and scaling do)")
    rows = [row for worlds in panels.values() for by_subject in worlds.values() for row in by_subject.values()]
    caption = made.caption(
        "Every rank has the same batch at every world size, so 1 is perfect. Median time of a step on one rank over "
        "that on so many, with 95 % interval. Dotted: the same step without any communication, which loses time "
        "only because ranks share the machine.", rows,
    )  # fmt: skip
    height_in = 2.9 if len(panels) < 4 else 2.4
    figure, axes = style.sheet(TITLE, caption, len(panels), height_in=height_in, legend_lines=1, sharey=True)
    highest = 1.0
    for axis, (workload, worlds) in zip(axes, panels.items(), strict=True):
        highest = max(highest, _panel(axis, worlds, made.subjects))
        axis.set_title(workload)
    axes[0].set_ylim(0, 1.15 * highest)  # of the points: a wide interval may end outside, and leaves the lines legible
    axes[0].set_ylabel("efficiency: time on 1 rank / time")
    style.legend(figure, axes)
    return figure


def _worlds(made: Board) -> dict[str, Worlds]:
    """The plain steps of each workload of one size, over one network."""
    found: dict[str, Worlds] = {}
    for group in made.groups:
        axes = group.axes
        if any(axes[name] != value for name, value in _PLAIN.items()):
            continue
        rows = [*group.find(**_SETTING), *group.find(hook="local")]
        for row in rows:
            worlds = found.setdefault(setting(axes, hosts=False), {})
            worlds.setdefault(axes["world"], {}).setdefault(row["subject"], row)
    return found


def _sound(by_subject: dict[str, Row]) -> bool:
    return any(row["status"] == OK for row in by_subject.values())


def _panel(axis: Any, worlds: Worlds, subjects: list[str]) -> float:
    """Draw one workload; returns the highest point."""
    sizes, highest = sorted(worlds), 1.0
    for subject in [*subjects, "none"]:
        alone = worlds[1].get(subject)
        mine = [(size, worlds[size][subject]) for size in sizes if subject in worlds[size]]
        if alone is None or alone["status"] != OK:
            continue
        sound = [(sizes.index(size), _efficiency(alone, row)) for size, row in mine if row["status"] == OK]
        look = style.subject_look(subject, subjects)
        if subject == "none":
            look |= {"linestyle": ":", "label": "without communication"}
        else:
            look |= {"linestyle": "-" if subject == "impl" else "--", "label": subject}
        places, shares = zip(*sound, strict=True)
        style.line(axis, places, shares, **look)
        highest = max(highest, *(share.point for share in shares))
        for size, row in mine:
            if row["status"] != OK:
                style.void(axis, sizes.index(size), f"{subject}: {row['status']}")
    axis.axhline(1, color=style.GREY, linewidth=0.8)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axis.set_xlim(-0.3, len(sizes) - 0.7)
    axis.set_xlabel("ranks")
    return highest


def _efficiency(alone: Row, row: Row) -> Interval:
    if alone is row:
        return Interval(1.0, 1.0, 1.0, len(set(row["block"])))
    found = apart(list(by_round(alone).values()), list(by_round(row).values()))
    return Interval(found.point, found.low, found.high, found.rounds)
