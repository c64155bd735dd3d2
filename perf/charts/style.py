"""How charts look: the palette of Okabe and Ito, which the colour-blind can tell apart, and a shape for each colour."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..analyse.intervals import Interval

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, BAND, WRONG = "#222222", "#6f6f6f", "#e4e4e4", "#b00020"
WIDTH_IN = 7.6  # at the resolution below twice the width of a README's column is not reached: text stays readable
DPI = 150
_TITLE_IN, _LEGEND_IN, _CAPTION_IN = 0.36, 0.195, 0.128  # heights of a line
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
    settings: Any = _SETTINGS
    context: AbstractContextManager[Any] = mpl.rc_context(settings)
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
    title: str,
    caption: str,
    panels: int,
    height_in: float = 2.6,
    columns: int = 3,
    legend_lines: int = 0,
    **sharing: Any,
) -> tuple[Any, list[Any]]:
    """A figure with so many panels: title and room for a legend above, the caption below."""
    from matplotlib import pyplot

    columns = min(columns, panels)
    lines = math.ceil(panels / columns)
    wrapped = "\n".join(textwrap.fill(part, 150) for part in caption.split("\n"))
    foot_in = _CAPTION_IN * (wrapped.count("\n") + 1) + 0.12
    head_in = _TITLE_IN + _LEGEND_IN * legend_lines
    whole_in = head_in + lines * height_in + foot_in
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(WIDTH_IN, whole_in), layout="constrained", squeeze=False, **sharing
    )
    free = 1 - (foot_in + head_in) / whole_in
    figure.get_layout_engine().set(rect=(0.004, foot_in / whole_in, 0.992, free), hspace=0.06, wspace=0.04)
    figure.text(0.012, 1 - 0.08 / whole_in, title, fontsize=12, fontweight="bold", va="top")
    figure.text(0.012, 0.06 / whole_in, wrapped, fontsize=6.8, color=GREY, va="bottom", linespacing=1.25)
    flat = list(axes.flat)
    for spare in flat[panels:]:
        spare.set_visible(False)
    return figure, flat[:panels]


def legend(figure: Any, axes: Sequence[Any], columns: int = 4) -> None:
    """One legend for all panels, in the room between title and panels; lines without marks last."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    last = [label for label, handle in entries.items() if getattr(handle, "get_linestyle", str)() == ":"]
    names = [label for label in entries if label not in last] + last
    if names:
        top = 1 - (_TITLE_IN - 0.02) / figure.get_size_inches()[1]
        figure.legend(
            [entries[name] for name in names], names, loc="upper left", bbox_to_anchor=(0.004, top), handlelength=2.6,
            ncols=min(columns, len(names)), columnspacing=1.6, borderaxespad=0, borderpad=0.2, labelspacing=0.3,
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
