"""What a page shows of each clause and column, as plain values: states, marks, breaks with witnesses, reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from ..clauses import LEVELS, Catalogue, Clause
from ..engine.inventory import CHECKS, Declared, by_clause, declared
from ..engine.judgement import Standing, standing
from ..results import Outcome, Result
from .record_book import Book, Column, Found, results

Item = TypeVar("Item")
Key = TypeVar("Key")

KEPT, LIMIT, LISTED, BROKEN, UNSUPPORTED, NOT_RUN = "kept", "limit", "listed", "broken", "unsupported", "not-run"
FALLEN = "fallen"
MOST_NAMED = 6  # scenarios that are named where many saw the same
#: Every state with its sign and its name.
STATES = {
    KEPT: ("✓", "kept"), LIMIT: ("◐", "kept, at its limit"), LISTED: ("▲", "broken, listed"),
    BROKEN: ("✗", "broken, not listed"), UNSUPPORTED: ("∅", "unsupported"), NOT_RUN: ("–", "not run"),
    FALLEN: ("‼", "suite error"),
}  # fmt: skip
_STATE = {
    Standing.KEPT: KEPT, Standing.LISTED: LISTED, Standing.UNLISTED: BROKEN,
    Standing.UNSUPPORTED: UNSUPPORTED, Standing.NOT_RUN: NOT_RUN, Standing.SUITE_ERROR: FALLEN,
}  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """How a column stands on a clause at one world size."""

    world: int
    state: str
    said: str  # "world 2: 3 passed, 1 failed (listed)"


@dataclass(frozen=True)
class Break:
    """The breaks of one check that were excused, or not excused, alike."""

    check: str
    outcomes: str
    worlds: str
    listed: str  # reason of the listed deviation; empty: this is news
    link: str
    seen: tuple[tuple[str, str, str], ...]  # where, witness, detail; the same witness is not said twice
    again: str


@dataclass(frozen=True)
class Said:
    """A note, or a reason why there is no answer, with the checks and worlds at which it was given."""

    word: str
    text: str
    where: str


@dataclass(frozen=True)
class Cell:
    """Everything about one clause in one column."""

    column: Column
    state: str
    marks: tuple[Mark, ...]
    breaks: tuple[Break, ...]
    said: tuple[Said, ...]
    passed: int
    total: int
    words: str  # the state, and the outcomes that occur: for the filter
    in_part: bool = False  # whether scenarios were left out


@dataclass(frozen=True)
class Row:
    """One clause."""

    id: str
    title: str
    kind: str
    level: str
    area: str
    about: Clause | None  # the clause itself, if this suite knows it
    checks: tuple[tuple[str, str], ...]  # sentence, file and line
    cells: tuple[Cell, ...]


def rows(book: Book, catalogue: Catalogue) -> list[Row]:
    """A row for every clause that was asked."""
    recorded = _recorded(book)
    cover = by_clause(_declared(book))
    return [_row(clause, recorded.get(clause, {}), catalogue.get(clause), cover.get(clause, ()), book)
            for clause in book.clauses]  # fmt: skip


def _recorded(book: Book) -> dict[str, Mapping[str, str]]:
    """What the records themselves say of each clause; the newest wins."""
    return {clause: about for source in book.sources for clause, about in source.header.get("catalogue", {}).items()}


def _declared(book: Book) -> list[Declared]:
    """The checks of the suite, and those from elsewhere that are still where the record says."""
    elsewhere = {str(source.header.get("checks", "")) for source in book.sources} - {""}
    found = [check for folder in map(Path, sorted(elsewhere)) if folder.exists() for check in declared(folder)]
    return [*_own(), *found]


@cache
def _own() -> tuple[Declared, ...]:
    return tuple(declared())


def _row(clause: str, recorded: Mapping[str, str], about: Clause | None, checks: Sequence[Declared], book: Book) -> Row:
    cells = tuple(
        _cell(book.of(clause, column), column, in_part=book.is_in_part(clause, column)) for column in book.columns
    )
    levels = [found.result.level for column in book.columns for found in book.of(clause, column)[:1]]
    level = recorded.get("level") or (about.level if about else next(iter(levels), ""))
    error = recorded.get("error") or (about.error if about else "")
    return Row(
        clause, recorded.get("title") or (about.title if about else ""), f"{level} {error}".strip(), level,
        recorded.get("area") or (about.area if about else ""), about,
        tuple((found.sentence, f"{_place(found.file)}:{found.line}") for found in checks), cells,
    )  # fmt: skip


def _place(file: Path) -> str:
    """A file of the suite relative to the project, any other by its own path."""
    home = CHECKS.parents[1]
    return str(file.relative_to(home)) if file.is_relative_to(home) else str(file)


# --- one cell ---------------------------------------------------------------------------------------------------------


def state(found: Sequence[Result]) -> str:
    """The one word that a set of results comes to."""
    word = _STATE[standing(found)]
    return LIMIT if word == KEPT and any(result.at_limit for result in found) else word


IN_PART = Said("in part", "some scenarios are run by the full tier only", "quick tier")


def _cell(found: Sequence[Found], column: Column, *, in_part: bool) -> Cell:
    plain = results(found)
    word = state(plain)
    endings = sorted({f"ended-{str(each.outcome).replace(' ', '-')}" for each in plain})
    return Cell(
        column, word, tuple(_marks(plain)), tuple(_breaks(found)),
        (*_said(plain), *([IN_PART] if in_part else [])), sum(each.outcome is Outcome.PASSED for each in plain),
        len(plain), " ".join([word, *endings]), in_part,
    )  # fmt: skip


def _marks(found: Sequence[Result]) -> Iterable[Mark]:
    for world, mine in sorted(_grouped(found, lambda each: each.case.world).items()):
        counts = Counter(f"{each.outcome} (listed)" if each.listed else str(each.outcome) for each in mine)
        said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        yield Mark(world, state(mine), f"world {world}: {said}")


def _breaks(found: Sequence[Found]) -> Iterable[Break]:
    """News first, then what is listed; one for each check and reason, over all scenarios and worlds."""
    broken = [each for each in found if each.result.broken]
    groups = _grouped(broken, lambda each: (each.result.deviation, each.result.case.check))
    for (reason, check), mine in sorted(groups.items()):
        plain = results(mine)
        ends = ", ".join(dict.fromkeys(str(each.outcome) for each in plain))
        source = mine[-1].source
        link = source.link(plain[-1]) if reason else ""
        yield Break(check, ends, worlds(plain), reason, link, tuple(_seen(plain)), source.again(plain))


def _seen(broken: Sequence[Result]) -> Iterable[tuple[str, str, str]]:
    for witness, mine in _grouped(broken, lambda each: each.witness).items():
        scenarios = list(dict.fromkeys(each.case.scenario for each in mine if each.case.scenario))
        more = f" and {len(scenarios) - MOST_NAMED} more" if len(scenarios) > MOST_NAMED else ""
        named = f"{', '.join(scenarios[:MOST_NAMED])}{more} · " if scenarios else ""
        yield named + worlds(mine), witness, max((each.detail for each in mine), key=len)


def _said(found: Sequence[Result]) -> Iterable[Said]:
    """The notes of what is at its limit, and the reasons of what has no answer."""
    notes = [("at its limit", note, each) for each in found for note in each.notes]
    silent = (Outcome.UNSUPPORTED, Outcome.NOT_RUN, Outcome.SUITE_ERROR)
    notes += [(str(each.outcome), each.witness, each) for each in found if each.outcome in silent]
    for (word, text), mine in _grouped(notes, lambda each: (each[0], each[1])).items():
        yield Said(word, text, worlds([result for _, _, result in mine]))


def worlds(found: Iterable[Result]) -> str:
    sizes = sorted({result.case.world for result in found})
    return f"world{'s' if len(sizes) > 1 else ''} {', '.join(map(str, sizes))}"


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# --- coverage ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cover:
    """Clauses of one area and level in one column."""

    total: int = 0  # in the catalogue, testable
    asked: int = 0
    kept: int = 0
    answered: int = 0  # kept or broken: what is unsupported or not run is no answer
    state: str = NOT_RUN  # the worst that occurs


_WORST_FIRST = (BROKEN, FALLEN, LISTED, NOT_RUN, UNSUPPORTED, LIMIT, KEPT)


def coverage(book: Book, table: Sequence[Row], column: Column) -> dict[str, dict[str, Cover]]:
    """For each area and level: how far the column was asked and answered; the level "" is the whole area."""
    recorded = {
        clause: about for clause, about in _recorded(book).items()
        if "untestable" not in about or clause in book.clauses
    }  # fmt: skip
    place = {clause: (about.get("area", ""), about.get("level", "")) for clause, about in recorded.items()}
    place |= {row.id: (row.area, row.level) for row in table}
    index = book.columns.index(column)
    states = {row.id: row.cells[index].state for row in table if book.was_asked(row.id, column)}
    found: dict[str, dict[str, Cover]] = {}
    for area in sorted({area for area, _ in place.values()}):
        mine = [clause for clause in place if place[clause][0] == area]
        found[area] = {level: _cover([c for c in mine if place[c][1] == level], states) for level in LEVELS}
        found[area][""] = _cover(mine, states)
    return found


def _cover(clauses: Sequence[str], states: Mapping[str, str]) -> Cover:
    asked = [states[clause] for clause in clauses if clause in states]
    kept = sum(each in (KEPT, LIMIT) for each in asked)
    answered = kept + sum(each in (BROKEN, LISTED) for each in asked)
    worst = next((each for each in _WORST_FIRST if each in asked), NOT_RUN)
    return Cover(len(clauses), len(asked), kept, answered, worst)
