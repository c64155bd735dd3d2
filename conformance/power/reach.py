"""Which checks execute which statement of impl: found once per state of the sources, and asked for every mutant."""

from __future__ import annotations

import ast
import bisect
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from reports.records.lines import append, whole_lines

from ..results import Outcome
from . import marks
from .drawing import ROOT, Mutant

_SUITE = ("api", "checks", "engine", "fixtures", "ranks")  # what beside impl decides what a check executes


@dataclass(frozen=True)
class Mapped:
    """What one case executes on the sound implementation."""

    case: str
    outcome: str
    seconds: float
    marked: frozenset[int]

    @property
    def passes(self) -> bool:
        """Only such a case can kill: one that cannot be decided here, or stumbles over the marks, says nothing."""
        return self.outcome == Outcome.PASSED

    def row(self) -> dict[str, object]:
        size = max(self.marked, default=0) // 8 + 1
        bits = sum(1 << number for number in self.marked).to_bytes(size, "little").hex()
        return {"case": self.case, "outcome": self.outcome, "seconds": self.seconds, "marked": bits}

    @staticmethod
    def of_row(row: Mapping[str, object]) -> Mapped:
        bits = bytes.fromhex(str(row["marked"]))
        numbers = (8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1)
        return Mapped(str(row["case"]), str(row["outcome"]), float(str(row["seconds"])), frozenset(numbers))


class Reach:
    """Answers for a mutant: the cases that execute what it changes, the most telling first."""

    def __init__(self, sources: Mapping[str, str], mapped: Sequence[Mapped]) -> None:
        self._sources = sources
        self._places = marks.places(sources)
        self._numbers = {(at.file, at.line): number for number, at in enumerate(self._places) if not at.condition}
        self._mapped = [one for one in mapped if one.passes]
        self.useless = [one for one in mapped if not one.passes]

    def cases(self, mutant: Mutant) -> list[str]:
        """In order of their cost, times how much else they execute than the mutant's file."""
        wanted = self.concerned(mutant)
        file = self._of_file.get(mutant.file, frozenset())
        hit = [one for one in self._mapped if one.marked & wanted]
        order = {one.case: one.seconds * len(one.marked) / len(one.marked & (file | wanted)) for one in hit}
        return sorted(order, key=lambda case: (order[case], case))

    def unreached(self) -> list[marks.Place]:
        """The statements that no passing case executes, but for those that raise, and what no condition comes out as.

        A condition that no case comes to is left out: its statement is there, or one before it.
        """
        marked = frozenset().union(*(one.marked for one in self._mapped))
        lines = {file: source.splitlines() for file, source in self._sources.items()}
        met = {place[:3] for number, place in enumerate(self._places) if number in marked}
        missing = [place for number, place in enumerate(self._places) if number not in marked]
        return [
            place
            for place in missing
            if (place[:3] in met if place.condition else not _raises(lines[place.file][place.line - 1]))
        ]

    def concerned(self, mutant: Mutant) -> frozenset[int]:
        """The marks of what a mutant changes."""
        return frozenset(self._concerned(mutant))

    def _concerned(self, mutant: Mutant) -> Iterator[int]:
        """The statement itself; of one that only loading executes, those that show what it has made."""
        own = self._numbers.get((mutant.file, mutant.edit.statement))
        if own is not None:
            yield own
            return
        tree = ast.parse(mutant.source)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno == mutant.edit.statement:
                assert node.end_lineno is not None
                yield from self._between(mutant.file, node.lineno, node.end_lineno)
                return
        for name in _made(tree, mutant.edit.statement):
            yield from self._naming(name)

    def _between(self, file: str, first: int, last: int) -> Iterator[int]:
        return (number for (path, line), number in self._numbers.items() if path == file and first <= line <= last)

    def _naming(self, name: str) -> Iterator[int]:
        """The statements whose lines hold this name."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        for file, source in self._sources.items():
            lines = self._lines[file]
            for at, text in enumerate(source.splitlines(), 1):
                if lines and lines[0] <= at and word.search(text):
                    yield self._numbers[file, lines[bisect.bisect_right(lines, at) - 1]]

    @cached_property
    def _lines(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {file: [] for file in self._sources}
        for file, line in self._numbers:
            found[file].append(line)
        return found

    @cached_property
    def _of_file(self) -> dict[str, frozenset[int]]:
        return {file: frozenset(self._numbers[file, line] for line in lines) for file, lines in self._lines.items()}


def _raises(line: str) -> bool:
    return line.strip().startswith("raise ")


def _made(tree: ast.Module, line: int) -> Iterator[str]:
    """The names that a statement of a module or class gives something to, and the name of that class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(each.lineno == line for each in node.body):
            yield node.name
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.lineno == line:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


class Store:
    """The file in which the map of one state of the sources grows, a case on each line."""

    def __init__(self, folder: Path, sources: Mapping[str, str], root: Path = ROOT) -> None:
        self.digest = digest(sources, root)
        self._path = folder / f"reach-{self.digest}.jsonl"

    def load(self) -> dict[str, Mapped]:
        """What is known by case. A line that was cut off is left out."""
        found: dict[str, Mapped] = {}
        for row in whole_lines(self._path):
            try:
                one = Mapped.of_row(row)
            except (ValueError, KeyError, TypeError):
                continue
            found[one.case] = one
        return found

    def add(self, one: Mapped) -> None:
        append(self._path, one.row())


def digest(sources: Mapping[str, str], root: Path = ROOT) -> str:
    """A name for this state of impl and of what runs the checks."""
    made = hashlib.sha256()
    for file, source in sorted(sources.items()):
        made.update(f"{file}\0{source}\0".encode())
    for path in sorted(path for part in _SUITE for path in (root / "conformance" / part).rglob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()[:12]
