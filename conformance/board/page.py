"""The board's page and feed: how each column stands, area by area, with links to the page of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..clauses import Catalogue, load
from ..engine.judgement import Standing
from ..pages.record_book import Book, Source
from ..pages.render import fill
from ..pages.write import put, write_book
from . import classes, releases
from .columns import Column

SHOWN = ("kept", "broken", "by design", "unsupported", "not judged")
COUNTED = ("kept", "broken", "by design", "unsupported", "suite error", "not run")


@dataclass(frozen=True)
class Judged:
    """A column with its answer, and what is wrong with the answer."""

    column: Column
    source: Source | None
    trouble: str = ""

    @property
    def version(self) -> str:
        return str(next(iter(self.source.header["subjects"]))["version"]) if self.source else ""

    @property
    def day(self) -> str:
        return str(self.source.header["time"])[:10] if self.source else ""

    def answers(self) -> dict[str, str]:
        """How it stands on each clause, in one of the words that are counted."""
        if self.source is None:
            return {}
        book = Book([self.source])
        (only,) = book.columns
        return {clause: _word(book, clause, how) for clause, how in book.standings(only).items()}

    def inherited(self) -> int:
        """How many clauses it breaks by nothing but what torch's classes do within."""
        broken = {clause for clause, word in self.answers().items() if word == "broken"}
        return len(broken & classes.inherited(self.column, self.source.results)) if self.source else 0


def _word(book: Book, clause: str, how: Standing) -> str:
    if how in (Standing.LISTED, Standing.UNLISTED, Standing.UNSUPPORTED):
        return classes.word(each.result for each in book.of(clause, book.columns[0]))
    return str(how)


def publish(judged: Sequence[Judged], out: Path) -> list[Path]:
    """Write the page, the feed, the matrix of all clauses, and each column's own page in its folder."""
    catalogue = load()
    for each in judged:
        if each.source:
            write_book(Book([each.source]), out / each.column.name)
    table = [_row(each, catalogue) for each in judged]
    compared = _releases(judged)
    put(out / "board.json", json.dumps({"columns": table, "releases": compared}, indent=1) + "\n")
    see = ["", "[What the releases changed](releases.md)"] if compared else []
    put(out / "board.md", "\n".join([*_markdown(table), *see]) + "\n")
    put(out / "index.html", fill(
        "board.html.j2", columns=table, counted=COUNTED[:4], areas=catalogue.areas, releases=bool(compared)
    ))  # fmt: skip
    if compared:
        titles = {clause.id: clause.title for clause in catalogue}
        put(out / "releases.html", fill("releases.html.j2", subjects=compared, titles=titles))
        lines = [line for name, shown in compared.items() for line in releases.markdown(name, shown)]
        put(out / "releases.md", "\n".join(lines))
    sources = [each.source for each in judged if each.source]
    matrix = write_book(Book(sources), out / "matrix") if sources else []
    return [out / "index.html", out / "board.json", *matrix[:1]]


def _releases(judged: Sequence[Judged]) -> dict[str, Any]:
    """What releases of torch change, for each subject that was judged on several."""
    answers: dict[str, dict[str, releases.Answer]] = {}
    for each in judged:
        if each.source:
            found = releases.answer(each.source, each.answers())
            answers.setdefault(each.column.subject, {})[found.release] = found
    return {name: releases.table([*found.values()]) for name, found in answers.items() if len(found) > 1}


def _row(judged: Judged, catalogue: Catalogue) -> dict[str, Any]:
    answers, column = judged.answers(), judged.column
    areas = {
        area.letter: Counter(answers[clause.id] for clause in area.clauses if clause.id in answers)
        for area in catalogue.areas
    }
    return {
        "name": column.name, "about": column.about, "home": column.home, "version": judged.version,
        "judged": judged.day,
        "trouble": judged.trouble, "counts": _counts(Counter(answers.values())), "of_torch": judged.inherited(),
        "areas": {letter: _counts(counter) for letter, counter in areas.items()}, "clauses": answers,
    }  # fmt: skip


def _markdown(table: Sequence[dict[str, Any]]) -> list[str]:
    """The columns' counts as a table for a document, with the day of each answer and what is wrong with it."""
    heads = ["implementation", "version", *SHOWN, "judged on", "what is judged"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * len(SHOWN) + "---|---|"]
    for row in table:
        counts = row["counts"]
        silent = counts["suite error"] + counts["not run"]
        broken = f"{counts['broken']} ({row['of_torch']})" if row["of_torch"] else counts["broken"]
        shown = [counts["kept"], broken, counts["by design"], counts["unsupported"], silent]
        name = f"[{row['name']}]({row['home']})" if row["home"] else row["name"]
        said = "; ".join(filter(None, [row["about"], row["trouble"]]))
        lines.append(f"| {name} | {row['version']} | {' | '.join(map(str, shown))} | {row['judged']} | {said} |")
    return lines


def _counts(counter: Counter[str]) -> dict[str, int]:
    return {word: counter[word] for word in COUNTED}
