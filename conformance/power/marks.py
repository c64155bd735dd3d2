"""Which statements of impl a process executes: its sources with a mark before every statement of a function.

A mark is one byte of a file that all ranks of a check map into memory, so marks outlive a rank that is killed, count on
whichever thread they are made (autograd's and Gloo's too, which no trace function of Python reaches), and cost about as
much as a subscript.
"""

from __future__ import annotations

import ast
import builtins
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

NAME = "__marks__"  # of the map, among the builtins
Statement = tuple[str, int]  # file and first line


def statements(sources: Mapping[str, str]) -> list[Statement]:
    """Every statement of every function, in the order of their numbers."""
    return [(file, line) for file, source in sources.items() for line in sorted(_lines(ast.parse(source)))]


def marked(sources: Mapping[str, str]) -> dict[str, str]:
    """The sources with their marks. Lines move, which is of no concern here: a mark knows its number."""
    numbers = {statement: number for number, statement in enumerate(statements(sources))}
    found: dict[str, str] = {}
    for file, source in sources.items():
        tree = ast.parse(source)
        for node in _functions(tree):
            for block in _blocks(node):
                block[:] = _with_marks(block, file, numbers)
        found[file] = ast.unparse(ast.fix_missing_locations(tree))
    return found


class Map:
    """The file of marks as one process sees it."""

    def __init__(self, path: Path, size: int, *, new: bool = False) -> None:
        if new:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def install(self) -> None:
        """Have marked code of this process write here."""
        setattr(builtins, NAME, self._map)

    def taken(self) -> list[int]:
        """The numbers that were marked since the last time."""
        found = [number for number, byte in enumerate(self._map[:]) if byte]
        self._map[:] = bytes(len(self._map))
        return found


def _with_marks(block: Sequence[ast.stmt], file: str, numbers: Mapping[Statement, int]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for at, statement in enumerate(block):
        if not _is_passive(statement, at):
            (mark,) = ast.parse(f"{NAME}[{numbers[file, statement.lineno]}] = 1").body
            found.append(mark)
        found.append(statement)
    return found


def _is_passive(statement: ast.stmt, at: int) -> bool:
    """Whether nothing may stand before it, or nothing happens in it: a docstring, a word to the compiler."""
    docstring = at == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return docstring or isinstance(statement, ast.Global | ast.Nonlocal)


def _lines(tree: ast.Module) -> set[int]:
    blocks = [block for node in _functions(tree) for block in _blocks(node)]
    return {each.lineno for block in blocks for at, each in enumerate(block) if not _is_passive(each, at)}


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The outermost functions and methods."""
    found: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(child)
        else:
            found += _functions(child)
    return found


def _blocks(function: ast.AST) -> list[list[ast.stmt]]:
    """Every list of statements in a function, nested ones too."""
    found: list[list[ast.stmt]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                found.append(block)
    return found
