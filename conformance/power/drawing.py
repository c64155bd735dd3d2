"""Mutants of impl: every edit that its files allow, their identities and diffs, and a draw over lines by a seed.

A draw shuffles the lines that allow an edit, so a larger one with the same seed begins with the smaller one; of each
line it takes one operator and one of its edits. Identity: ``impl/ddp/plan.py:Planner.plan:condition negated:2``. It
outlives changes elsewhere in the file, and in the function unless they come before it and concern the same operator.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import operators
from .operators import Edit

ROOT = Path(__file__).parents[2]
PACKAGE = "impl"
VARIABLE = "CONFORMANCE_MUTANT"  # of the environment: the mutant that ``mutated`` makes a subject of
SUBJECT = "conformance.power.mutated:subject"
#: what a rate is reported for; a file belongs to the first that its path begins with
PARTS = {
    "hooks": "impl/ddp/hooks/", "ddp": "impl/ddp/", "join": "impl/join/", "zero": "impl/zero/",
    "overlap": "impl/overlap/", "comm": "impl/comm/",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One edit of one file."""

    file: str  # relative to the repository, with slashes
    edit: Edit
    source: str  # of the file, before

    @property
    def id(self) -> str:
        return f"{self.file}:{self.edit.function}:{self.edit.operator}:{self.edit.ordinal}"

    @property
    def part(self) -> str:
        return next((name for name, start in PARTS.items() if self.file.startswith(start)), "comm")

    @cached_property
    def mutated(self) -> str:
        return self.edit.applied(self.source)

    @property
    def diff(self) -> str:
        """The changed lines, without the file's name."""
        lines = difflib.unified_diff(self.source.splitlines(), self.mutated.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


class Pool:
    """Every mutant of a set of sources."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    @staticmethod
    def of_impl() -> Pool:
        """Of the implementation, without its tests."""
        return Pool(read())

    @cached_property
    def by_line(self) -> dict[tuple[str, int], list[Mutant]]:
        found: dict[tuple[str, int], list[Mutant]] = {}
        for file in self.sources:
            for mutant in self.of_file(file):
                found.setdefault((file, mutant.edit.line), []).append(mutant)
        return found

    def of_file(self, file: str) -> list[Mutant]:
        """Every mutant of one file."""
        source = self.sources[file]
        return [Mutant(file, edit, source) for edit in operators.edits(source)]

    def draw(self, seed: int) -> Iterator[Mutant]:
        """Mutants of different lines in an order that the seed fixes, as many as there are lines."""
        chance = random.Random(seed)
        lines = sorted(self.by_line)
        chance.shuffle(lines)
        for line in lines:
            mutant = self._of_line(self.by_line[line], chance)
            if mutant is not None:
                yield mutant

    def _of_line(self, mutants: list[Mutant], chance: random.Random) -> Mutant | None:
        """One of a line: first which operator, so that one with many edits does not crowd out the others."""
        left = list(mutants)
        while left:
            name = chance.choice(sorted({mutant.edit.operator for mutant in left}))
            mutant = chance.choice([mutant for mutant in left if mutant.edit.operator == name])
            if operators.is_sound(mutant.edit, mutant.source):
                return mutant
            left.remove(mutant)
        return None

    def named(self, identity: str) -> Mutant | None:
        """The mutant of that identity, if the sources still allow it."""
        file = identity.partition(":")[0]
        own = self.of_file(file) if file in self.sources else []
        return next((mutant for mutant in own if mutant.id == identity), None)


def read() -> dict[str, str]:
    """The sources of impl by path, without its tests."""
    home = ROOT / PACKAGE
    paths = [path for path in sorted(home.rglob("*.py")) if "tests" not in path.relative_to(home).parts]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
