"""Anchors: is the phrase that a clause rests on still in the documentation of the installed torch?

Docstrings are read from the source files, without importing torch; an object that has no Python source is imported.
A clause that is newer than that torch (``since``) has no phrase there yet.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterable
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

from packaging.version import Version

from . import Clause


def stale(clauses: Iterable[Clause], torch_version: str = "") -> dict[str, str]:
    """For each clause of this torch (the installed one if empty) whose anchor cannot be found: its id and why."""
    there = Version(torch_version or metadata.version("torch"))
    old_enough = (clause for clause in clauses if not clause.since or Version(clause.since) <= there)
    problems = ((clause.id, fault(clause)) for clause in old_enough if clause.anchor)
    return {clause_id: problem for clause_id, problem in problems if problem}


def fault(clause: Clause) -> str | None:
    """What is wrong with one clause's anchor; None if its phrase is where it should be."""
    try:
        text = docstring(clause.anchor_in)
    except LookupError as error:
        return str(error)
    if _normal(clause.anchor) in _normal(text):
        return None
    return f"the docstring of {clause.anchor_in} no longer says {clause.anchor!r}"


@cache
def docstring(dotted: str) -> str:
    """The docstring of a module, class, function or method; LookupError says why there is none."""
    from_source = _from_source(dotted)
    return from_source if from_source is not None else _from_import(dotted)


def _from_source(dotted: str, depth: int = 0) -> str | None:
    """Find the docstring in the source files; None if it is not to be had that way."""
    module, rest = _module_of(dotted)
    if module is None or depth > 5:
        return None
    tree = _tree(module)
    node: ast.AST = tree
    for index, name in enumerate(rest):
        found = _member(node, name)
        if found is not None:
            node = found
            continue
        moved = _imported_from(tree, name, module) if node is tree else None
        return _from_source(".".join([moved, *rest[index + 1 :]]), depth + 1) if moved else None
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node)
    return None


def _module_of(dotted: str) -> tuple[Path | None, list[str]]:
    """The source file of the longest part of the name that is a module, and the names inside it."""
    head, *tail = dotted.split(".")
    try:
        spec = importlib.util.find_spec(head)  # a top-level name: nothing is imported
    except (ImportError, ValueError):
        return None, []
    if spec is None or not spec.origin or not spec.submodule_search_locations:
        return None, []
    folder, file = Path(spec.origin).parent, Path(spec.origin)
    while tail:
        package, module = folder / tail[0] / "__init__.py", folder / f"{tail[0]}.py"
        if package.is_file():
            folder, file = package.parent, package
        elif module.is_file():
            return module, tail[1:]
        else:
            break
        tail = tail[1:]
    return file, tail


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _member(node: ast.AST, name: str) -> ast.AST | None:
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
            return child
    return None


def _imported_from(tree: ast.Module, name: str, file: Path) -> str | None:
    """The dotted name that ``name`` was imported from at the top of a file."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    base = _base(file, node.level) if node.level else ""
                    return ".".join(part for part in (base, node.module, alias.name) if part)
    return None


def _base(file: Path, level: int) -> str:
    """The package that a relative import of this level starts from."""
    folder = file.parent
    for _ in range(level - 1):
        folder = folder.parent
    parts: list[str] = []
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _from_import(dotted: str) -> str:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                raise LookupError(f"{dotted} is gone: {'.'.join(parts[:cut])} has no {name}")
            found = getattr(found, name)
        text = inspect.getdoc(found)
        if not text:
            raise LookupError(f"{dotted} has no docstring")
        return text
    raise LookupError(f"{dotted} is gone: no part of the name can be imported")


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()
