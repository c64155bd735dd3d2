"""What live ranks tell joined ones before a step: settings that only live ranks change, and gradients of the absent.

A joined rank still owns a shard and its state, but its schedulers do not run, its flags are old, and nobody computes a
gradient on it. So one live rank, the *source*, sends what the owner needs. Settings are sent again only when they
differ from what was sent last; every rank remembers that, because the next source may be another rank.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..comm.averaging import gradient_dtype
from ..comm.collectives import broadcast, broadcast_object
from ..comm.flat import copy_all, flat_views, laid_out_like
from ..comm.ranks import GroupRank, Team
from .checkpoint import snapshot
from .groups import Group


@dataclass(frozen=True)
class GroupSettings:
    """Settings of the live ranks, taken before their step."""

    settings: list[Group]  # parameters by place
    sent: tuple[bool, ...]  # which parameters are published
    to_follow: list[list[str]]  # by group: the settings in which joined ranks follow the source in any case
    arguments: dict[str, Any] = field(default_factory=dict)  # further keywords of step()
    members: list[list[int]] = field(default_factory=list)  # by group: its parameters, by numbers that all ranks know
    dense: list[int] = field(default_factory=list)  # which of the absent ranks' parameters have dense gradients
    loss: tuple[Any, ...] = ()  # what the step's closure has returned, if there is one that may matter

    def packed(self) -> bytes:
        """Bytes that are equal where the settings are equal. TypeError if a setting cannot travel."""
        try:
            return pickle.dumps(replace(self, settings=snapshot(self.settings)))
        except Exception as error:
            raise TypeError(
                "A rank has joined, so the optimizer's settings must be sent to it, but one of them cannot be pickled: "
                f"{error}. Keep functions and handles out of param_groups and of step()'s keywords."
            ) from error


class SettingsChannel:
    """Carries one optimizer's settings from the source to the whole team. Every rank of the team makes every call."""

    def __init__(self, team: Team, device: torch.device) -> None:
        self._team = team
        self._device = device
        # what was sent last, on every rank
        self._last: bytes | None = None

    def exchange(
        self, settings: GroupSettings | None, sparse: dict[int, Any], source: GroupRank
    ) -> tuple[GroupSettings, dict[int, Any]]:
        """The source's settings and sparse gradients, on every rank; what others give does not matter."""
        fresh, is_new = b"", False
        if self._team.rank == source:
            if settings is None:
                raise AssertionError("the source of settings has none")
            fresh = settings.packed()
            is_new = fresh != self._last or bool(sparse)
        header = torch.tensor([is_new], dtype=torch.uint8, device=self._team.control_device(self._device))
        far: dict[int, Any] = {}
        if broadcast(self._team, header, source, "zero: header for joined ranks").wait().item():
            label = "zero: settings for joined ranks"
            self._last, far = broadcast_object(self._team, (fresh, sparse), source, self._device, label)
        assert self._last is not None
        received: GroupSettings = pickle.loads(self._last)
        return received, far


def dense_gradients(parameters: Sequence[torch.Tensor]) -> list[int]:
    """Which of the parameters have a dense gradient, by place."""
    return [
        place for place, parameter in enumerate(parameters)
        if (gradient := parameter.grad) is not None and gradient.layout == torch.strided
    ]  # fmt: skip


def sparse_gradients(parameters: Sequence[torch.Tensor]) -> dict[int, Any]:
    """The other gradients, on the CPU, by place."""
    return {
        place: gradient.detach().cpu() for place, parameter in enumerate(parameters)
        if (gradient := parameter.grad) is not None and gradient.layout != torch.strided
    }  # fmt: skip


@torch.no_grad()  # gradients of ``backward(create_graph=True)`` have a graph of their own
def exchange_gradients(
    team: Team,
    parameters: Sequence[torch.Tensor],
    dense: Sequence[int],
    sparse: dict[int, Any],
    source: GroupRank,
) -> list[torch.Tensor | None]:
    """The source's gradients of ``parameters``, on every rank, of which these are dense; None where it has none."""
    gradients: list[torch.Tensor | None] = [None] * len(parameters)
    for place, gradient in sparse.items():
        gradients[place] = gradient.to(parameters[place].device)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place in dense:
        alike.setdefault((parameters[place].device, gradient_dtype(parameters[place])), []).append(place)
    for (device, dtype), places in alike.items():
        models = [parameters[place] for place in places]
        flat = torch.empty(sum(model.numel() for model in models), dtype=dtype, device=device)
        views = flat_views(flat, models)
        if team.rank == source:
            gradients_here: list[Any] = [model.grad for model in models]
            copy_all(views, gradients_here)
        broadcast(team, flat, source, f"zero: gradients for joined ranks on {device}").wait()
        for place, model, view in zip(places, models, views, strict=True):
            gradients[place] = laid_out_like(view, model)  # a fused optimizer goes through both from end to end
    return gradients
