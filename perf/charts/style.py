"""How charts look: the palette of Okabe and Ito, which the colour-blind can tell apart, with a shape beside each colour."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..intervals import Interval

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, BAND, WRONG = "#222222", "#6f6f6f", "#e4e4e4", "#b00020"
WIDTH_IN = 7.6  # at the resolution below twice the width of a README's column is not reached: text stays readable
DPI = 150
_OTHERS = (GREEN, PURPLE, ORANGE, SKY)
_MARKERS = ("D", "v", "P", "X")

_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": GREY, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.grid": True, "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.axisbelow": True, "lines.linewidth": 1.6,
    "lines.markersize": 5.5, "legend.frameon": False, "figure.facecolor": "white", "savefig.facecolor": "white",
    "svg.fonttype": "none", "svg.hashsalt": "joinery", "axes.titlelocation": "left", "axes.titleweight": "bold",
    "hatch.linewidth": 0.6,
}  # fmt: skip


def styled() -> AbstractContextManager[Any]:
    """The settings above, for as long as a ``with`` lasts; and no window is ever opened."""
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    context: AbstractContextManager[Any] = mpl.rc_context(_SETTINGS)
    return context


def subject_look(name: str, others: Iterable[str]) -> dict[str, Any]:
    """Colour and marker of a subject, the same on every chart."""
    known = {"impl": (BLUE, "o"), "torch": (VERMILION, "s"), "none": (INK, "_")}
    if name in known:
        colour, marker = known[name]
    else:
        place = sorted(each for each in others if each not in known).index(name) % len(_OTHERS)
        colour, marker = _OTHERS[place], _MARKERS[place]
    return {"color": colour, "marker": marker}


def sheet(
    title: str, caption: str, panels: int, height_in: float = 2.6, columns: int = 3, **sharing: Any
) -> tuple[Any, list[Any]]:
    """A figure with so many panels, its title above and its caption below."""
    from matplotlib import pyplot

    columns = min(columns, panels)
    lines = math.ceil(panels / columns)
    told = textwrap.fill(caption, 138)
    foot_in = 0.13 * (told.count("\n") + 1) + 0.1
    whole_in = lines * height_in + 0.75 + foot_in
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(WIDTH_IN, whole_in), layout="constrained", squeeze=False, **sharing
    )
    figure.get_layout_engine().set(rect=(0, foot_in / whole_in, 1, 1 - foot_in / whole_in), hspace=0.06, wspace=0.04)
    figure.suptitle(title, x=0.012, ha="left", fontsize=11.5, fontweight="bold")
    figure.text(0.012, 0.06 / whole_in, told, fontsize=6.8, color=GREY, va="bottom", linespacing=1.25)
    flat = list(axes.flat)
    for spare in flat[panels:]:
        spare.set_visible(False)
    return figure, flat[:panels]


def legend(figure: Any, axes: Sequence[Any], columns: int = 4) -> None:
    """One legend for all panels, between title and panels."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(
            entries.values(), entries.keys(), loc="outside upper left", ncols=min(columns, len(entries)),
            handlelength=2.6, columnspacing=1.6, borderaxespad=0.2,
        )  # fmt: skip


def line(axis: Any, places: Sequence[float], found: Sequence[Interval], **look: Any) -> None:
    """Points joined by a line, each with its interval where there is one."""
    points = [one.point for one in found]
    below = [one.point - one.low if one.known else 0.0 for one in found]
    above = [one.high - one.point if one.known else 0.0 for one in found]
    axis.errorbar(places, points, yerr=[below, above], capsize=2.5, elinewidth=1.0, **look)


def void(axis: Any, place: float, word: str = "void") -> None:
    """Marks, on the bottom of a panel, a cell that has no time because it came to nothing."""
    transform = axis.get_xaxis_transform()
    axis.plot([place], [0.03], marker="x", color=WRONG, transform=transform, clip_on=False, linestyle="", zorder=5)
    axis.text(place, 0.07, word, color=WRONG, fontsize=7, ha="center", va="bottom", transform=transform, rotation=90)


def from_zero(axis: Any, room: float = 1.08) -> None:
    """The vertical axis begins at 0, so that heights can be compared as they are seen."""
    axis.set_ylim(0, max(axis.get_ylim()[1] * room, 1e-9))
