"""Stories: a clause told with numbers, every subject beside what one process computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

#: tells a story, line by line
Story = Callable[[], Iterator[str]]

#: which module tells which clause; a module is imported only when its story is asked for
_TOLD_BY = {"ZERO-022": "zero_022", "JOIN-033": "zero_022"}


def story_of(clause: str) -> Story | None:
    """The story of a clause, if it has one."""
    if clause not in _TOLD_BY:
        return None
    telling: Story = import_module(f"{__name__}.{_TOLD_BY[clause]}").tell
    return telling
