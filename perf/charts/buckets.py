"""Time of a step against the bucket cap, with the floor without communication."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.intervals import of_row
from ..analyse.network import setting
from ..measure.rows import OK, Row
from ..plan.cells import Cell
from ..wording import more
from . import style
from .undrawable import Undrawable

TITLE = "Which bucket cap is best?"
_MOST_PANELS = 6


def draw(made: Board) -> Any:
    found = [group for group in _whole(made) if len(_caps(group)) > 2]
    panels = found[:_MOST_PANELS]
    if not panels:
        raise Undrawable("no group has three bucket caps or more (sweeps default and buckets have)")
    rows = [row for group in panels for row in group.rows]
    caption = made.caption(
        "Median time of a step (slowest rank) with 95 % interval. default: no cap given, 25 MiB and 1 MiB for the "
        "first bucket. Dotted: the same step without any communication." + more(len(found) - len(panels), "panel"),
        rows,
    )  # fmt: skip
    figure, axes = style.sheet(TITLE, caption, len(panels), height_in=3.0 if len(panels) < 4 else 2.5, legend_lines=2)
    for axis, group in zip(axes, panels, strict=True):
        _panel(axis, group, made.subjects)
        axis.set_title(setting(group.axes))
    axes[0].set_ylabel("time of a step, ms")
    style.legend(figure, axes, columns=3)
    return figure


def _whole(made: Board) -> list[Measured]:
    """What was cut into groups of bearable size, together again."""
    found: dict[str, list[Row]] = {}
    for group in made.groups:
        found.setdefault(Cell(**group.axes).shared, []).extend(group.rows)
    return [Measured(rows) for rows in found.values()]


def _caps(group: Measured) -> list[float]:
    """The caps in ascending order, "not given" last; of plain DDP with a local optimizer."""
    rows = [row for row in group.rows if _plain(row)]
    return sorted({row["axes"]["cap_mib"] for row in rows}, key=lambda cap: cap or float("inf"))


def _plain(row: Row) -> bool:
    axes = row["axes"]
    return (axes["hook"], axes["strategy"], axes["zero"], axes["settings"]) == ("none", "plain", "off", "default")


def _panel(axis: Any, group: Measured, subjects: list[str]) -> None:
    caps = _caps(group)
    for subject in subjects:
        for view in (False, True):
            rows = [row for row in group.find(subject=subject, bucket_view=view) if _plain(row)]
            look = style.subject_look(subject, subjects)
            look |= {"linestyle": "--" if view else "-", "label": f"{subject}, bucket view" if view else subject}
            if view:
                look["markerfacecolor"] = "white"
            _line(axis, caps, rows, look)
    floor = group.one(hook="local")
    if floor is not None and floor["status"] == OK:
        axis.axhline(of_row(floor).point / 1e6, color=style.INK, linestyle=":", label="without communication")
    axis.set_xticks(range(len(caps)), [f"{cap:g}" if cap else "default" for cap in caps])
    axis.set_xlim(-0.3, len(caps) - 0.7)
    axis.set_xlabel("bucket cap, MiB")
    style.from_zero(axis)


def _line(axis: Any, caps: list[float], rows: list[Row], look: dict[str, Any]) -> None:
    sound = sorted((row for row in rows if row["status"] == OK), key=lambda row: caps.index(row["axes"]["cap_mib"]))
    if sound:
        places = [caps.index(row["axes"]["cap_mib"]) for row in sound]
        style.line(axis, places, [of_row(row).scaled(1e-6) for row in sound], **look)
    for row in rows:
        if row["status"] != OK:
            style.void(axis, caps.index(row["axes"]["cap_mib"]), f"{row['subject']}: {row['status']}")
