"""Finding and replacing tensors inside what a module returns: lists, tuples, dicts, dataclasses, RRefs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable
from operator import is_
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch.nn.utils.rnn import PackedSequence


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any, within: tuple[int, ...] = ()) -> Any:
    """A structure like ``value`` in which each tensor is replaced by ``change(tensor)``.

    Containers are copied (named tuples, dataclasses and classes of the user's own as their own types); anything else is
    passed through as it is, and so is a container in which nothing changes, one that refuses to be copied, or one that
    is met inside itself: ``within`` tells the containers around. The batch sizes of a packed sequence stay, as they
    belong on the CPU. Keeps DDP-102, DDP-115.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if id(value) in within:
        return value
    here = (*within, id(value))
    if isinstance(value, (list, tuple)):
        kept = value.batch_sizes if isinstance(value, PackedSequence) else None
        return _sequence_like(value, [item if item is kept else map_tensors(change, item, here) for item in value])
    if isinstance(value, dict):
        return _mapping_like(value, {key: map_tensors(change, item, here) for key, item in value.items()})
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return _object_like(value, {name: map_tensors(change, getattr(value, name), here) for name in names})
    if _is_own_rref(value):
        return rpc.RRef(map_tensors(change, value.local_value(), here))
    return value


def _sequence_like(original: Any, items: list[Any]) -> Any:
    if all(map(is_, items, original)):
        return original
    if type(original) in (list, tuple):
        return type(original)(items)
    try:
        if isinstance(original, list):
            duplicate = copy.copy(original)
            duplicate[:] = items
        else:
            duplicate = original._make(items) if hasattr(original, "_fields") else type(original)(items)
            getattr(duplicate, "__dict__", {}).update(getattr(original, "__dict__", {}))
    except Exception:  # its constructor wants something else, or it takes no other items
        return original
    return _with_attributes(duplicate, zip(original, items, strict=True))


def _mapping_like(original: dict[Any, Any], items: dict[Any, Any]) -> Any:
    if all(map(is_, items.values(), original.values())):
        return original
    if type(original) is dict:
        return items
    try:
        duplicate = copy.copy(original)
        for key, item in items.items():
            duplicate[key] = item
    except Exception:  # likewise
        return original
    return _with_attributes(duplicate, ((original[key], item) for key, item in items.items()))


def _with_attributes(duplicate: Any, items: Iterable[tuple[Any, Any]]) -> Any:
    """A duplicate whose attributes are the new items where they were the old ones: as those of model outputs are."""
    new_of = {id(old): new for old, new in items}
    for name, attribute in getattr(duplicate, "__dict__", {}).items():
        object.__setattr__(duplicate, name, new_of.get(id(attribute), attribute))
    return duplicate


def _object_like(original: Any, attributes: dict[str, Any]) -> Any:
    if all(getattr(original, name) is attribute for name, attribute in attributes.items()):
        return original
    try:
        duplicate = copy.copy(original)
        for name, attribute in attributes.items():
            object.__setattr__(duplicate, name, attribute)  # frozen ones, too
    except Exception:  # likewise
        return original
    return duplicate


def find_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors inside ``value``, however deep; each container is looked into once."""
    found, left, seen = [], [value], dict[int, Any]()
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif id(value) not in seen and (items := _items(value)):
            seen[id(value)] = value  # kept, so that no other gets its id
            left += items
    return found


def _items(value: Any) -> Collection[Any]:
    """What a container holds; nothing of anything else."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return value.values()
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return [value.local_value()] if _is_own_rref(value) else ()


def _is_own_rref(value: Any) -> bool:
    """Whether ``value`` is an RRef that this process owns; remote ones stay closed (DDP-168)."""
    return rpc.is_available() and isinstance(value, rpc.RRef) and value.is_owner()
