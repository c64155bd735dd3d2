"""What a page says above and below its matrix: the verdict, a card for each column, where the results are from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from reports.records.identity import spoken

from .record_book import Book, Column, Source
from .rows import BROKEN, FALLEN, KEPT, LIMIT, LISTED, NOT_RUN, STATES, UNSUPPORTED, Cover, Row, coverage

_BAR = 1000  # width of a bar in its own units


@dataclass(frozen=True)
class Part:
    """The share of a state in a bar."""

    state: str
    count: int
    start: float
    width: float


@dataclass(frozen=True)
class Card:
    """How one column stands as a whole."""

    index: int
    column: Column
    name: str
    about: str  # version and backend, and whatever else tells it from its neighbours
    total: int
    counts: Mapping[str, int]  # clauses by state
    coverage: Mapping[str, Mapping[str, Cover]]

    @property
    def kept(self) -> int:
        return self.counts[KEPT] + self.counts[LIMIT]

    @property
    def limit(self) -> int:
        return self.counts[LIMIT]

    @property
    def answered(self) -> int:
        return self.kept + self.counts[BROKEN] + self.counts[LISTED]

    @property
    def catalogue(self) -> int:
        return sum(levels[""].total for levels in self.coverage.values())

    @property
    def said(self) -> str:
        return ", ".join(f"{part.count} {STATES[part.state][1]}" for part in self.parts)

    @property
    def parts(self) -> list[Part]:
        made: list[Part] = []
        for state in (KEPT, LIMIT, LISTED, BROKEN, FALLEN, UNSUPPORTED, NOT_RUN):
            start = made[-1].start + made[-1].width if made else 0.0
            if self.counts[state]:
                made.append(Part(state, self.counts[state], start, round(_BAR * self.counts[state] / self.total, 2)))
        return made


def cards(book: Book, table: Sequence[Row]) -> list[Card]:
    """A card for each column."""
    made = []
    for index, (column, about) in enumerate(zip(book.columns, abouts(book.columns), strict=True)):
        asked = [row.cells[index].state for row in table if book.was_asked(row.id, column)]
        counts = dict.fromkeys(STATES, 0) | Counter(asked)
        made.append(Card(index, column, column.subject, about, len(asked), counts, coverage(book, table, column)))
    return made


def abouts(columns: Sequence[Column]) -> list[str]:
    """Version and backend of each column; machine, torch and commit only where columns differ in them."""
    differing = [
        (name, words)
        for name, words in (("host", "on {}"), ("torch", "torch {}"), ("commit", "at {:.8}"))
        if len({getattr(column, name) for column in columns}) > 1
    ]
    return [
        " · ".join(
            text
            for text in (
                column.version,
                column.backend,
                *(words.format(getattr(column, name)) for name, words in differing if getattr(column, name)),
            )
            if text
        )
        for column in columns
    ]


def choices(columns: Sequence[Column], texts: Sequence[str]) -> list[tuple[str, str]]:
    """What the filter by subject offers: every subject with its columns, and single columns where it has several."""
    by_subject: dict[str, list[int]] = {}
    for index, column in enumerate(columns):
        by_subject.setdefault(column.subject, []).append(index)
    offered = []
    for subject, mine in by_subject.items():
        offered.append((subject, " ".join(map(str, mine))))
        offered += [(f"{subject} · {texts[index]}", str(index)) for index in mine if len(mine) > 1]
    return offered


# --- words ------------------------------------------------------------------------------------------------------------


def headline(stand: Sequence[Card], table: Sequence[Row], stale: Sequence[str]) -> str:
    """The verdict over all columns."""
    news = sum(any(cell.state == BROKEN for cell in row.cells) for row in table)
    if news:
        return f"{_many(news, 'clause')} broken that no list expects"
    fallen = sum(card.counts[FALLEN] for card in stand)
    if fallen:
        return f"{_many(fallen, 'clause')} left undecided by errors of the suite itself"
    if stale:
        return f"{_many(len(stale), 'listed deviation')} did not show"
    if not any(card.answered for card in stand):
        return "No clause has an answer"
    if listed := sum(any(cell.state == LISTED for cell in row.cells) for row in table):
        return f"{_many(listed, 'clause')} broken, as listed"
    return "Every clause that has an answer is kept"


def lead(book: Book) -> str:
    """One line: how much was asked, of whom, when, on what."""
    every = book.every()
    cases = len({(column, found.result.case) for column, found in every})
    worlds = sorted({found.result.case.world for _, found in every})
    backends = list(dict.fromkeys(column.backend for column in book.columns))
    newest = str(book.sources[-1].header["time"])
    return (
        f"{_many(len(book.clauses), 'clause')} in {_many(cases, 'case')} on {', '.join(backends)} with "
        f"{_many(len(worlds), 'world size')} ({', '.join(map(str, worlds)) or 'none'}); {moment(newest)}."
    )


def warnings(book: Book) -> list[str]:
    """What a reader must know before believing the page."""
    found = []
    if book.damaged:
        found.append(f"{_many(len(book.damaged), 'record')} left out: {'; '.join(book.damaged)}.")
    cut = [source for source in book.sources if source.footer.get("interrupted")]
    return [*found, *(f"{source.path}: the run was interrupted; this is what was finished before." for source in cut)]


def stale(book: Book) -> list[str]:
    return list(dict.fromkeys(str(text) for source in book.sources for text in source.footer.get("stale", ())))


def facts(source: Source) -> list[tuple[str, str]]:
    """Machine, versions, commit, question and length of one run."""
    header = source.header
    machine, versions, asked = header["machine"], header["versions"], header.get("asked", {})
    memory = machine.get("memory_mib", 0)
    found = [
        ("record", str(source.path)),
        ("begun", moment(str(header["time"]))),
        ("took", _took(source)),
        ("machine", str(machine.get("host", ""))),
        ("processor", f"{machine.get('processor', '')} · {machine.get('cores', '?')} cores · {memory / 1024:.1f} GiB"),
        ("system", str(machine.get("system", ""))),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", str(header["commit"])),
        ("subjects", ", ".join(f"{each.get('name')} {each.get('version')}" for each in header.get("subjects", ()))),
        ("tier", str(asked.get("tier") or "")),
        ("extent", str(header.get("extent", ""))),
        ("launcher", _launcher(header.get("launcher"))),
        ("backend", str(asked.get("backend", ""))),
        ("worlds", ", ".join(map(str, asked.get("worlds", ())))),
        ("selected", ", ".join(map(str, asked.get("select", ())))),
        ("results", str(len(source.results))),
        ("exit status", str(source.footer.get("exit_status", ""))),
        ("environment", " ".join(f"{name}={value}" for name, value in header["environment"].items())),
        ("command", spoken([str(word) for word in header["command"]])),
    ]
    return [(name, value) for name, value in found if value]


def _launcher(given: Any) -> str:
    if not isinstance(given, Mapping):
        return str(given or "")
    return ", ".join(f"{key} {value}" for key, value in given.items())


def _took(source: Source) -> str:
    try:
        begun = datetime.fromisoformat(str(source.header["time"]))
        ended = datetime.fromisoformat(str(source.footer["finished"]))
    except (KeyError, ValueError, TypeError):
        return ""
    minutes, seconds = divmod(int((ended - begun).total_seconds()), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def moment(text: str) -> str:
    """A time as people read it; what is no time stays as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return text


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
