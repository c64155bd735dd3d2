"""Validates a list of joinables before anything is done with it, so that a refused list is left as it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .hooks import Joinable, JoinHook


def listed(joinables: Iterable[Joinable]) -> tuple[Joinable, ...]:
    """The joinables as a tuple: at least one, each a Joinable, none twice (JOIN-011, JOIN-019, JOIN-020)."""
    if isinstance(joinables, Joinable) or not isinstance(joinables, Iterable):
        raise TypeError(f"Join expects a list of joinables, got a {_type(joinables)}: write Join([it]).")
    found = tuple(joinables)
    if not found:
        raise ValueError("Join expects at least one joinable, got an empty list: list the models and optimizers.")
    if len(found) > 1 and isinstance(joinables, (set, frozenset)):
        raise TypeError("Join expects a list of joinables, got a set, whose order differs between ranks.")
    for place, joinable in enumerate(found):
        if not isinstance(joinable, Joinable):
            raise TypeError(
                f"Join expects Joinable objects, but entry {place} of the list is a {_type(joinable)}. A plain torch "
                "optimizer or module is not listed: it needs no join. One of torch's own joinables needs torch's own "
                "Join."
            )
    for place, joinable in enumerate(found):
        first = next(earlier for earlier, each in enumerate(found) if each is joinable)
        if first < place:
            raise ValueError(
                f"Join got the same joinable ({_type(joinable)}) twice, as entries {first} and {place}: list it once."
            )
    return found


def common_group(joinables: Sequence[Joinable]) -> dist.ProcessGroup | None:
    """The one process group of all (JOIN-015); None stands for the default group."""
    groups = [_group_of(joinable) for joinable in joinables]
    for place, group in enumerate(groups):
        if resolved(group) is not resolved(groups[0]):
            raise ValueError(
                f"Join expects all joinables on one process group, but joinable {place} "
                f"({_type(joinables[place])}) has another one than joinable 0 ({_type(joinables[0])}). Build them "
                "with the same process_group; two groups of the same ranks are still two groups."
            )
    return groups[0]


def made_hook(joinable: Joinable, options: Mapping[str, Any]) -> JoinHook:
    """What ``join_hook`` makes; TypeError if that is no hook, such as the None of a method that returns nothing."""
    hook = joinable.join_hook(**options)
    if not (hasattr(hook, "main_hook") and hasattr(hook, "post_hook")):
        raise TypeError(
            f"join_hook of {_type(joinable)} returned a {_type(hook)}, not a JoinHook. Return one, whose main_hook "
            "starts the collectives of an iteration on ranks that have run out of inputs."
        )
    return hook


def device_of(joinable: Joinable) -> torch.device:
    """The device of a joinable; TypeError if ``join_device`` is no device, for instance a plain method (JOIN-005)."""
    device: Any = joinable.join_device
    if isinstance(device, torch.device):
        return device
    if isinstance(device, (str, int)):
        return torch.device(device)
    raise TypeError(
        f"join_device of {_type(joinable)} is a {_type(device)}, not a torch.device: make it a property that returns "
        "one."
    )


def _group_of(joinable: Joinable) -> dist.ProcessGroup | None:
    group: Any = joinable.join_process_group
    if group is None or isinstance(group, dist.ProcessGroup):
        return group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            f"This process is not a member of the process group of {_type(joinable)}: build the Join on members only."
        )
    raise TypeError(
        f"join_process_group of {_type(joinable)} is a {_type(group)}, not a process group: make it a property that "
        "returns a torch.distributed.ProcessGroup."
    )


def resolved(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group itself: none named is the default one."""
    return dist.group.WORLD if group is None else group


def _type(thing: Any) -> str:
    return type(thing).__name__
