# ruff: noqa: N999 -- torch calls the module so
"""Post-local SGD: gradients are averaged globally at first, later only within a subgroup or not at all."""

import logging

import torch
import torch.distributed as dist

from ...comm import collectives
from ...comm.local_groups import new_local_group
from ...comm.placement import host
from ...comm.ranks import GroupRank, Team
from .default_hooks import allreduce_hook
from .reduction import GradBucket, completed, team_of

logger = logging.getLogger(__name__)


class PostLocalSGDState:
    """Settings and clock of ``post_localSGD_hook``; one per DDP.

    Args:
        process_group: averaged over before ``start_localSGD_iter``; None means the group of the DDP.
        subgroup: averaged over from then on; None means this machine's members of ``process_group``.
        start_localSGD_iter: the first iteration with local averaging.
        post_local_gradient_allreduce: False: no averaging at all from then on.
    """

    __slots__ = ("_made", "iter", "post_local_gradient_allreduce", "process_group", "start_localSGD_iter", "subgroup")

    iter: int  # finished iterations; equal on all ranks
    #: the subgroups that were made where none was given, by the group of which they were
    _made: dict[dist.ProcessGroup, dist.ProcessGroup]

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        subgroup: dist.ProcessGroup | None,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        self.process_group = process_group
        self.subgroup = subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0
        self._made = {}

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Count an iteration when its last bucket comes by."""
        if bucket.is_last():
            self.iter += 1
            if self.iter == self.start_localSGD_iter:
                logger.info("Local SGD starts after %d iterations.", self.iter)


def post_localSGD_hook(state: PostLocalSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average over ``state.process_group`` before the start, over ``state.subgroup`` (or not) after it (COMM-028)."""
    local = state.iter >= state.start_localSGD_iter
    state.maybe_increase_iter(bucket)
    if not local:
        return allreduce_hook(state.process_group, bucket)  # type: ignore[arg-type]
    if not state.post_local_gradient_allreduce:
        return completed(bucket.buffer())
    if state.subgroup is None or state.subgroup in state._made.values():
        team = team_of(state.process_group, bucket)
        if team.group not in state._made:
            state._made[team.group] = _machine_group(team, bucket.buffer().device)
        state.subgroup = state._made[team.group]
    return allreduce_hook(state.subgroup, bucket)  # type: ignore[arg-type]


def _machine_group(team: Team, device: torch.device) -> dist.ProcessGroup:
    """A new group of the members that run on this machine. Blocks; every member of the team must come here."""
    hosts = collectives.all_gather_object(team, host(), device, "post-local SGD: who runs where")
    here = [team.global_rank(GroupRank(rank)) for rank in team.members if hosts[rank] == hosts[team.rank]]
    return new_local_group(here)
