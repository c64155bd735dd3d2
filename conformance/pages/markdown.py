"""Markdown for a job's page: the verdict, a table, what broke with its witness, what is listed, what has no answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from ..clauses import LEVELS
from . import view
from .record_book import Book
from .rows import BROKEN, FALLEN, LISTED, NOT_RUN, UNSUPPORTED, Break, Cell, Row
from .view import Card

MOST = 40  # breaks that are told in full: job pages have a limit
_SPECIAL = re.compile(r"([\\`*_\[\]|~]|^[#+>-])")


def text(words: str) -> str:
    """Words that mean nothing to Markdown or HTML, on one line."""
    return _SPECIAL.sub(r"\\\1", escape(" ".join(words.split()), quote=False))


def code(words: str) -> str:
    """A code span that holds exactly these words, on one line."""
    line = " ".join(words.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def link(address: str) -> str:
    """An address that can be followed, if it is one."""
    return f"<{address}>" if re.fullmatch(r"https?://[^\s<>|]+", address) else text(address)


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines]]


def summary(book: Book, shown: Sequence[Row]) -> str:
    """The whole summary."""
    stand, gone = view.cards(book, shown), view.stale(book)
    lines = [f"# Conformance: {text(view.headline(stand, shown, gone))}", "", text(view.lead(book)), ""]
    lines += [f"> {text(warning)}\n" for warning in view.warnings(book)]
    lines += [*_standings(stand), ""]
    for card in stand:
        lines += [*_coverage(card), ""]
    lines += [*_news(shown), *_stale(gone), *_listed(shown), *_silent(shown), *_origin(book)]
    return "\n".join(lines) + "\n"


def _standings(stand: Sequence[Card]) -> list[str]:
    head = ["subject", "", "clauses", "kept", "at a limit", "broken, listed", "broken, not listed", "unsupported",
            "not run", "suite error"]  # fmt: skip
    states = (LISTED, BROKEN, UNSUPPORTED, NOT_RUN, FALLEN)
    return table(head, (
        [f"**{text(card.name)}**", text(card.about), str(card.total), f"**{card.kept}**", str(card.limit),
         *(str(card.counts[state]) for state in states)]
        for card in stand
    ))  # fmt: skip


def _coverage(card: Card) -> list[str]:
    rows = (
        [text(area) or "other", *(f"{c.kept}/{c.total}" if c.total else "" for c in map(by.__getitem__, (*LEVELS, "")))]
        for area, by in card.coverage.items()
    )
    title = f"{escape(card.name)}: kept of all testable clauses, by area and level"
    return ["<details><summary>" + title + "</summary>", "", *table(["area", *LEVELS, "all"], rows), "", "</details>"]


def _breaks(shown: Sequence[Row], listed: bool) -> list[tuple[Row, Cell, Break]]:
    every = ((row, cell, each) for row in shown for cell in row.cells for each in cell.breaks)
    return [found for found in every if bool(found[-1].listed) is listed]


def _news(shown: Sequence[Row]) -> list[str]:
    found = _breaks(shown, listed=False)
    lines = ["## Broken, and not listed", ""] if found else []
    for row, cell, each in found[:MOST]:
        who = f"{text(cell.column.subject)}, {each.worlds}: {each.outcomes}"
        lines += [f"- **{text(row.id)}** {text(row.title)}: {who}"]
        lines += [f"  - {text(each.check)}"]
        lines += [f"  - {text(where)}: {code(witness)}" for where, witness, _ in each.seen if witness]
        lines += [f"  - again: {code(each.again)}"]
    if len(found) > MOST:
        lines.append(f"- and {len(found) - MOST} more: see index.html")
    return [*lines, ""] if lines else []


def _stale(gone: Sequence[str]) -> list[str]:
    return ["## Listed deviations that did not show", "", *(f"- {text(each)}" for each in gone), ""] if gone else []


def _listed(shown: Sequence[Row]) -> list[str]:
    found = _breaks(shown, listed=True)
    if not found:
        return []
    lines = (
        [text(row.id), text(cell.column.subject), f"{each.outcomes}, {each.worlds}", text(each.listed), link(each.link)]
        for row, cell, each in found
    )
    head = ["clause", "subject", "how", "reason", "link"]
    return [f"<details><summary>{len(found)} listed deviations that showed</summary>", "", *table(head, lines), "",
            "</details>", ""]  # fmt: skip


def _silent(shown: Sequence[Row]) -> list[str]:
    """Each reason why there is no answer once, with its clauses."""
    reasons: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in shown:
        for cell in row.cells:
            for said in cell.said:
                reasons.setdefault((said.word, cell.column.subject, said.text), {})[row.id] = None
    if not reasons:
        return []
    lines = (
        [word, text(subject), text(reason), text(", ".join(clauses))]
        for (word, subject, reason), clauses in sorted(reasons.items())
    )
    return ["<details><summary>Limits that were shown, and what has no answer</summary>", "",
            *table(["", "subject", "what was said", "clauses"], lines), "", "</details>", ""]  # fmt: skip


def _origin(book: Book) -> list[str]:
    wanted = ("begun", "took", "machine", "processor", "versions", "commit", "tier", "launcher", "command")
    lines = []
    for source in book.sources:
        facts = [(name, value) for name, value in view.facts(source) if name in wanted]
        parts = (f"{name} {code(value) if name == 'command' else text(value)}" for name, value in facts)
        lines.append(f"- {'; '.join(parts)}")
    return ["## Where these results are from", "", *lines]
