"""Which statements of impl a process executes, and how its conditions come out: its sources with marks in functions.

A mark is one byte of a file that all ranks of a check map into memory, so marks outlive a rank that is killed, count on
whichever thread they are made (autograd's and Gloo's too, which no trace function of Python reaches), and cost about as
much as a subscript. One stands before every statement, and two for every condition, one for each way that it can go;
``a and b`` are two conditions. Those that guard a ``raise`` have none.
"""

from __future__ import annotations

import ast
import builtins
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

NAME = "__marks__"  # of the map, among the builtins
_WENT = "__went__"  # of the function that marks how a condition came out
_MOST = 80  # characters of a condition


class Place(NamedTuple):
    """Where a mark is made."""

    file: str
    line: int  # the first of the statement, or of the condition
    condition: str = ""  # its text; empty: the statement itself
    comes_out: bool = True

    @property
    def way(self) -> str:
        """The condition and how it comes out here; empty for a statement."""
        return f"{self.condition!r} is {self.comes_out}" if self.condition else ""


def places(sources: Mapping[str, str]) -> list[Place]:
    """All of them, in the order of their numbers."""
    return [place for file, source in sources.items() for place in _Marked(file, source).places]


def marked(sources: Mapping[str, str]) -> dict[str, str]:
    """The sources with their marks. Lines move, which is of no concern here: a mark knows its number."""
    found: dict[str, str] = {}
    first = 0
    for file, source in sources.items():
        one = _Marked(file, source)
        found[file] = one.text(first)
        first += len(one.places)
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
        setattr(builtins, _WENT, self._went)

    def taken(self) -> list[int]:
        """The numbers that were marked since the last time."""
        found = [number for number, byte in enumerate(self._map[:]) if byte]
        self._map[:] = bytes(len(self._map))
        return found

    def _went(self, value: Any, number: int) -> Any:
        self._map[number if value else number + 1] = 1
        return value


class _Marked:
    """One file and where it is marked."""

    def __init__(self, file: str, source: str) -> None:
        self._tree = ast.parse(source)
        functions = list(_functions(self._tree))
        self._blocks = [block for function in functions for block in _blocks(function)]
        lines = {each.lineno for block in self._blocks for at, each in enumerate(block) if not _is_passive(each, at)}
        self._lines = {line: number for number, line in enumerate(sorted(lines))}
        self._conditions = [held for function in functions for held in _conditions(function)]
        self.places = [Place(file, line) for line in self._lines]
        for holder, key in self._conditions:
            text = " ".join(ast.unparse(holder[key]).split())[:_MOST]
            self.places += [Place(file, holder[key].lineno, text, way) for way in (True, False)]

    def text(self, first: int) -> str:
        """The source with its marks, the numbers of which begin with ``first``. To be asked for once."""
        for at, (holder, key) in enumerate(self._conditions):
            number = ast.Constant(first + len(self._lines) + 2 * at)
            holder[key] = ast.Call(ast.Name(_WENT, ast.Load()), [holder[key], number], [])
        for block in self._blocks:
            block[:] = self._with_marks(block, first)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef):  # results that are kept would be marked by the first case only
                node.decorator_list = [each for each in node.decorator_list if not _keeps_results(each)]
        return ast.unparse(ast.fix_missing_locations(self._tree))

    def _with_marks(self, block: Sequence[ast.stmt], first: int) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for at, statement in enumerate(block):
            if not _is_passive(statement, at):
                (mark,) = ast.parse(f"{NAME}[{first + self._lines[statement.lineno]}] = 1").body
                found.append(mark)
            found.append(statement)
        return found


def _is_passive(statement: ast.stmt, at: int) -> bool:
    """Whether nothing may stand before it, or nothing happens in it: a docstring, a word to the compiler."""
    docstring = at == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return docstring or isinstance(statement, ast.Global | ast.Nonlocal)


def _keeps_results(decorator: ast.expr) -> bool:
    """Whether it is one of functools' caches."""
    made_by = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(made_by).removeprefix("functools.") in ("cache", "lru_cache")


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    """The outermost functions and methods."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _functions(child)


def _blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements in a function, nested ones too."""
    for node in ast.walk(function):
        if isinstance(node, ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


_Held = tuple[Any, Any]  # a list or a node's attributes, and which of them


def _conditions(function: ast.AST) -> list[_Held]:
    """Where the conditions in a function are held, nested ones too, each once."""
    found: dict[tuple[int, Any], _Held] = {}
    guards = {id(part) for node in ast.walk(function) if _only_raises(node) for part in ast.walk(node.test)}
    for node in ast.walk(function):
        for holder, key in _tests(node) if id(node) not in guards and not _only_raises(node) else ():
            found.setdefault((id(holder), key), (holder, key))
    return list(found.values())


def _only_raises(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)


def _tests(node: ast.AST) -> Iterator[_Held]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _parts(vars(node), "test")
    elif isinstance(node, ast.comprehension):
        for at in range(len(node.ifs)):
            yield from _parts(node.ifs, at)
    elif isinstance(node, ast.BoolOp):
        for at in range(len(node.values) - 1):  # the last is the result, and need have no truth value
            yield from _parts(node.values, at)


def _parts(holder: Any, key: Any) -> Iterator[_Held]:
    """The conditions of which one is made by ``and``, ``or`` and ``not``."""
    held = holder[key]
    if isinstance(held, ast.BoolOp):
        for at in range(len(held.values)):
            yield from _parts(held.values, at)
    elif isinstance(held, ast.UnaryOp) and isinstance(held.op, ast.Not):
        yield from _parts(vars(held), "operand")
    elif not isinstance(held, ast.Constant):
        yield holder, key
