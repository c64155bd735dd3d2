"""An ordered record of the labels of started collectives, off unless somebody is looking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: The list that receives labels while ``tracing()`` is open; None otherwise. Only ``tracing`` assigns it.
sink: list[str] | None = None


def note(label: str) -> None:
    """Record that the collective called ``label`` starts now."""
    if sink is not None:
        sink.append(label)


@contextmanager
def tracing() -> Iterator[list[str]]:
    """Collect the labels of all collectives that this process starts inside the block, in order."""
    global sink
    before, sink = sink, []
    try:
        yield sink
    finally:
        sink = before
