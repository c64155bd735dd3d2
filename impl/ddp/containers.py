"""Finding and replacing tensors inside what a module returns: lists, tuples, dicts, dataclasses, RRefs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.rpc as rpc


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any, within: tuple[int, ...] = ()) -> Any:
    """A structure like ``value`` in which each tensor is replaced by ``change(tensor)``.

    Containers are copied (named tuples, dataclasses and classes of the user's own as their own types); anything else is
    passed through as it is, and so is a container that refuses to be copied, or one that is met inside itself:
    ``within`` tells the containers around. Keeps DDP-102, DDP-115.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if id(value) in within:
        return value
    here = (*within, id(value))
    if isinstance(value, (list, tuple)):
        return _sequence_like(value, [map_tensors(change, item, here) for item in value])
    if isinstance(value, dict):
        return _mapping_like(value, {key: map_tensors(change, item, here) for key, item in value.items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return _object_like(value, {name: map_tensors(change, getattr(value, name), here) for name in names})
    if _is_own_rref(value):
        return rpc.RRef(map_tensors(change, value.local_value(), here))
    return value


def _sequence_like(original: Any, items: list[Any]) -> Any:
    if type(original) in (list, tuple):
        return type(original)(items)
    if all(new is old for new, old in zip(items, original, strict=True)):
        return original
    try:
        return original._make(items) if hasattr(original, "_fields") else type(original)(items)
    except TypeError:  # its constructor wants something else
        return original


def _mapping_like(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if type(original) is dict:
        return items
    new_of = {id(original[key]): item for key, item in items.items()}
    try:
        duplicate = copy.copy(original)
        for key, item in items.items():
            duplicate[key] = item
    except Exception:  # its constructor wants something else, or it takes no more items
        return original
    for name, attribute in vars(duplicate).items() if hasattr(duplicate, "__dict__") else ():
        if id(attribute) in new_of:  # model outputs hold their items as attributes, too
            object.__setattr__(duplicate, name, new_of[id(attribute)])
    return duplicate


def _object_like(original: Any, attributes: dict[str, Any]) -> Any:
    duplicate = copy.copy(original)
    for name, attribute in attributes.items():
        object.__setattr__(duplicate, name, attribute)  # frozen ones, too
    return duplicate


def find_tensors(value: Any, within: tuple[int, ...] = ()) -> list[torch.Tensor]:
    """All tensors inside ``value``, in the order in which ``map_tensors`` meets them; nothing is rebuilt."""
    if isinstance(value, torch.Tensor):
        return [value]
    if id(value) in within:
        return []
    here = (*within, id(value))
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in find_tensors(item, here)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in find_tensors(item, here)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        return find_tensors(held, here)
    if _is_own_rref(value):
        return find_tensors(value.local_value(), here)
    return []


def _is_own_rref(value: Any) -> bool:
    """Whether ``value`` is an RRef that this process owns; remote ones stay closed (DDP-168)."""
    return rpc.is_available() and isinstance(value, rpc.RRef) and value.is_owner()
