"""A part's reference to the object that it is a part of."""

from __future__ import annotations

import weakref
from typing import TypeVar

T = TypeVar("T")


def whole(held: weakref.ref[T]) -> T:
    """The object; it is held weakly, so that one which holds the part goes with its own last reference."""
    value = held()
    if value is None:
        raise AttributeError("the optimizer that this is a part of is gone")
    return value
