"""Memory of a rank against world size: the optimizer's state, and what a step needs at its peak on top."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board
from ..measure.rows import OK, Row
from . import style
from .undrawable import Undrawable

TITLE = "How much memory does a rank need?"
_MODES = {"off": ("local optimizer", ""), "on": ("ZeRO", "//"), "views": ("ZeRO, bucket views", "..")}
_MIB = 2**20
_MOST_PANELS = 3

Bars = dict[tuple[str, str], dict[int, Row]]  # rows by world, of each subject and mode


def draw(made: Board) -> Any:
    panels = dict(list(_panels(made).items())[:_MOST_PANELS])
    if not panels:
        raise Undrawable("no optimizer with a state was measured (sweeps default and zero-memory have adam)")
    rows = [row for bars in panels.values() for by_world in bars.values() for row in by_world.values()]
    peaks = any("peak_bytes" in row["derived"] for row in rows)
    caption = made.caption(
        "Of the rank that needs most. Solid: the optimizer's state (Adam)."
        + (" Pale, on top: what else a step has allocated at its peak, gradients and activations above all; "
           "parameters and the buckets of DDP, which stand from the beginning, are not counted." if peaks else ""),
        rows,
    )  # fmt: skip
    figure, axes = style.sheet(TITLE, caption, len(panels), height_in=2.9, legend_lines=2)
    for axis, (workload, bars) in zip(axes, panels.items(), strict=True):
        _panel(axis, bars, made.subjects)
        axis.set_title(workload)
    axes[0].set_ylabel("memory of a rank, MiB")
    style.legend(figure, axes, columns=3)
    return figure


def _panels(made: Board) -> dict[str, Bars]:
    found: dict[str, Bars] = {}
    for group in made.groups:
        if group.axes["optimizer"] != "adam" or group.axes["unit"] != "step":
            continue
        for row in group.find(hook="none", strategy="plain"):  # of any bucket cap: it changes nothing here
            key = row["subject"], row["axes"]["zero"]
            found.setdefault(group.axes["workload"], {}).setdefault(key, {}).setdefault(group.axes["world"], row)
    sound = {
        workload: bars
        for workload, bars in found.items()
        if any(row["status"] == OK for by_world in bars.values() for row in by_world.values())
    }
    several = {workload: bars for workload, bars in sound.items() if any(len(worlds) > 1 for worlds in bars.values())}
    return several or sound


def _panel(axis: Any, bars: Bars, subjects: list[str]) -> None:
    worlds = sorted({world for by_world in bars.values() for world in by_world})
    wide = 0.8 / len(bars)
    order = sorted(bars, key=lambda key: (list(_MODES).index(key[1]), subjects.index(key[0])))
    for number, (subject, mode) in enumerate(order):
        by_world = bars[subject, mode]
        name, hatch = _MODES[mode]
        colour = style.subject_look(subject, subjects)["color"]
        for world, row in by_world.items():
            place = worlds.index(world) + (number - (len(bars) - 1) / 2) * wide
            if row["status"] != OK:
                style.void(axis, place, f"{subject}: {row['status']}")
                continue
            state = max(row["derived"]["optimizer_bytes"]) / _MIB
            peak = max(row["derived"].get("peak_bytes", [0])) / _MIB
            look = {"width": wide * 0.92, "edgecolor": "white", "linewidth": 0.4, "hatch": hatch}
            axis.bar(place, state, color=colour, label=f"{subject}, {name}", **look)
            axis.bar(place, peak, bottom=state, color=colour, alpha=0.35, **look)
    axis.set_xticks(range(len(worlds)), [str(world) for world in worlds])
    axis.set_xlabel("ranks")
    axis.grid(axis="x", visible=False)
    style.from_zero(axis)
