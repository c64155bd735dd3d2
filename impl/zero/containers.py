"""Copies of what users keep in settings and states: containers stay what they are, whatever becomes of the contents."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

_BY_KEY = frozenset({dict, OrderedDict, defaultdict, Counter})


def copied(value: Any, each: Callable[[Any], Any]) -> Any:
    """A container of the same type that holds ``each(item)`` for its items; anything else is handed back as it is."""
    kind = type(value)
    if kind in _BY_KEY:
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = each(item)
        return made
    if kind is deque:
        return deque(map(each, value), value.maxlen)
    if kind in (list, tuple, set):
        return kind(map(each, value))
    return value
