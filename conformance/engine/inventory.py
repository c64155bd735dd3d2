"""The checks as their source declares them: read from the syntax tree, so that listing them imports no torch.

What is read here is what ``@check(...)`` says literally. A meta test compares it with what the imported checks say.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKS = Path(__file__).parents[1] / "checks"


@dataclass(frozen=True)
class Declared:
    """One check: a test function that carries ``@check``."""

    name: str
    file: Path
    line: int
    clauses: tuple[str, ...]
    worlds: str  # as written: "(2, 3, 4)" or "MANY"; empty for the default
    backends: str
    scenarios: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What the check says, read from its name."""
        return self.name.removeprefix("test_").replace("_", " ")


def declared(folder: Path = CHECKS) -> list[Declared]:
    """Every check of the files ``test_*.py`` under ``folder`` (or of one file), in order of file and line."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("test_*.py"))
    return [found for file in files for found in _in_file(file) or ()]


def files_of(folder: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """The files with a check of a wanted clause, and those that cannot be read: running them says what is wrong."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("test_*.py"))
    return [file for file in files if _cites(_in_file(file), wanted)]


def _cites(checks: Sequence[Declared] | None, wanted: Callable[[str], bool]) -> bool:
    return checks is None or any(wanted(clause) for found in checks for clause in found.clauses)


def by_clause(checks: Sequence[Declared]) -> dict[str, list[Declared]]:
    """The checks that cite each clause."""
    table: dict[str, list[Declared]] = {}
    for found in checks:
        for clause in found.clauses:
            table.setdefault(clause, []).append(found)
    return table


def _in_file(file: Path) -> Sequence[Declared] | None:
    """The checks of one file; None if it cannot be read.

    Running the checks reports that with its place; a listing of the others is still of use.
    """
    try:
        return _in_text(file, file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return None


@functools.cache  # asked for several times in a run, and the first time takes a second
def _in_text(file: Path, text: str) -> Sequence[Declared]:
    return [
        _declared(node, decorator, file)
        for node in _functions(ast.parse(text).body)
        for decorator in node.decorator_list
        if _is_check(decorator)
    ]


def _functions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """The functions of a module and of its classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body)


def _is_check(decorator: ast.expr) -> bool:
    if not isinstance(decorator, ast.Call):
        return False
    target = decorator.func
    return (isinstance(target, ast.Name) and target.id == "check") or (
        isinstance(target, ast.Attribute) and target.attr == "check"
    )


def _declared(node: ast.FunctionDef, call: ast.expr, file: Path) -> Declared:
    assert isinstance(call, ast.Call)
    clauses = tuple(arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))
    said = {keyword.arg: keyword.value for keyword in call.keywords}
    scenarios = said.get("scenarios")
    keys = scenarios.keys if isinstance(scenarios, ast.Dict) else []
    names = tuple(ast.unparse(key).strip("'\"") for key in keys if key)
    return Declared(
        node.name, file, node.lineno, clauses, _unparsed(said.get("worlds")), _unparsed(said.get("backends")), names
    )


def _unparsed(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)
