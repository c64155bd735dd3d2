"""Writes exports: one to wherever it is wanted, or all of them into a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..history import HistoryError
from ..judging import JudgedHistory
from .badge import as_badge
from .junit import as_junit
from .markdown import as_markdown
from .openmetrics import as_openmetrics
from .otava import otava_config, otava_csv
from .tables import as_csv, as_json
from .views import VIEWS

_WHOLE: dict[str, tuple[str, Callable[[JudgedHistory], str]]] = {
    "openmetrics": ("metrics.prom", as_openmetrics), "markdown": ("summary.md", as_markdown),
    "junit": ("junit.xml", as_junit), "badge": ("badge.svg", as_badge),
}  # fmt: skip
FORMS = ("csv", "json", *_WHOLE, "otava")

_LARGE = "points"  # every night of every series: as CSV only, where everything is written


def machine_of(judged: JudgedHistory, name: str) -> JudgedHistory:
    """One machine's part of a history. Files that were left out are kept: not all of them belong to a machine."""
    machines = tuple(machine for machine in judged.machines if machine.name == name)
    if not machines:
        names = ", ".join(machine.name for machine in judged.machines) or "none"
        raise HistoryError(f"the history holds no machine {name!r}; it holds {names}")
    return replace(
        judged,
        machines=machines,
        series=tuple(one for one in judged.series if one.machine == name),
        clauses=tuple(one for one in judged.clauses if one.machine == name),
        clause_changes=tuple(one for one in judged.clause_changes if one.machine == name),
    )


def export(judged: JudgedHistory, form: str, *, view: str = "series") -> str:
    """One export as text. ``view`` matters for CSV and JSON; Otava takes a history of one machine."""
    if form in ("csv", "json"):
        return (as_csv if form == "csv" else as_json)(judged, view)
    if form in _WHOLE:
        return _WHOLE[form][1](judged)
    if len(judged.machines) != 1:
        names = ", ".join(one.name for one in judged.machines) or "none"
        raise HistoryError(f"an export for Otava is of one machine, and the history holds {names}: use --machine")
    return otava_csv(judged, judged.machines[0])


def export_all(judged: JudgedHistory, folder: Path) -> list[Path]:
    """Write every export into a folder; their places."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {f"{view}.csv": as_csv(judged, view) for view in VIEWS}
    texts |= {f"{view}.json": as_json(judged, view) for view in VIEWS if view != _LARGE}
    texts |= {name: make(judged) for name, make in _WHOLE.values()}
    files = {machine.name: f"otava-{number}.csv" for number, machine in enumerate(judged.machines, 1)}
    texts |= {files[machine.name]: otava_csv(judged, machine) for machine in judged.machines}
    texts["otava.yaml"] = otava_config(judged, files)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
    return [folder / name for name in texts]
