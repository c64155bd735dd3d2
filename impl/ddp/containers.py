"""Finding and replacing tensors inside what a module returns: lists, tuples, dicts, dataclasses, RRefs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.rpc as rpc


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """A structure like ``value`` in which each tensor is replaced by ``change(tensor)``.

    Containers are rebuilt (named tuples and dataclasses as their own types); anything else is passed through as it is.
    Keeps DDP-102, DDP-115.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(map_tensors(change, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(change, item) for item in value)
    if isinstance(value, dict):
        return _like(value, {key: map_tensors(change, item) for key, item in value.items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: map_tensors(change, getattr(value, name)) for name in fields})
    if _is_own_rref(value):
        return rpc.RRef(map_tensors(change, value.local_value()))
    return value


def find_tensors(value: Any) -> list[torch.Tensor]:
    """All tensors inside ``value``, in the order in which ``map_tensors`` meets them; nothing is rebuilt."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in find_tensors(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in find_tensors(item)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [tensor for field in dataclasses.fields(value) for tensor in find_tensors(getattr(value, field.name))]
    if _is_own_rref(value):
        return find_tensors(value.local_value())
    return []


def _like(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if type(original) is dict:
        return items
    try:
        return type(original)(items)
    except TypeError:  # a dict class with a constructor of its own, such as defaultdict
        copy = original.copy()
        copy.update(items)
        return copy


def _is_own_rref(value: Any) -> bool:
    """Whether ``value`` is an RRef that this process owns; remote ones stay closed (DDP-168)."""
    return rpc.is_available() and isinstance(value, rpc.RRef) and value.is_owner()
