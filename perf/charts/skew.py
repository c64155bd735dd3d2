"""Time of an uneven run against skew, for Join, a flag before every step and drop_last, with the analytic bound."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.derived import bound, floor_of
from ..analyse.intervals import of_median, of_row
from ..analyse.network import setting
from ..measure.rows import OK, Row
from ..wording import more
from . import style
from .undrawable import Undrawable

TITLE = "What do uneven inputs cost?"
STRATEGIES = {
    "join": ("Join", "-", "o"), "flag": ("flag before every step", "--", "s"), "drop_last": ("drop_last", "-.", "^"),
}  # fmt: skip
_MOST_PANELS = 6
_PROFILES = {"one_short": "one rank short", "linear": "linear", "halves": "half of the ranks short"}


def draw(made: Board) -> Any:
    panels: dict[tuple[str, str, str], list[Measured]] = {}
    for group in made.groups:
        axes = group.axes
        if axes["unit"] == "epoch" and axes["skew"] in _PROFILES and any(row["status"] == OK for row in group.rows):
            key = (setting(axes), axes["skew"], axes["optimizer"])
            panels.setdefault(key, []).append(group)
    if not any(len({group.axes["skew_fraction"] for group in groups}) > 1 for groups in panels.values()):
        raise Undrawable("no uneven runs at several skew fractions are in the record (sweeps default and skew have)")
    shown = dict(list(panels.items())[:_MOST_PANELS])
    rows = [row for groups in shown.values() for group in groups for row in group.rows]
    caption = made.caption(
        "Time of a whole run until the last rank is done, slowest rank, median and 95 % interval. Join trains all "
        "inputs; flag and drop_last leave out what the shortest rank lacks, which is why they end sooner. Bound: the "
        "sum over iterations of the slowest active rank's own time, measured beside without communication."
        + more(len(panels) - len(shown), "panel"), rows,
    )  # fmt: skip
    height_in = 3.0 if len(shown) < 4 else 2.5
    figure, panes = style.sheet(TITLE, caption, len(shown), height_in=height_in, columns=2, legend_lines=3)
    for axis, (key, groups) in zip(panes, shown.items(), strict=True):
        _panel(axis, groups, made.subjects)
        axis.set_title(f"{key[0]}, {_PROFILES[key[1]]}" + (f", {key[2]}" if key[2] != "sgd" else ""))
    panes[0].set_ylabel("time of a run, ms")
    style.legend(figure, panes, columns=len(made.subjects) + 1)
    return figure


def _panel(axis: Any, groups: list[Measured], subjects: list[str]) -> None:
    groups = sorted(groups, key=lambda group: group.axes["skew_fraction"])
    every = [(subject, strategy) for subject in subjects for strategy in STRATEGIES]
    for place, (subject, strategy) in enumerate(every):
        name, dashes, marker = STRATEGIES[strategy]
        aside = 0.012 * (place - (len(every) - 1) / 2)  # so that intervals do not cover each other
        rows = [group.one(subject=subject, strategy=strategy) for group in groups]
        found = [(group.axes["skew_fraction"] + aside, row) for group, row in zip(groups, rows, strict=True)]
        _line(axis, found, f"{subject}, {name}", dashes, {**style.subject_look(subject, subjects), "marker": marker})
    _bound(axis, groups)
    axis.set_xlabel("skew (share that the shortest rank lacks)")
    axis.set_xticks(sorted({group.axes["skew_fraction"] for group in groups}))
    style.from_zero(axis)


def _line(axis: Any, found: list[tuple[float, Row | None]], name: str, dashes: str, look: dict[str, Any]) -> None:
    sound = [(place, of_row(row).scaled(1e-6)) for place, row in found if row is not None and row["status"] == OK]
    if sound:
        places, times = zip(*sound, strict=True)
        style.line(axis, places, times, label=name, linestyle=dashes, **look)
    for place, row in found:
        if row is not None and row["status"] != OK:
            style.void(axis, place, f"{name}: {row['status']}")


def _bound(axis: Any, groups: list[Measured]) -> None:
    """For Join, which trains everything; and, in grey, for those that leave inputs out."""
    both = (("join", style.INK, "bound for Join"), ("flag", style.GREY, "bound for the others"))
    for strategy, colour, name in both:
        points = []
        for group in groups:
            row = next((row for row in group.find(strategy=strategy) if row["status"] == OK), None)
            floor = floor_of(row, group.rows) if row is not None else None
            if row is not None and floor is not None:
                points.append((group.axes["skew_fraction"], of_median(bound(row, floor)).point / 1e6))
        if points:
            axis.plot(*zip(*points, strict=True), color=colour, linestyle=":", linewidth=1.8, label=name, zorder=1)
