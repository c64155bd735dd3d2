"""Memory of a rank against world size: the optimizer's state, and what a step needs at its peak on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..analyse.board import Board
from ..analyse.network import setting
from ..measure.rows import OK
from ..wording import more
from . import style
from .undrawable import Undrawable

if TYPE_CHECKING:
    import pandas as pd

TITLE = "How much memory does a rank need?"
_MODES = {"off": ("local optimizer", ""), "on": ("ZeRO", "//"), "views": ("ZeRO, bucket views", "..")}
_MIB = 2**20
_MOST_PANELS = 3

_SHOWN = "optimizer == 'adam' and unit == 'step' and hook == 'none' and strategy == 'plain' and copy == 1"


def draw(made: Board) -> Any:
    found = list(_shown(made).groupby("model", sort=False))
    panels = found[:_MOST_PANELS]
    if not panels:
        raise Undrawable("no optimizer with a state was measured (sweeps default and zero-memory have adam)")
    rows = [made.rows[at] for _, cells in panels for at in cells.index]
    peaks = any("peak_bytes" in row["derived"] for row in rows)
    caption = made.caption(
        "Of the rank that needs most. Solid: the optimizer's state (Adam)."
        + (" Pale, on top: what else a step has allocated at its peak, gradients and activations above all; "
           "parameters and the buckets of DDP, which stand from the beginning, are not counted." if peaks else "")
        + more(len(found) - len(panels), "panel"),
        rows,
    )  # fmt: skip
    figure, axes = style.sheet(TITLE, caption, len(panels), height_in=2.9, legend_lines=2)
    for axis, (model, cells) in zip(axes, panels, strict=True):
        _panel(axis, cells, made)
        axis.set_title(model)
    axes[0].set_ylabel("memory of a rank, MiB")
    style.legend(figure, axes, columns=3)
    return figure


def _shown(made: Board) -> pd.DataFrame:
    """The labels of the cells that are drawn, whatever changes nothing here: bucket cap, network and pace."""
    from ..analyse.frames import labels

    found = labels(made.rows).query(_SHOWN)
    found["model"] = [setting({**made.rows[at]["axes"], "network": "", "pace": 1}, hosts=False) for at in found.index]
    found = found.drop_duplicates(["model", "subject", "zero", "world"])
    sound = found.groupby("model").filter(lambda mine: (mine["status"] == OK).any())
    several = sound.groupby("model").filter(lambda mine: mine.value_counts(["subject", "zero"]).max() > 1)
    return sound if several.empty else several


def _panel(axis: Any, mine: pd.DataFrame, made: Board) -> None:
    rows, subjects, worlds = made.rows, made.subjects, sorted(mine["world"].unique())
    bars = sorted(
        set(zip(mine["subject"], mine["zero"], strict=True)),
        key=lambda bar: (list(_MODES).index(bar[1]), subjects.index(bar[0])),
    )
    wide = 0.8 / len(bars)
    for number, (subject, mode) in enumerate(bars):
        name, hatch = _MODES[mode]
        colour = style.subject_look(subject, subjects)["color"]
        cells = mine.index[(mine["subject"] == subject) & (mine["zero"] == mode)]
        for row in (rows[at] for at in cells):
            place = worlds.index(row["axes"]["world"]) + (number - (len(bars) - 1) / 2) * wide
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
