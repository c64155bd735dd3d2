"""Which implementations the board shows: ``columns.toml``, read and checked.

A ``[[column]]`` has a ``name`` (of its folder, too), a ``subject`` as ``run`` takes it, and an ``about`` of one line.
Where they are needed: a ``home`` page, ``requires`` (what pip installs, with exact releases), ``dependencies = false``
(install nothing that these ask for), ``select`` (the clauses that it is about), ``torch`` (another release of torch
than the one at hand; columns of one release share an environment), and ``like = "torch"`` where classes of torch's do
the work, whose listed deviations are its too. What its breaks are stands in ``classed/``: see classes.py.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..bad_input import BadInput

HERE = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9.-]*")


@dataclass(frozen=True)
class Column:
    """One implementation on the board."""

    name: str
    subject: str
    about: str
    home: str = ""
    requires: tuple[str, ...] = ()
    dependencies: bool = True
    select: str = "*"
    torch: str = ""
    like: str = ""


def load(path: Path = HERE / "columns.toml") -> tuple[Column, ...]:
    """Every column, in the order of the page."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["column"]
    except (OSError, KeyError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} cannot be read as a list of columns: {error}") from error
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadInput(f"{path}: columns are written as [[column]] tables")
    made = tuple(_read(table, f"{path}: column {number}") for number, table in enumerate(tables, 1))
    if len({column.name for column in made}) < len(made):
        raise BadInput(f"{path}: two columns have one name")
    return made


def choose(wanted: str) -> list[Column]:
    """The columns of these names, separated by commas; all for ``*``."""
    every = {column.name: column for column in load()}
    names = list(every) if wanted == "*" else [name.strip() for name in wanted.split(",")]
    if unknown := [name for name in names if name not in every]:
        raise BadInput(f"there is no column {unknown[0]!r}; there are {', '.join(every)}")
    return [every[name] for name in names]


def _read(table: dict[str, Any], where: str) -> Column:
    known = {each.name: each for each in fields(Column)}
    if unknown := sorted(set(table) - set(known)):
        raise BadInput(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
    if missing := [name for name in ("name", "subject", "about") if not table.get(name)]:
        raise BadInput(f"{where}: {missing[0]} is missing")
    for name, value in table.items():
        kind, wanted = {"requires": (list, "a list of texts"), "dependencies": (bool, "true or false")}.get(
            name, (str, "a text")
        )
        parts = value if isinstance(value, list) else []
        if type(value) is not kind or not all(isinstance(one, str) for one in parts):
            raise BadInput(f"{where}: {name} must be {wanted}, not {value!r}")
    if not _NAME.fullmatch(table["name"]):
        raise BadInput(f"{where}: the name {table['name']!r} is no folder's: lower-case letters, digits, dots, dashes")
    return Column(**{**table, "requires": tuple(table.get("requires", ()))})
