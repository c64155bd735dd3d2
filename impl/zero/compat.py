"""What methods that torch names with an underscore do; their documented refusals are part of the behaviour."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .groups import Group, restricted
from .shard import Shard

SENT_FROM_BACKWARD = "with overlap_with_ddp=True parameters are sent from inside backward, bucket by bucket"


def partition_parameters(
    shard: Shard, params_per_rank: Sequence[Sequence[torch.Tensor]] | None
) -> list[list[Group]]:
    """The parameter groups of every rank, by rank; with a partition, those of that one, checked."""
    if params_per_rank is None:
        return [shard.local_groups(rank) for rank in shard.team.members]
    verify_params_per_rank(shard, params_per_rank)
    return [restricted(shard.exposed.param_groups, members) for members in params_per_rank]


def verify_params_per_rank(shard: Shard, params_per_rank: Sequence[Sequence[torch.Tensor]]) -> None:
    """ValueError unless there is one list per rank and every parameter in it is one of ours (ZERO-029)."""
    if len(params_per_rank) != shard.team.size:
        raise ValueError(
            f"params_per_rank must have one list for each of the {shard.team.size} ranks, but has "
            f"{len(params_per_rank)}."
        )
    known = {id(parameter) for parameter in shard.parameters()}
    for rank, members in enumerate(params_per_rank):
        for place, parameter in enumerate(members):
            if id(parameter) not in known:
                raise ValueError(
                    f"Parameter {place} of rank {rank} in params_per_rank does not belong to this optimizer."
                )
