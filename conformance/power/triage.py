"""What survivors are, as somebody has judged them: ``triage.toml`` maps identities to a class with its reason."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ..bad_input import BadInput

FILE = Path(__file__).with_name("triage.toml")
EQUIVALENT, PERFORMANCE, ACCELERATOR, GAP = "equivalent", "performance only", "accelerator only", "gap"
CLASSES = (EQUIVALENT, PERFORMANCE, ACCELERATOR, GAP)
UNTRIAGED = "not triaged"


@dataclass(frozen=True)
class Judged:
    """The class of a survivor and the reason for it."""

    kind: str
    reason: str = ""

    @property
    def counts(self) -> bool:
        """Whether the suite should have killed it: a gap, or nobody has said that it is none."""
        return self.kind in (GAP, UNTRIAGED)


def load(path: Path = FILE) -> dict[str, Judged]:
    """Every entry by identity, or by pattern of identities where a whole function is of one class."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from error
    found: dict[str, Judged] = {}
    for kind, entries in tables.items():
        if kind not in CLASSES:
            raise BadInput(f"{path}: there is no class {kind!r}; there are {', '.join(CLASSES)}")
        if not isinstance(entries, dict):
            raise BadInput(f"{path}: {kind} is {entries!r}; give a table, [{kind!r}], of identities with their reasons")
        for identity, reason in entries.items():
            if identity in found:
                raise BadInput(f"{path}: {identity!r} is of two classes, {found[identity].kind} and {kind}")
            if not isinstance(reason, str) or not reason.strip():
                raise BadInput(f"{path}: {identity!r} gives no reason")
            if kind in (EQUIVALENT, GAP) and "*" in identity:
                raise BadInput(f"{path}: {identity!r}: each {kind} mutant is judged by itself, not by a pattern")
            found[identity] = Judged(kind, reason)
    return found


def judged(identity: str, entries: Mapping[str, Judged]) -> Judged:
    """The entry of a survivor; its own goes before that of a pattern."""
    if identity in entries:
        return entries[identity]
    fitting = (entry for pattern, entry in entries.items() if "*" in pattern and fnmatchcase(identity, pattern))
    return next(fitting, Judged(UNTRIAGED))
