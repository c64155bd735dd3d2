"""The planted defects as their files declare them, read from the syntax tree: listing them imports no torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..bad_input import BadInput

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Defect:
    """One planted defect."""

    area: str
    module: str
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
        """As a name of Python, with the module it stands in: ``ddp__gradients__divides_by_one_too_many``."""
        return f"{self.area}__{self.module}__{self.name}"

    @property
    def spec(self) -> str:
        """The defective subject."""
        return f"{__package__}.planted:{self.attribute}"


def load(folder: Path = HERE) -> list[Defect]:
    """Every defect of ``folder``, in order of area and name."""
    paths = [path for path in sorted(folder.glob("*/*.py")) if path.name != "__init__.py"]
    return sorted((defect for path in paths for defect in _read(path)), key=lambda defect: (defect.area, defect.name))


def select(patterns: Sequence[str], known: Iterable[Defect]) -> list[Defect]:
    """The defects that some pattern matches, by id or by a clause; each pattern must match something."""
    known = list(known)
    for pattern in patterns:
        if not any(_matches(defect, pattern) for defect in known):
            raise BadInput(f"pattern {pattern!r} matches no planted defect; give an id such as ddp/* or a clause")
    return [defect for defect in known if any(_matches(defect, pattern) for pattern in patterns)]


def _matches(defect: Defect, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (defect.id, *defect.clauses))


def _read(path: Path) -> Iterator[Defect]:
    where = f"{path.parent.name}/{path.name}"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise BadInput(f"{where} is no Python: {error}") from error
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "defect":
                    yield _declared(path, node, decorator)


def _declared(path: Path, node: ast.FunctionDef, decorator: ast.Call) -> Defect:
    where = f"defect {path.parent.name}/{node.name}"
    sentence = ast.get_docstring(node)
    if not sentence:
        raise BadInput(f"{where} does not say its mistake; begin it with one sentence as the docstring")
    clauses = _literal(ast.Tuple(decorator.args, ast.Load()))
    worlds = _literal(next((each.value for each in decorator.keywords if each.arg == "worlds"), None)) or None
    if not _is_tuple_of(str, clauses):
        raise BadInput(f'{where} needs @defect("DDP-049", …): literally, the clauses that must catch it')
    if worlds is not None and not _is_tuple_of(int, worlds):
        raise BadInput(f"{where}: worlds must be a literal tuple of numbers of ranks, such as (2, 3)")
    return Defect(path.parent.name, path.stem, node.name, " ".join(sentence.split()), clauses, worlds or ())


def _literal(node: ast.expr | None) -> Any:
    """What an expression says; None if that is not written out."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _is_tuple_of(kind: type, value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(each) is kind for each in value)
