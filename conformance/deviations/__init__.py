r"""Known deviations: which broken clauses of a subject are no news, under which conditions, and why.

A file is TOML with ``[[deviation]]`` tables::

    [[deviation]]
    clause  = "JOIN-038"              # id, or a pattern such as "ZERO-0*"
    check   = "test_after_*"          # optional: only these checks
    scenario = "rank 0 *"             # optional: only these scenarios
    worlds  = [2, 3]                  # optional: only these world sizes
    torch   = ">=2.13,<2.14"          # optional: only under these versions of torch
    backend = "gloo"                  # optional: only on this backend
    outcome = "hung"                  # failed, hung, crashed or any (default): "any" where it differs from run to run
    witness = 'ranks \d+ hung'        # a regular expression that the witness, one line, must hold: see below
    reason  = "one sentence"
    link    = "https://…"             # optional

The witness is what tells the known break from another one in the same check. Take the check's own words, or the class
of an error and a few words of it; leave out what differs from run to run (addresses, which rank fails first) and from
release to release (line numbers). It is optional in a file of one's own, and demanded of the suite's own lists.

The file ``<name>.toml`` beside this one belongs to the built-in subject of that name. A file of one's own may say
``subject = "name"`` at its top. ``limits = ["text", …]`` at the top of a built-in one names all that the subject may
show without breaking anything: notes of checks that pass at a limit, and why others do not apply; see
``engine/limits.py``. A deviation that no longer shows is an error of the list: see ``stale``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from ..bad_input import BadInput
from ..results import Case, Result

HERE = Path(__file__).parent
OUTCOMES = ("failed", "hung", "crashed", "any")
_TEXTS = ("clause", "check", "scenario", "torch", "backend", "outcome", "witness", "reason", "link")


class DeviationError(BadInput):
    """A file of deviations that cannot be used; the text says where and what to do."""


@dataclass(frozen=True)
class Deviation:
    """One known way in which a subject breaks a clause."""

    clause: str
    reason: str
    check: str = "*"
    scenario: str = "*"
    worlds: tuple[int, ...] = ()  # empty: any
    torch: str = ""  # version condition; empty: any
    backend: str = ""  # empty: any
    outcome: str = "any"
    witness: str = ""  # regular expression; empty: any
    link: str = ""
    place: str = ""  # file and number in it, for messages

    def holds_for(self, torch_version: str) -> bool:
        """Whether the condition on torch's version is met (a local part such as ``+cpu`` does not count)."""
        public = Version(torch_version).public
        return not self.torch or SpecifierSet(self.torch).contains(public, prereleases=True)

    def covers(self, result: Result) -> bool:
        """Whether this is about the clause and case of the result, whatever its outcome was."""
        return self.concerns(result.clause, result.case)

    def concerns(self, clause: str, case: Case) -> bool:
        """Whether this is about the clause in this case."""
        return (
            fnmatchcase(clause, self.clause)
            and fnmatchcase(case.check, self.check)
            and fnmatchcase(case.scenario, self.scenario)
            and (not self.worlds or case.world in self.worlds)
            and (not self.backend or case.backend == self.backend)
        )

    def explains(self, result: Result) -> bool:
        """Whether the result is broken in exactly the way that this says."""
        return (
            result.broken
            and self.covers(result)
            and self.outcome in ("any", str(result.outcome))
            and re.search(self.witness, result.witness) is not None
        )

    def __str__(self) -> str:
        limits = [f"check {self.check}"] if self.check != "*" else []
        limits += [f"worlds {', '.join(map(str, self.worlds))}"] if self.worlds else []
        return " · ".join([self.clause, *limits, self.outcome])


@dataclass(frozen=True)
class DeviationFile:
    """The deviations of one file and, if it says so, whose they are."""

    subject: str
    deviations: tuple[Deviation, ...]
    limits: tuple[str, ...] | None = None  # None: nobody has listed them


def built_in(subject: str, folder: Path = HERE) -> tuple[Deviation, ...]:
    """The deviations that the suite itself lists for a built-in subject."""
    path = folder / f"{subject}.toml"
    return load(path).deviations if path.is_file() else ()


def load(path: Path) -> DeviationFile:
    """Read and check a file of deviations."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DeviationError(f"there is no file of deviations at {path}; correct the path") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DeviationError(f"{path}: cannot be read as TOML: {error}") from error
    unknown = sorted(set(data) - {"subject", "deviation", "limits"})
    if unknown:
        raise DeviationError(f"{path}: unknown key {unknown[0]!r}; there is subject, limits, and [[deviation]] tables")
    subject, tables = data.get("subject", ""), data.get("deviation", [])
    if not isinstance(subject, str):
        raise DeviationError(f"{path}: subject must be the name of a subject, not {subject!r}")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DeviationError(f"{path}: deviations are written as [[deviation]] tables")
    return DeviationFile(
        subject, tuple(_read(table, path, number) for number, table in enumerate(tables, 1)), _limits(data, path)
    )


def _limits(data: dict[str, Any], path: Path) -> tuple[str, ...] | None:
    limits = data.get("limits")
    if limits is None:
        return None
    if not isinstance(limits, list) or not all(isinstance(text, str) for text in limits):
        raise DeviationError(f"{path}: limits must be a list of texts, not {limits!r}")
    return tuple(limits)


def _read(table: dict[str, Any], path: Path, number: int) -> Deviation:
    where = f"{path}: deviation {number} ({table.get('clause', 'no clause')})"
    unknown = sorted(set(table) - {*_TEXTS, "worlds"})
    if unknown:
        raise DeviationError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join([*_TEXTS, 'worlds'])}")
    for key in ("clause", "reason"):
        if key not in table:
            raise DeviationError(f"{where}: {key} is missing")
    for key in _TEXTS:
        if key in table and not (isinstance(table[key], str) and table[key].strip()):
            raise DeviationError(f"{where}: {key} must be a non-empty text, not {table[key]!r}")
    if table.get("outcome", "any") not in OUTCOMES:
        raise DeviationError(f"{where}: outcome {table['outcome']!r} is none of {', '.join(OUTCOMES)}")
    try:
        SpecifierSet(table.get("torch", ""))
    except InvalidSpecifier as error:
        condition = f"torch = {table['torch']!r} is no version condition such as '>=2.11,<3'"
        raise DeviationError(f"{where}: {condition}") from error
    try:
        re.compile(table.get("witness", ""))
    except re.error as error:
        raise DeviationError(f"{where}: witness = {table['witness']!r} is no regular expression: {error}") from error
    texts = {key: table[key] for key in _TEXTS if key in table}
    return Deviation(**texts, worlds=_worlds(table, where), place=f"{path.name}, deviation {number}")


def _worlds(table: dict[str, Any], where: str) -> tuple[int, ...]:
    worlds = table.get("worlds", [])
    whole = isinstance(worlds, list) and all(type(world) is int and world > 0 for world in worlds)
    if not whole or ("worlds" in table and not worlds):
        raise DeviationError(f"{where}: worlds must be a list of whole numbers above 0, not {worlds!r}")
    return tuple(worlds)


def excuse(result: Result, deviations: Sequence[Deviation]) -> Result:
    """Mark a broken result that a deviation explains; other results stay as they are."""
    reason = next((deviation.reason for deviation in deviations if deviation.explains(result)), "")
    return result.excused(reason) if reason else result


__all__ = ["HERE", "OUTCOMES", "Deviation", "DeviationError", "DeviationFile", "built_in", "excuse", "load"]
