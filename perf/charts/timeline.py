"""One iteration on every rank: what it computes, when it waits, and each collective while it is under way."""

from __future__ import annotations

from typing import Any

from ..analyse.board import Board, backend
from ..analyse.network import setting
from ..measure.trace import PHASES, Iteration, Span, iterations_of, overlap
from ..wording import counted
from . import style
from .undrawable import Undrawable

TITLE = "Where does the time of one iteration go?"
_PHASE_COLOURS = dict(zip(PHASES, (style.SKY, style.BLUE, style.GREEN), strict=True))
_COLLECTIVES = {
    "all-reduce": (style.ORANGE, ""), "broadcast": (style.PURPLE, "//"), "reduce-scatter": (style.VERMILION, ".."),
    "all-gather": ("#F0E442", "xx"), "reduce": (style.SKY, "\\\\"), "all-to-all": (style.GREY, "++"),
}  # fmt: skip
_MOST_RANKS, _MOST_VARIANTS = 4, 4
_LANE = 0.36  # height of the main lane and of all collectives together, where a rank has 1


def draw(trace: dict[str, Any]) -> Any:
    iterations = iterations_of(trace)[:_MOST_VARIANTS]
    if not any(spans for iteration in iterations for spans in iteration.spans):
        raise Undrawable("the trace holds no iteration")
    first = iterations[0].cell
    ranks = min(_MOST_RANKS, first.world)
    made = Board([], [trace["otherData"]["header"]])
    more = f" The first {ranks} of {first.world} ranks." if ranks < first.world else ""
    caption = made.caption(
        "The iteration of median length among those traced, with torch's profiler on, which lengthens it. Upper half "
        "of a rank: its main thread, or the device's compute; lower half: its collectives (a line for each thread that "
        "carries them), from when they run until they are done on this rank. Waiting: no operator runs while a "
        "collective of the rank is under way; white: the host's own work, or another process on the core. Overlap: the "
        f"share of the collectives' time during which the rank computes.{more} {backend(first.backend)}.", [],
    )  # fmt: skip
    where = setting(first.axes()) if first.network else f"{first.workload}, {counted(first.world, 'rank')}"
    title = f"{TITLE} ({where})"
    figure, axes = style.sheet(
        title, caption, len(iterations), height_in=0.62 + 0.42 * ranks, columns=1, legend_lines=2, sharex=True
    )  # fmt: skip
    for axis, iteration in zip(axes, iterations, strict=True):
        _panel(axis, iteration, ranks)
    axes[-1].set_xlabel("time since the first rank began, ms")
    axes[0].set_xlim(0, max(iteration.length_us for iteration in iterations) / 1e3 * 1.01)
    style.legend(figure, axes, columns=5)
    return figure


def _panel(axis: Any, iteration: Iteration, ranks: int) -> None:
    for rank in range(ranks):
        _rank(axis, rank, iteration.spans[rank])
    axis.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axis.set_ylim(ranks - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    shares = [share for share in overlap(iteration) if share == share]
    suffix = f"   overlap {100 * sum(shares) / len(shares):.0f} %" if shares else ""
    axis.set_title(f"{iteration.cell.variant}{suffix}")


def _rank(axis: Any, rank: int, spans: list[Span]) -> None:
    upper = rank - _LANE - 0.02
    axis.axhline(rank + 0.5, color="#dddddd", linewidth=0.6)
    phases = [span for span in spans if span.lane == "phase"] + [span for span in spans if span.lane == "optimizer"]
    for span in spans:
        if span.lane == "compute":
            for phase in phases:  # the optimizer's steps last: they lie in the backward of an overlapped step
                part = span.cut(phase.start_us, phase.end_us)
                if part.end_us > part.start_us:
                    _bar(axis, part, upper, _LANE, color=_PHASE_COLOURS[phase.name], label=phase.name)
        elif span.lane == "waiting":
            _bar(axis, span, upper, _LANE, facecolor="white", edgecolor=style.GREY, hatch="////", linewidth=0,
                 label="waiting")  # fmt: skip
    lanes = sorted({span.lane for span in spans if span.lane.startswith("collectives")})
    for span in spans:
        if span.lane in lanes:
            high = _LANE / len(lanes)
            colour, hatch = _COLLECTIVES.get(span.name, (style.GREY, ""))
            place = rank + 0.02 + high * lanes.index(span.lane)
            _bar(axis, span, place, high * 0.92, facecolor=colour, edgecolor="white", hatch=hatch, linewidth=0.3,
                 label=span.name)  # fmt: skip


def _bar(axis: Any, span: Span, bottom: float, height: float, **look: Any) -> None:
    width = (span.end_us - span.start_us) / 1e3
    axis.broken_barh([(span.start_us / 1e3, width)], (bottom, height), **look)
