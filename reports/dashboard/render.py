"""Fills the template: every text is escaped, and the page's policy lets it load nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..exports import VIEWS
from ..findings import Urgency, at_work, few_nights, findings
from ..history import KINDS
from ..judging import ClauseState, JudgedHistory, State
from ..records import RecordFile
from ..wording import commits, interval, moment, number, percent, plural, short, unit
from . import view
from .data import CLAUSE_LETTERS, STATE_LETTERS
from .spark import spark

_TEMPLATES = Path(__file__).parent / "templates"
_RESOURCES = ("style.css", "page.js", "tables.js", "chart.js", "compare.js")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    made.filters |= {"moment": moment, "percent": percent, "interval": interval, "commits": commits, "short": short}
    made.filters |= {"href": _href, "slug": _slug}
    made.globals.update(
        spark=spark, number=number, unit=unit, plural=plural, Urgency=Urgency, states=tuple(State), kinds=KINDS,
        clause_states=[state for state in ClauseState if state is not ClauseState.ABSENT],
        clause_letters=CLAUSE_LETTERS, state_letters=STATE_LETTERS,
    )  # fmt: skip
    return made


def _href(path: str) -> str:
    return quote(path.encode("utf-8", errors="replace"))


def _slug(state: str) -> str:
    """A state as the name of a class."""
    return state.replace(" ", "-")


def resources() -> Iterator[tuple[str, str]]:
    """What stands beside the page."""
    for name in _RESOURCES:
        yield name, (_TEMPLATES / name).read_text(encoding="utf-8")


def page(judged: JudgedHistory, assets: str, raw: str, power: RecordFile | None = None) -> str:
    """The page. ``assets`` and ``raw``: the folders of its files and of the records, relative to it.

    ``power``: how many random mutants the suite killed, where that was measured.
    """
    found, rows, across = findings(judged), view.series_rows(judged), view.columns(judged)
    return _environment().get_template("page.html.j2").render(
        judged=judged, assets=assets, raw=raw, headline=view.headline(judged, found), lead=view.lead(judged),
        cards=view.cards(judged), found=view.by_urgency(found), rows=rows, choices=view.choices(rows),
        columns=across, matrix=view.matrix(judged, across),
        clause_changes=view.clause_changes(judged), together=view.side_by_side(judged),
        accounting=view.accounting(judged), few=few_nights(judged, at_work(judged)),
        views=tuple(VIEWS), machines=[m.name for m in judged.machines], power=power and view.power(power),
    )  # fmt: skip
