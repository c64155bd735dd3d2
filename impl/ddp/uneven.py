"""DDP among uneven inputs: what an iteration may ask of the join context around it, and how a context ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from ..comm import collectives
from ..comm.coalesce import broadcast_coalesced
from ..comm.ranks import GroupRank
from ..join import Follower, Join, JoinHook, Session
from ..join.hooks import BrokenOff
from .join_hook import _DDPJoinHook
from .parts import Parts

if TYPE_CHECKING:
    from .wrapper import DistributedDataParallel


class UnevenInputs(Parts, Follower):
    """The side of ``DistributedDataParallel`` that faces a join context; outside one it gives the ordinary answers."""

    if TYPE_CHECKING:
        _assign_modules_buffers: Callable[[], None]
        _check_sync_bufs_post_fwd: Callable[[], bool]

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """A ``Join`` context over this model alone (DDPJ-003).

        Args:
            divide_by_initial_world_size: divide by the group's size even after ranks have run out (True), or by the
                number of ranks still active (False), which weighs late samples more.
            enable: False when inputs are known to be even.
            throw_on_early_termination: raise on all ranks when the first one runs out.
        """
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook for one context; reads ``divide_by_initial_world_size`` (True) and ignores the rest (DDPJ-004)."""
        ddp = cast("DistributedDataParallel", self)
        return _DDPJoinHook(ddp, divide_by_initial_world_size=kwargs.get("divide_by_initial_world_size", True))

    @property
    def join_device(self) -> torch.device:
        """The device of the managed parameters."""
        return self.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """The group that gradients are averaged over."""
        return self.process_group

    def _find_common_rank(self, input_rank: int, rank_cond: bool) -> int:
        """The highest ``input_rank`` among ranks for which ``rank_cond`` holds; ValueError if for none (DDPJ-021)."""
        candidate = torch.tensor([input_rank if rank_cond else -1], dtype=torch.int64, device=self.device)
        highest = collectives.all_reduce(self.reducer.team, candidate, "common rank", dist.ReduceOp.MAX)
        found = int(highest.wait(self._iteration.watch()).item())
        if found == -1:
            self._log_and_throw(
                ValueError,
                "No rank of the group is a candidate, so no model can be taken over. This is a bug of ours: please "
                "report it.",
            )
        return found

    def _check_global_requires_backward_grad_sync(self, is_joined_rank: bool) -> bool | None:
        """Tell, or on a joined rank learn, whether any rank synchronises its next backward (DDPJ-029).

        Our own joined ranks learn it from the announcements of ``Session``; this is torch's way, kept by name. Live
        ranks do not wait and get None; joined ranks get the answer.
        """
        wanted = not is_joined_rank and self.require_backward_grad_sync
        flag = torch.tensor([wanted], dtype=torch.float32, device=self.device)
        pending = collectives.all_reduce(self.reducer.team, flag, "any backward to synchronise")
        return bool(pending.wait(self._iteration.watch()).item()) if is_joined_rank else None

    def _sync_final_model(self, is_last_joiner: bool) -> None:
        """All ranks take over parameters and buffers of the highest rank among the last joiners (DDPJ-016, 017)."""
        team, session = self.reducer.team, self._join_session
        if session is not None:  # its last message has told already who came last
            source = session.source
        else:
            source = GroupRank(self._find_common_rank(int(team.rank), is_last_joiner))
        self._authoritative_rank = int(source)
        self._assign_modules_buffers()
        state: list[torch.Tensor] = [parameter.detach() for parameter in self._module_parameters]
        if self._delayed is not None:
            state += [parameter.detach() for parameter in self._delayed.parameters]
        if self.forward_sync_buffers:
            state += self.modules_buffers
        broadcast_coalesced(team, state, source, "final model", self.broadcast_bucket_size, self._iteration.watch())
        # ranks that joined early have missed the last forwards' word on this; all start alike
        self.require_forward_param_sync, self._sync_due_after_evaluation = True, False

    @property  # type: ignore[override]
    def _join_session(self) -> Session | None:
        """The session of the join block that the model is in; contexts set it."""
        return self._iteration.session

    @_join_session.setter
    def _join_session(self, session: Session | None) -> None:
        self._iteration.session = session

    @property
    def _divide_by_initial_world_size(self) -> bool:
        """See ``Iteration``; a name of torch's."""
        return self._iteration.divides_by_initial_world_size

    @_divide_by_initial_world_size.setter
    def _divide_by_initial_world_size(self, value: bool) -> None:
        self._iteration.divides_by_initial_world_size = value

    # -- iterations that an exception ends

    def _enter_uneven_inputs(self) -> None:
        """A join block begins: what failed before it was over by then."""
        self._per_parameter.refuse_uneven_inputs(entered=True)
        self._failed_forward = None
        self.reducer.give_up_what_raised()

    def _note_failed_forward(self, error: BaseException) -> None:
        """The wrapped forward has raised: inside a join its peers may go on to the reduction that follows."""
        if self._join_session is not None and torch.is_grad_enabled() and self.require_backward_grad_sync:
            self._failed_forward = f"forward ended with {type(error).__name__}: {error}"

    def _broken_iteration(self) -> BrokenOff | None:
        """What an exception has ended of this model's last synchronised iteration, inside the present join block."""
        if self._failed_forward is not None:
            return BrokenOff(self._failed_forward, shadowed=False)
        if self.reducer.raised:
            return BrokenOff("backward ended with an exception", shadowed=self.reducer.reducing_with_others)
        return None
