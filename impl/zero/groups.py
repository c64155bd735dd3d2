"""Parameter groups: keeping the exposed ones and the local optimizer's in step, and telling joined ranks about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..comm.optimizer_states import copied

#: A parameter group as torch's optimizers write it: ``{"params": [...], "lr": ...}``.
Group = dict[str, Any]


def restricted(groups: Iterable[Group], members: Iterable[torch.Tensor]) -> list[Group]:
    """The groups with those of their parameters that are among the members."""
    wanted = set(map(id, members))
    return [{**group, "params": [p for p in group["params"] if id(p) in wanted]} for group in groups]


def copy_settings(sources: Sequence[Group], targets: Sequence[Group]) -> None:
    """Make the settings of each target group those of the source group at the same place (ZERO-011)."""
    for source, target in zip(sources, targets, strict=True):
        _drop_others(source, target)
        for key, value in source.items():
            if key != "params":
                target[key] = value


def settings_of(groups: Iterable[Group]) -> list[Group]:
    """The groups' settings as they are now, without the parameters; later changes in place do not show."""
    return [{key: _kept(value) for key, value in group.items() if key != "params"} for group in groups]


def take_settings(settings: Sequence[Group], targets: Sequence[Group]) -> None:
    """Make our groups' settings those received or kept. A tensor that we already hold is filled, not replaced."""
    for source, target in zip(settings, targets, strict=True):
        _drop_others(source, target)
        for key, value in source.items():
            held = target.get(key)
            if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor) and _alike(held, value):
                with torch.no_grad():
                    held.copy_(value)
            else:
                target[key] = _kept(value)  # later changes in place are not to reach the source


def _alike(held: torch.Tensor, value: torch.Tensor) -> bool:
    return held.shape == value.shape and held.dtype == value.dtype


def _drop_others(source: Group, target: Group) -> None:
    """What the source group does not have goes, too."""
    for key in target.keys() - source.keys() - {"params"}:
        del target[key]


def _kept(value: Any) -> Any:
    """A copy of a tensor, or of a container with all that it holds; parameters stay the same ones."""
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, nn.Parameter) else value.detach().clone()
    return copied(value, _kept)
