"""Examples: a clause told with numbers, every subject beside what one process computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

#: tells a example, line by line
Example = Callable[[], Iterator[str]]

#: which module tells which clause; a module is imported only when its example is asked for
_TOLD_BY = {"ZERO-022": "zero_022", "JOIN-033": "zero_022"}


def example_of(clause: str) -> Example | None:
    """The example of a clause, if it has one."""
    if clause not in _TOLD_BY:
        return None
    telling: Example = import_module(f"{__name__}.{_TOLD_BY[clause]}").tell
    return telling
