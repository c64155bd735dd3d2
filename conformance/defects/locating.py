"""Where in impl a piece of text stands: the functions and methods whose source holds it."""

from __future__ import annotations

import ast
import functools
import importlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import impl

_HOME = Path(impl.__file__).parent


@dataclass(frozen=True)
class Place:
    """A function of a module, or a method of one of its classes."""

    module: str
    qualname: str
    source: str  # dedented, decorators included

    @property
    def called(self) -> str:
        return f"{self.module}.{self.qualname}"

    @property
    def name(self) -> str:
        return self.qualname.rpartition(".")[2]

    def is_called(self, ending: str) -> bool:
        """Whether the dotted name ends so; every name ends with nothing."""
        return not ending or f".{self.called}".endswith(f".{ending}")

    def owner(self) -> Any:
        """The module or class that defines it."""
        outer = self.qualname.split(".")[:-1]
        return functools.reduce(getattr, outer, importlib.import_module(self.module))


def holding(text: str, edited: Mapping[str, str]) -> list[Place]:
    """The places whose source holds ``text``; of those in ``edited`` (by full name) that source counts instead."""
    line = max((line.strip() for line in text.splitlines()), key=len, default="")
    own = [path for path, source in _files().items() if line in source]
    also = {_path_of(name) for name in edited}
    found = [place for path in {*own, *also} for place in _places(path)]
    return [place for place in found if text in edited.get(place.called, place.source)]


@functools.cache
def _files() -> dict[Path, str]:
    paths = sorted(path for path in _HOME.rglob("*.py") if "tests" not in path.parts)
    return {path: path.read_text(encoding="utf-8") for path in paths}


def _path_of(called: str) -> Path:
    names = {f"{_module(path)}.": path for path in _files()}
    return names[max((name for name in names if called.startswith(name)), key=len)]


def _module(path: Path) -> str:
    parts = path.relative_to(_HOME.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def _places(path: Path) -> tuple[Place, ...]:
    source = _files()[path]
    lines = source.splitlines(keepends=True)
    return tuple(_defined_in(ast.parse(source).body, _module(path), "", lines))


def _defined_in(body: Sequence[ast.stmt], module: str, outer: str, lines: Sequence[str]) -> Iterator[Place]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _defined_in(node.body, module, f"{outer}{node.name}.", lines)
        elif isinstance(node, ast.FunctionDef):
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            source = textwrap.dedent("".join(lines[start - 1 : node.end_lineno]))
            yield Place(module, f"{outer}{node.name}", source)
