"""Reads conformance records and merges them: a column for each subject, backend, machine, versions and commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reports.records import RecordError, read

from ..bad_input import BadInput
from ..engine.judgement import Standing, standing
from ..engine.request import Asked
from ..results import Case, Outcome, Result

RECORD = "conformance.jsonl"  # what a folder of records is asked for


@dataclass(frozen=True)
class Column:
    """Results that may stand side by side: of one subject on one backend, machine, torch and commit."""

    subject: str
    version: str
    backend: str
    host: str
    torch: str
    commit: str


@dataclass(frozen=True)
class Source:
    """One record that was read."""

    path: Path
    header: Mapping[str, Any]
    footer: Mapping[str, Any]
    results: tuple[Result, ...]

    def column(self, subject: str) -> Column:
        return Column(
            subject, str(self._subject(subject).get("version", "")), self._backend,
            str(self.header["machine"].get("host", "")), str(self.header["versions"].get("torch", "")),
            str(self.header["commit"]),
        )  # fmt: skip

    def clauses(self) -> tuple[str, ...]:
        """What the run was about; of a record that does not say so, what it has results of."""
        said = self.footer.get("clauses")
        return tuple(said) if said else tuple(dict.fromkeys(result.clause for result in self.results))

    @cached_property
    def subjects(self) -> list[str]:
        named = [str(each.get("name", "")) for each in self.header.get("subjects", ())]
        return list(dict.fromkeys([*named, *(result.case.subject for result in self.results)]))

    @cached_property
    def asked(self) -> Asked:
        """The question behind the record, as far as it takes to say how to repeat a part of it."""
        specs = {name: str(self._subject(name).get("spec", name)) for name in self.subjects}
        said, checks = self.header.get("asked", {}), str(self.header.get("checks", ""))
        poison, deadline_s = bool(said.get("poison")), said.get("deadline")
        return Asked(specs, {}, self._backend, (), (), deadline_s=deadline_s, checks=checks, poison=poison)

    def again(self, results: Sequence[Result]) -> str:
        """The command that runs the check of these results again; with the schedule that is known to break it."""
        return self.asked.again_for(results)

    def link(self, result: Result) -> str:
        """Where the listed deviation that explains a result is discussed; empty if nobody said so."""
        listed = self.header.get("deviations", {}).get(result.case.subject, ())
        return next((str(each.get("link", "")) for each in listed if each.get("reason") == result.deviation), "")

    @property
    def _backend(self) -> str:
        backends = [result.case.backend for result in self.results[:1]]
        return str(self.header.get("asked", {}).get("backend") or "".join(backends))

    def _subject(self, name: str) -> Mapping[str, Any]:
        return next((each for each in self.header.get("subjects", ()) if each.get("name") == name), {})


@dataclass(frozen=True)
class Found:
    """A result with the record that it is from."""

    result: Result
    source: Source


class Book:
    """Several records as one: what each column shows for each clause."""

    def __init__(self, sources: Iterable[Source], damaged: Sequence[str] = ()) -> None:
        self.sources = sorted(sources, key=lambda source: str(source.header["time"]))
        self.damaged = tuple(damaged)  # a sentence for each record that was left out
        self._results: dict[Column, dict[tuple[str, Case], Found]] = {}
        self._asked: dict[Column, dict[str, None]] = {}
        for source in self.sources:
            self._add(source)
        self.columns = sorted(
            self._results, key=lambda each: (each.backend, each.host, each.torch)
        )  # then as they came
        self._cells = {column: _by_clause(found.values()) for column, found in self._results.items()}

    def _add(self, source: Source) -> None:
        for subject in source.subjects:
            column = source.column(subject)
            self._results.setdefault(column, {})
            self._asked.setdefault(column, {}).update(dict.fromkeys(source.clauses()))
        for result in source.results:  # a case that was run again later has the later result
            self._results[source.column(result.case.subject)][result.clause, result.case] = Found(result, source)

    @property
    def clauses(self) -> list[str]:
        """Every clause that some column was asked, in the order of the catalogues."""
        asked = dict.fromkeys(clause for column in self.columns for clause in self._asked[column])
        order = dict.fromkeys(clause for source in self.sources for clause in source.header.get("catalogue", {}))
        return [*(clause for clause in order if clause in asked), *(each for each in asked if each not in order)]

    def of(self, clause: str, column: Column) -> list[Found]:
        return self._cells[column].get(clause, [])

    def was_asked(self, clause: str, column: Column) -> bool:
        return clause in self._asked[column]

    def is_in_part(self, clause: str, column: Column) -> bool:
        """Whether every run that asked the column about a clause left scenarios of it out."""
        asked = [
            source for source in self.sources
            if clause in source.clauses() and any(source.column(subject) == column for subject in source.subjects)
        ]  # fmt: skip
        return bool(asked) and all(clause in source.footer.get("part", {}).get(column.subject, ()) for source in asked)

    def standings(self, column: Column) -> dict[str, Standing]:
        """How the column stands on every clause that it was asked."""
        return {clause: standing(results(self.of(clause, column))) for clause in self._asked[column]}

    def at_limit(self, column: Column) -> int:
        """Clauses that are kept by a harmless documented weakness."""
        kept = [clause for clause, how in self.standings(column).items() if how is Standing.KEPT]
        return sum(any(each.at_limit for each in results(self.of(clause, column))) for clause in kept)

    def every(self) -> list[tuple[Column, Found]]:
        return [(column, each) for column in self.columns for cell in self._cells[column].values() for each in cell]


def results(found: Iterable[Found]) -> list[Result]:
    return [each.result for each in found]


def _by_clause(found: Iterable[Found]) -> dict[str, list[Found]]:
    table: dict[str, list[Found]] = {}
    for each in found:
        table.setdefault(each.result.clause, []).append(each)
    return table


# --- reading ----------------------------------------------------------------------------------------------------------


def open_book(paths: Sequence[Path]) -> Book:
    """Read and merge records. A damaged one is left out and named; if nothing is left, that is an error."""
    sources, damaged = [], []
    for path in paths:
        try:
            sources.append(read_source(path))
        except RecordError as error:
            damaged.append(str(error))
    if not sources:
        raise BadInput("there is no whole record to read: " + "; ".join(damaged))
    return Book(sources, damaged)


def read_source(path: Path) -> Source:
    """One conformance record, or the one in a folder; ``RecordError`` says what is wrong with it."""
    path = path / RECORD if path.is_dir() else path
    record = read(path)
    kind = record.header["of"]
    if kind != "conformance":
        raise RecordError(f"{path}: is a record of {kind}, not of conformance")
    footer = record.footer or {}
    fault = _misshapen(record.header, _HEADER) or _misshapen(footer, _FOOTER)
    if fault:
        raise RecordError(f"{path}: {fault}; was it written by another version of the suite?")
    try:
        found = tuple(_result(row) for row in record.rows)
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path}: {error}; was it written by another version of the suite?") from error
    return Source(path, record.header, footer, found)


#: What headers and footers of conformance records hold besides: the kind of the field, and of what is in it.
_HEADER: dict[str, tuple[type, type]] = {
    "subjects": (list, dict), "asked": (dict, object), "areas": (dict, str), "catalogue": (dict, dict),
    "deviations": (dict, list),
}  # fmt: skip
_FOOTER: dict[str, tuple[type, type]] = {"clauses": (list, str), "stale": (list, str), "part": (dict, list)}


def _misshapen(fields: Mapping[str, Any], shapes: Mapping[str, tuple[type, type]]) -> str:
    """The first field that is there and not what it should be."""
    for name, (outer, inner) in shapes.items():
        value = fields.get(name, outer())
        inside = value.values() if isinstance(value, dict) else value
        if not isinstance(value, outer) or not all(isinstance(each, inner) for each in inside):
            return f"its {name!r} is no {outer.__name__} as it should be"
    return ""


def _result(row: Mapping[str, Any]) -> Result:
    case = Case(row["check"], row["scenario"], row["subject"], row["backend"], row["world"])
    return Result(
        row["clause"], row["level"], case, Outcome(row["outcome"]), row["seconds"], row["witness"],
        str(row.get("detail", "")), tuple(map(str, row["notes"])), row["deviation"],
        str(row.get("schedule", "")),
    )  # fmt: skip
