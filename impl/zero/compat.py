"""Methods of the optimizer that torch names with an underscore; their documented refusals are part of its behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .arguments import Group

if TYPE_CHECKING:
    from ..comm.ranks import Team
    from .overlapping import OverlapInfo
    from .publish import Publisher

SENT_FROM_BACKWARD = "with overlap_with_ddp=True parameters are sent from inside backward, bucket by bucket"


class CompatibleNames:
    """Mixed into ZeroRedundancyOptimizer, which supplies the attributes declared here."""

    if TYPE_CHECKING:
        param_groups: list[dict[str, Any]]
        _team: Team
        _overlap_info: OverlapInfo | None

        def _parameters(self) -> list[torch.Tensor]: ...
        def _local_groups(self, rank: int) -> list[Group]: ...
        def _current_publisher(self) -> Publisher: ...

    @property
    def _all_params(self) -> list[torch.Tensor]:
        """All parameters, group after group."""
        return self._parameters()

    def _partition_parameters(
        self, params_per_rank: Sequence[Sequence[torch.Tensor]] | None = None
    ) -> list[list[Group]]:
        """The parameter groups of every rank, by rank; with an argument, those of that partition, checked."""
        if params_per_rank is None:
            return [self._local_groups(rank) for rank in self._team.members]
        self._verify_params_per_rank(params_per_rank)
        chosen = [{id(parameter) for parameter in members} for members in params_per_rank]
        return [
            [{**group, "params": [p for p in group["params"] if id(p) in members]} for group in self.param_groups]
            for members in chosen
        ]

    def _verify_params_per_rank(self, params_per_rank: Sequence[Sequence[torch.Tensor]]) -> None:
        """ValueError unless there is one list per rank and every parameter in it is one of ours (ZERO-029)."""
        if len(params_per_rank) != self._team.size:
            raise ValueError(
                f"params_per_rank must have one list for each of the {self._team.size} ranks, but has "
                f"{len(params_per_rank)}."
            )
        known = {id(parameter) for parameter in self._parameters()}
        for rank, members in enumerate(params_per_rank):
            for place, parameter in enumerate(members):
                if id(parameter) not in known:
                    raise ValueError(
                        f"Parameter {place} of rank {rank} in params_per_rank is none of this optimizer's parameters."
                    )

    def _broadcast_params_from_rank(self, rank: int) -> None:
        """Send the parameters that group rank ``rank`` owns; call it on every rank."""
        if self._overlap_info is not None:
            raise AssertionError(SENT_FROM_BACKWARD)
        self._current_publisher().publish(owner=rank)
