"""The listed deviations of torch that a smallest failing program shows, found by what the program chooses."""

from __future__ import annotations

from .program import Program

#: By clause: choices that a program must have for its failure to be the listed one; any of several sets.
LISTED: dict[str, list[dict[str, str]]] = {}


def listed(program: Program, subject: str) -> list[str]:
    """The clauses whose listed deviation explains the failure of a program."""
    if subject != "torch":
        return []
    return [clause for clause, patterns in LISTED.items() if any(_fits(program, pattern) for pattern in patterns)]


def _fits(program: Program, pattern: dict[str, str]) -> bool:
    return all(program.has(axis) if values == "*" else program[axis] in values.split(" | ")
               for axis, values in pattern.items())  # fmt: skip
