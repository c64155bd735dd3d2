"""The planted defects as their files declare them, read from the syntax tree: listing them imports no torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..bad_input import BadInput

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sin:
    """One planted defect."""

    area: str
    name: str
    sentence: str
    clauses: tuple[str, ...]
    worlds: tuple[int, ...]  # empty: two ranks, or as few as a check needs

    @property
    def id(self) -> str:
        """As users write it: ``ddp/divides_by_one_too_many``."""
        return f"{self.area}/{self.name}"

    @property
    def attribute(self) -> str:
        """As a name of Python: ``ddp__divides_by_one_too_many``."""
        return f"{self.area}__{self.name}"

    @property
    def spec(self) -> str:
        """The defective subject."""
        return f"{__package__}.planted:{self.attribute}"


def load(folder: Path = HERE) -> list[Sin]:
    """Every defect of ``folder``, in order of area and name."""
    return [_read(path) for path in sorted(folder.glob("*/*.py")) if path.name != "__init__.py"]


def select(patterns: Sequence[str], known: Iterable[Sin]) -> list[Sin]:
    """The defects that some pattern matches, by id or by a clause; each pattern must match something."""
    known = list(known)
    for pattern in patterns:
        if not any(_matches(sin, pattern) for sin in known):
            raise BadInput(f"pattern {pattern!r} matches no planted defect; give an id such as ddp/* or a clause")
    return [sin for sin in known if any(_matches(sin, pattern) for pattern in patterns)]


def _matches(sin: Sin, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (sin.id, *sin.clauses))


def _read(path: Path) -> Sin:
    where = f"defect {path.parent.name}/{path.stem}"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise BadInput(f"{where} is no Python: {error}") from error
    sentence = ast.get_docstring(tree)
    if not sentence:
        raise BadInput(f"{where} does not say its sin; begin it with one sentence as the docstring")
    said = {name: value for node in tree.body for name, value in _constants(node)}
    clauses, worlds = said.get("CLAUSES"), said.get("WORLDS")
    if clauses is None or not _is_tuple_of(str, clauses):
        raise BadInput(f'{where} needs CLAUSES = ("DDP-049", …): a literal tuple of the clauses that must catch it')
    if worlds is not None and not _is_tuple_of(int, worlds):
        raise BadInput(f"{where}: WORLDS must be a literal tuple of numbers of ranks, such as (2, 3)")
    return Sin(path.parent.name, path.stem, " ".join(sentence.split()), clauses, worlds or ())


def _constants(node: ast.stmt) -> Iterable[tuple[str, Any]]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        try:
            yield node.targets[0].id, ast.literal_eval(node.value)
        except ValueError:
            return


def _is_tuple_of(kind: type, value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(each) is kind for each in value)
