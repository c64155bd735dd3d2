"""Joins a case with what all cases share into one script that needs nothing but torch."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import CASES

MOST_LINES = 59
ENDING = "Exits with 1 if the break shows, else with 0. Needs Linux, {}; its ranks end within 20 s."
_INPUTS = re.compile(r"^INPUTS = (\(.*?\))", re.MULTILINE)
_Nodes = Iterable[ast.Import | ast.ImportFrom]


@dataclass(frozen=True)
class Source:
    """A Python file in its parts."""

    title: str  # what its docstring says
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    rest: str  # all that comes after the imports

    @classmethod
    def read(cls, path: Path) -> Source:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        imports = tuple(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
        last = max(node.end_lineno or 0 for node in imports)
        return cls((ast.get_docstring(tree) or "").strip(), imports, "\n".join(text.splitlines()[last:]).strip())


def title(case: Path) -> str:
    """What a case says of itself, in one sentence."""
    return Source.read(case).title


def schedule(case: Path) -> tuple[int, ...] | None:
    """How many inputs each rank has in a case; None for a case that depends on no schedule."""
    found = _INPUTS.search(case.read_text(encoding="utf-8"))
    return tuple(ast.literal_eval(found[1])) if found else None


def write(case: Path, clause: str, inputs: tuple[int, ...] | None = None, needs: Sequence[str] = ()) -> str:
    """The script of a case; ``inputs`` replaces the schedule that the case names, if it has one."""
    own, shared = Source.read(case), Source.read(CASES / "prelude.py")
    body = own.rest if inputs is None else _INPUTS.sub(f"INPUTS = {inputs}", own.rest)
    header = f'"""{clause}: {own.title}\n{ENDING.format(", ".join(["PyTorch", *needs[:1]]))}"""'
    imports = _imports([*shared.imports, *own.imports], f"{shared.rest}\n{body}")
    text = _dense("\n\n".join([header, imports, shared.rest, body]) + "\n")
    if text.count("\n") > MOST_LINES:
        raise ValueError(f"the script of {case.name} has {text.count(chr(10))} lines, more than {MOST_LINES}")
    return text


def _dense(text: str) -> str:
    """With one empty line where there were two, and none between methods: room for what a reader wants to see."""
    return re.sub(r"\n\n(?=    def (?!work))", "\n", re.sub(r"\n{3,}", "\n\n", text))


def _imports(nodes: _Nodes, code: str) -> str:
    """The import lines that the code needs: first those of the standard library, then torch's."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    whole: set[str] = set()
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for node in nodes:
        for name in node.names:
            if isinstance(node, ast.ImportFrom) and node.level:
                continue  # our own: what all cases share is in the script itself
            if (name.asname or name.name.partition(".")[0]) in used:
                (parts[node.module or ""] if isinstance(node, ast.ImportFrom) else whole).add(ast.unparse(name))
    if not {"torch.nn.parallel", "torch.distributed.optim"} & parts.keys() and all(map(_is_usual, parts)):
        whole.discard("torch._dynamo")
    groups = []
    for ours in (False, True):
        lines = [f"import {', '.join(sorted(name for name in whole if _is_torch(name) == ours))}"]
        modules = [module for module in sorted(parts) if _is_torch(module) == ours]
        lines += [f"from {module} import {', '.join(sorted(parts[module]))}" for module in modules]
        groups.append("\n".join(lines))
    return "\n\n".join(groups)


def _is_usual(module: str) -> bool:
    return _is_torch(module) or module.partition(".")[0] in sys.stdlib_module_names


def _is_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"
