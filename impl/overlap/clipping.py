"""Clipping by the global norm inside an overlapped step, where each rank vouches for the gradients that it owns."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..comm.averaging import gradient_dtype
from ..comm.collectives import all_reduce
from ..comm.pending import Watch
from ..zero.shard import Shard

if TYPE_CHECKING:
    from .bucket_reduction import InFlight

_AVOIDS_ZERO = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it, so that results agree to the bit


@dataclass(frozen=True)
class Clipping:
    """Scale the gradients of the optimizer's parameters so that their common norm is at most ``max_norm``."""

    max_norm: float
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        if not self.max_norm > 0 or math.isnan(self.max_norm):
            raise ValueError(f"max_norm must be a positive number, not {self.max_norm}.")
        if not self.norm_type > 0:
            raise ValueError(f"norm_type must be a positive number or infinity, not {self.norm_type}.")

    def apply(
        self, flights: Sequence[InFlight], shard: Shard, watch: Watch | None
    ) -> torch.Tensor:
        """Clip the reduced gradients of these buckets, in place; returns the norm that they had.

        The norm covers the optimizer's parameters, and nobody else's gradients are scaled. Each owner computes the
        norms of its own; one small sum tells them to all, so that every rank clips by the same number, also where
        gradients were reduced to their owners only.
        """
        norms = self._own_norms(flights, shard)
        all_reduce(shard.team, norms, "overlap: norms of the gradients").wait(watch)
        total: torch.Tensor = torch.linalg.vector_norm(norms, self.norm_type)
        factor = torch.clamp(self.max_norm / (total + _AVOIDS_ZERO), max=1.0)
        for flight in flights:
            for gradient in _of_the_optimizer(flight):
                gradient.mul_(factor.to(gradient.device))
        return total

    def _own_norms(self, flights: Sequence[InFlight], shard: Shard) -> torch.Tensor:
        parameters = shard.parameters()
        dtype = functools.reduce(torch.promote_types, map(gradient_dtype, parameters))
        norms = torch.zeros(len(parameters), dtype=dtype, device=parameters[0].device)
        for flight in flights:
            for place in flight.part.own:
                gradient = flight.gradients.get(place)
                if gradient is not None and gradient.is_sparse:
                    gradient = gradient.coalesce().values()
                if gradient is not None and gradient.numel():  # an empty one has no greatest element
                    norms[flight.part.members[place]] = torch.linalg.vector_norm(gradient, self.norm_type)
        return norms


def _of_the_optimizer(flight: InFlight) -> list[torch.Tensor]:
    """The gradients of the optimizer's parameters in a reduced bucket: in one tensor, where there are no others."""
    members, flat = flight.part.members, flight.flat
    assert flat is not None
    if min(members) >= 0:
        return [flat, *flight.kept.values()]
    own = flight.part.of_the_optimizer
    views = flight.part.views_of(flat)
    return [views[place] for place in own] + [flight.kept[place] for place in own if place in flight.kept]
