"""impl loaded anew from changed sources: as if its files said so, in this process and in those forked from it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ..subjects import impl as ours
from .drawing import PACKAGE, ROOT
from .marks import Map


class Stillborn(RuntimeError):
    """The changed sources cannot be loaded: no program is wrong in that way for long."""


class _Loader(SourceFileLoader):
    """Of one module, whose text is given; tracebacks name its real file."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Knows the changed modules, and leaves all others to Python's own finders."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = {_module(file): (str(ROOT / file), source) for file, source in sources.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.sources:
            return None
        place, source = self.sources[fullname]
        return importlib.util.spec_from_file_location(fullname, place, loader=_Loader(fullname, place, source))


def load(sources: Mapping[str, str]) -> None:
    """Forget impl and load it with these files (by path in the repository) changed; none: as it is.

    From then on the subject ``impl`` is that one. If it cannot be loaded, the one before stays, and it raises
    ``Stillborn``.
    """
    before, subject = _forgotten(), ours.subject
    finder = _Finder(sources)
    sys.meta_path[:] = [finder, *(each for each in sys.meta_path if not isinstance(each, _Finder))]
    try:
        ours.subject = ours.gather()
        if set(ours.subject.lacks) - set(subject.lacks):
            raise ImportError("; ".join(ours.subject.lacks.values()))
    except Exception as error:
        ours.subject = subject
        _forgotten()
        sys.modules.update(before)
        raise Stillborn(f"{type(error).__name__}: {error}") from error


def load_plan(plan: Mapping[str, Any]) -> None:
    """``load`` of ``plan["sources"]``; marked ones write into the file that ``plan["marks"]`` names with its size."""
    if "marks" in plan:
        path, size = plan["marks"]
        Map(Path(path), size).install()
    load(plan["sources"])


def load_file(path: str) -> None:
    """The plan in a file of JSON; for a fork server, which is told so before it serves."""
    load_plan(json.loads(Path(path).read_text(encoding="utf-8")))


def _forgotten() -> dict[str, ModuleType]:
    """Take every module of impl out of Python's table; returns them."""
    names = [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names}


def _module(file: str) -> str:
    parts = Path(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
