"""The table of laws, on a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from .costs import Series

_HEADINGS = ("cost, ms", "x", "whose", "points", "fitted law, 95 %", "expected", "which is")
_FINE = ("as expected", "does not grow", "grows slower than expected", "falls")


def as_table(found: Sequence[Series]) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    for one in found:
        words = _words(one)
        table.add_row(*map(Text, words[:-1]), Text(words[-1], style=_style(words[-1])))
    return table


def _style(verdict: str) -> str:
    return "green" if verdict in _FINE else "red" if verdict.startswith("grows faster") else "yellow"


def as_markdown(found: Sequence[Series], note: str) -> str:
    rows = [f"| {' | '.join(_HEADINGS)} |", f"|{' --- |' * len(_HEADINGS)}"]
    rows += [f"| {' | '.join(_words(one))} |" for one in found]
    return "\n".join([note, "", *rows, ""])


def _words(one: Series) -> tuple[str, ...]:
    first, last = one.points[0], one.points[-1]
    span = f"{first.x:g} to {last.x:g}: {first.y:.3g} to {last.y:.3g}"
    return (
        one.cost, one.against, one.subject, span, str(one.fit or "too few points"), f"{one.expected}: {one.why}",
        one.verdict,
    )  # fmt: skip
