"""Steps over a network against their floor: the longer of compute and bytes, and the sum of both."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.derived import allowed_ns
from ..analyse.intervals import of_row
from ..analyse.network import STEPS, cap, of_floor, setting, step_of, steps
from ..analyse.ratio import median_ns
from ..measure.rows import OK, Row
from ..wording import more
from . import style
from .undrawable import Undrawable

TITLE = "How near is a step to what compute and bytes allow?"
_MOST_PANELS = 6


def draw(made: Board) -> Any:
    found = sorted(filter(_rows, steps(made)), key=lambda group: -len(_rows(group)))
    groups = found[:_MOST_PANELS]
    groups.sort(key=lambda group: (group.axes["network"], group.axes["size"], group.axes["world"]))
    if not groups:
        raise Undrawable("no paced step on several hosts or ranks is in the record (sweep network has)")
    rows = [row for group in groups for row in _rows(group)]
    said = [sentence for subject in made.subjects[:1] for sentence in of_floor(groups, subject)]
    caption = made.caption(
        "Median time of a step (slowest host) with 95 % interval. Black: the floor, the longer of the profile's "
        "compute and the bytes that must be moved at the measured rate; grey: their sum, as if nothing overlapped."
        + more(len(found) - len(groups), "panel"), rows,
    )  # fmt: skip
    most = max(len(_rows(group)) for group in groups)
    figure, axes = style.sheet(
        TITLE, "\n".join([caption, *said]), len(groups), height_in=0.75 + 0.19 * most, columns=2, legend_lines=1
    )
    for axis, group in zip(axes, groups, strict=True):
        _panel(axis, group, made.subjects)
        title = f"{setting(group.axes)}, {cap(_rows(group)[0])}"
        axis.set_title(title, loc="right", fontsize=8.5)  # it may begin above the names
    style.legend(figure, axes)
    return figure


def _rows(group: Measured) -> list[Row]:
    """One row for each step and subject, of the bucket cap that has most of them, in the order of ``STEPS``."""
    found = [row for row in group.find() if step_of(row)]
    caps = [row["axes"]["cap_mib"] for row in found]
    usual = max(set(caps), key=caps.count, default=0.0)
    order = list(STEPS.values())
    return sorted((row for row in found if row["axes"]["cap_mib"] == usual), key=lambda row: order.index(step_of(row)))


def _panel(axis: Any, group: Measured, subjects: list[str]) -> None:
    rows = _rows(group)
    for place, row in enumerate(rows):
        if row["status"] != OK:
            axis.annotate(row["status"], (0, place), (3, 0), textcoords="offset points", va="center", fontsize=7,
                          color=style.WRONG)  # fmt: skip
            continue
        look, time = style.subject_look(row["subject"], subjects), of_row(row).scaled(1e-6)
        if time.known:
            axis.plot([time.low, time.high], [place, place], color=look["color"], linewidth=2.2)
        axis.plot([time.point], [place], linestyle="", label=row["subject"], zorder=4, **look)
        _allowed(axis, row, place)
    axis.set_yticks(range(len(rows)), [step_of(row) for row in rows], fontsize=7.5)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    sound = [median_ns(row) / 1e6 for row in rows if row["status"] == OK]
    beyond = [both / 1e6 for row in rows if row["status"] == OK and (both := (allowed_ns(row) or (0, 0))[1])]
    axis.set_xlim(0, 1.12 * max([*sound, *beyond, 1e-3]))
    axis.set_xlabel("time of a step, ms")


def _allowed(axis: Any, row: Row, place: int) -> None:
    both = allowed_ns(row)
    if both is not None:
        for value, colour, name in zip(both, (style.INK, style.GREY), ("floor", "without overlap"), strict=True):
            look = {"marker": "|", "markersize": 10, "markeredgewidth": 1.8, "linestyle": "", "label": name}
            axis.plot([value / 1e6], [place], color=colour, zorder=2, **look)
