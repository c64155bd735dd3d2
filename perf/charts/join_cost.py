"""What Join, throwing and a flag add to a step on even inputs, against the number of hosts."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.intervals import Interval, of_difference
from ..analyse.network import even_steps, ms
from ..analyse.ratio import by_round
from ..measure.rows import OK, Row, sibling
from ..wording import more
from . import style
from .by_hosts import by_setting
from .undrawable import Undrawable

TITLE = "What does Join add to a step over a network?"
_STRATEGIES = {"join": ("Join", "-"), "throwing": ("Join that throws", ":"), "flag": ("flag before every step", "--")}
_MOST_PANELS = 4


def draw(made: Board) -> Any:
    found = by_setting([group for group in even_steps(made) if _added(group)])
    panels = found[:_MOST_PANELS]
    if not panels:
        raise Undrawable("no step within Join stands beside a plain one over a network (sweep network-delay has them)")
    rows = [row for _, groups in panels for group in groups for row in group.rows]
    said = [sentence for name, groups in panels for group in groups for sentence in _said(name, group)]
    caption = made.caption(
        "By how much a step is longer than a plain one, in the same rounds, on even inputs: median with 95 % interval."
        + more(len(found) - len(panels), "panel"), rows,
    )
    caption = "\n".join([caption, *said])
    figure, axes = style.sheet(TITLE, caption, len(panels), height_in=2.9, columns=2, legend_lines=2)
    for axis, (name, groups) in zip(axes, panels, strict=True):
        _panel(axis, groups, made.subjects)
        axis.set_title(name)
    axes[0].set_ylabel("added, ms a step")
    style.legend(figure, axes, columns=3)
    return figure


def _added(group: Measured) -> list[tuple[Row, Interval | None]]:
    """Every row of a strategy, with what it adds to its subject's plain step."""
    found: list[tuple[Row, Interval | None]] = []
    for row in group.find():
        plain = sibling(row, group.rows, strategy="plain")
        if row["axes"]["strategy"] in _STRATEGIES and plain is not None:
            sound = row["status"] == plain["status"] == OK
            found.append((row, of_difference(by_round(row), by_round(plain)) if sound else None))
    return found


def _panel(axis: Any, groups: list[Measured], subjects: list[str]) -> None:
    worlds = [group.axes["world"] for group in groups]
    lines: dict[tuple[str, str], list[tuple[int, Row, Interval | None]]] = {}
    for place, group in enumerate(groups):
        for row, added in _added(group):
            lines.setdefault((row["subject"], row["axes"]["strategy"]), []).append((place, row, added))
    for number, ((subject, strategy), points) in enumerate(sorted(lines.items())):
        aside = 0.03 * (number - (len(lines) - 1) / 2)
        name, dashes = _STRATEGIES[strategy]
        look = {**style.subject_look(subject, subjects), "linestyle": dashes, "label": f"{subject}, {name}"}
        sound = [(place + aside, added.scaled(1e-6)) for place, _, added in points if added is not None]
        if sound:
            style.line(axis, *zip(*sound, strict=True), **look)
        for place, row, added in points:
            if added is None:
                style.void(axis, place + aside, row["status"] if row["status"] != OK else "no plain step")
    axis.axhline(0, color=style.GREY, linewidth=0.8)
    axis.set_xticks(range(len(worlds)), [str(world) for world in worlds])
    axis.set_xlim(-0.4, len(worlds) - 0.6)
    axis.set_xlabel("hosts")


def _said(name: str, group: Measured) -> list[str]:
    found = [(row["subject"], added) for row, added in _added(group) if row["axes"]["strategy"] == "join" and added]
    words = "; ".join(f"{subject} {ms(added)}" for subject, added in found)
    return [f"{name}, {group.axes['world']} hosts: Join adds to a step: {words}."] if words else []
