"""Mutants that somebody wrote: a name, a file of impl, a text that stands there once, and another in its place.

    [[mutant]]
    id = "the divisor"
    file = "impl/comm/averaging.py"
    before = "bits <= 16"
    after = "bits <= 32"

Further keys (who wrote it, what it breaks) are left to the reader. Where one mutant is asked for, it is ``FILE#ID``.
"""

from __future__ import annotations

import ast
import itertools
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..bad_input import BadInput
from .drawing import Mutant
from .operators import Edit, is_sound

NAMED = "#"  # between the path of a file and the id of one of its mutants
_HOLDING = (ast.stmt, ast.excepthandler)  # what holds statements, and has lines
_KEYS = ("id", "file", "before", "after")


def load(path: Path, sources: Mapping[str, str]) -> list[Mutant]:
    """The mutants of a file, in its order; raises ``BadInput`` naming the entry that cannot be one."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise BadInput(f"{path}: holds no mutant; give each a table [[mutant]] with {', '.join(_KEYS)}")
    found = [_made(f"{path}, mutant {number}", entry, sources) for number, entry in enumerate(entries, 1)]
    if len({mutant.id for mutant in found}) < len(found):
        raise BadInput(f"{path}: two mutants are the same")
    return found


def named(identity: str, sources: Mapping[str, str]) -> Mutant | None:
    """The mutant that ``FILE#ID`` names, if the file holds it."""
    file, _, name = identity.partition(NAMED)
    return next((mutant for mutant in load(Path(file), sources) if mutant.edit.operator == name), None)


def _made(where: str, entry: Any, sources: Mapping[str, str]) -> Mutant:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in _KEYS):
        raise BadInput(f"{where}: needs {', '.join(_KEYS)}, each a text")
    name, file, before, after = (entry[key] for key in _KEYS)
    where = f"{where} ({name})"
    if file not in sources:
        raise BadInput(f"{where}: {file!r} is no file of impl")
    source = sources[file]
    if (times := source.count(before)) != 1:
        raise BadInput(f"{where}: `before` stands {times} times in {file}; give a text that stands there once")
    start = source.index(before)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    changed = before[same:].lstrip()  # what is left out behind a line is of the next one
    line = source.count("\n", 0, start + len(before) - len(changed)) + 1
    statement, function = _place(ast.parse(source), line)
    number = zlib.crc32(after.encode())  # reworded, it is another mutant
    mutant = Mutant(file, Edit(name, start, start + len(before), after, line, statement, function, number), source)
    if not is_sound(mutant.edit, source):
        raise BadInput(f"{where}: leaves no program of Python, or the same one")
    return mutant


def _place(tree: ast.Module, line: int) -> tuple[int, str]:
    """The first line of the innermost statement on a line, and the qualified name of the function that holds it."""
    at, names = line, list[str]()
    inner: list[ast.stmt | ast.excepthandler] = [*tree.body]
    while inner:
        node = inner.pop(0)
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        if not first <= line <= (node.end_lineno or line):
            continue
        if isinstance(node, ast.stmt):
            at = node.lineno
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, _HOLDING)]
    return at, ".".join(names)
