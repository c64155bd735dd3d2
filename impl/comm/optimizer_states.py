"""What an optimizer holds, on its way to another owner or rank: containers stay what they are, and tensors as fine."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

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


def as_it_was(value: Any, loaded: Any) -> Any:
    """``value`` with its tensors on the devices of those in ``loaded``, which an optimizer has made of it.

    To load a state is to cast its tensors to the parameter's dtype and to rewrite its strings and containers. That is
    for files: what only changes its owner stays as it is.
    """
    if isinstance(value, torch.Tensor):
        return value.to(loaded.device)
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = as_it_was(item, loaded[key])
        return made
    if type(value) in (list, tuple, deque):
        counterparts = iter(loaded)
        return copied(value, lambda item: as_it_was(item, next(counterparts)))
    return value
