"""Charts of performance records, one question each, as PNG and SVG; a chart without its cells is not drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from reports.records import RecordFile

from ..analyse.board import Board, board
from ..analyse.network import is_paced
from .undrawable import Undrawable

#: Name of the file -> the question that the chart answers. Each is drawn by the module of its name.
CHARTS: dict[str, str] = {
    "skew": "what do uneven inputs cost?",
    "ratio": "who is faster?",
    "scaling": "how does a step keep its time when ranks are added?",
    "buckets": "which bucket cap is best?",
    "hooks": "does the interleaved hook beat the sequential one?",
    "memory": "how much memory does a rank need?",
    "growth": "how does each cost grow?",
    "network": "how near is a step over a network to what compute and bytes allow?",
    "exposed": "how much communication does each step leave exposed?",
    "winners": "which hook wins, by bucket cap and compute to communication?",
    "efficiency": "how much of a step is compute, as hosts are added?",
    "join_cost": "what does Join add to a step over a network?",
}
_OF_PACED = ("network", "exposed", "winners", "efficiency", "join_cost", "skew")  # the others leave paced cells out


@dataclass(frozen=True)
class Chart:
    """What became of one chart: its files, or the reason why there are none."""

    name: str
    files: tuple[Path, ...] = ()
    reason: str = ""


def draw_all(records: Sequence[RecordFile], out: Path) -> Iterator[Chart]:
    """Draw every chart whose cells are in the records, as ``out/NAME.png`` and ``.svg``."""
    made = board(records)
    for name in CHARTS:
        yield _written(name, lambda name=name: _figure(name, made), out)  # type: ignore[misc]


def draw_timeline(trace: dict[str, Any], out: Path, name: str = "timeline") -> Chart:
    """Draw the timeline of a trace as ``perf trace`` writes it."""
    from . import timeline

    return _written(name, lambda: timeline.draw(trace), out)


def _figure(name: str, made: Board) -> Any:
    if name not in _OF_PACED:
        computed = [one for one in made.groups if not is_paced(one)]
        if made.groups and not computed:
            raise Undrawable("every cell of the record is paced, and this chart leaves those out")
        made = replace(made, groups=computed)
    return import_module(f"{__name__}.{name}").draw(made)


def _written(name: str, draw: Callable[[], Any], out: Path) -> Chart:
    from . import style

    with style.styled():
        from matplotlib import pyplot

        try:
            figure = draw()
        except Undrawable as reason:
            return Chart(name, reason=str(reason))
        out.mkdir(parents=True, exist_ok=True)
        files = tuple(out / f"{name}.{kind}" for kind in ("png", "svg"))
        try:
            for file in files:
                # without a date, so that the same record makes the same file
                figure.savefig(file, dpi=style.DPI, metadata={"Date": None} if file.suffix == ".svg" else None)
        finally:
            pyplot.close(figure)
    return Chart(name, files)
