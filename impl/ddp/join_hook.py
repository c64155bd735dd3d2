"""DDP's side of a join context: what a joined rank does, and how the ranks leave with the same model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..comm import collectives
from ..comm.averaging import gradient_dtype
from ..comm.collectives import Sizes, broadcast_coalesced, size_of
from ..comm.ranks import GroupRank
from ..join.hooks import BrokenOff, FollowingHook, Joinable
from .buffers import BufferSync
from .iteration import Iteration, Stage
from .log import DDPLogger
from .per_parameter import PerParameterReduction
from .reducer import Phase, Reducer


class UnevenInputs:
    """What a DDP object is inside a join context. One for each object."""

    def __init__(
        self,
        iteration: Iteration,
        reducer: Reducer,
        buffers: BufferSync,
        parameters: Sequence[torch.Tensor],
        per_parameter: PerParameterReduction,
        device: torch.device,
    ) -> None:
        """``parameters``: all that are made equal at the end of a context, frozen and delayed ones included."""
        self.iteration = iteration
        self._device = device
        self._reducer = reducer
        self._buffers = buffers
        self._parameters = parameters
        self._per_parameter = per_parameter
        #: those of them that no bucket holds, frozen and delayed ones, and in which dtypes joined ranks know them
        self._apart: list[torch.Tensor] = []
        self._dtypes: list[tuple[torch.dtype, torch.dtype]] = []
        #: whose model all ranks took over at the end of the last context; group rank
        self.authoritative_rank: int | None = None

    def enter(self) -> None:
        """A join block begins.

        RuntimeError where gradients are averaged parameter by parameter, which nobody can shadow.
        """
        self._per_parameter.refuse_uneven_inputs(entered=True)
        self._reducer.end_what_raised()
        self._begin_anew()
        self._reducer.notice_changes()
        averaged = self._reducer.readiness.index_of
        self._apart = [] if self._reducer.lowers else [each for each in self._parameters if each not in averaged]
        self.notice_casts()
        self.iteration.recast = False  # all ranks have done the same

    def notice_casts(self) -> None:
        """Note whether a forward in a join block finds something cast that is sent without a bucket: what is delayed,
        or in the end what is frozen. The reducer sees to the rest."""
        if self._apart:
            dtypes = [(parameter.dtype, gradient_dtype(parameter)) for parameter in self._apart]
            self.iteration.recast |= dtypes != self._dtypes
            self._dtypes = dtypes

    def leave(self) -> None:
        """This rank has run out of inputs. RuntimeError where its last backward has left parameters out: no forward
        comes that would complain."""
        self._reducer.check_finished()

    def _begin_anew(self) -> None:
        """All ranks stand at one place: what was broken off or left open here before is over."""
        self.iteration.broken, self.iteration.awaits_backward = None, False

    @property
    def unbroken(self) -> bool:
        """Whether nothing of this model's last iteration can have been ended by an exception."""
        return self.iteration.broken is None and self._reducer.phase is Phase.IDLE

    def broken_off(self) -> BrokenOff | None:
        """What an exception has ended of this model's last synchronised iteration, inside the present join block."""
        reducer = self._reducer
        if self.iteration.broken is None and reducer.raised:
            return BrokenOff("backward ended with an exception", shadowed=reducer.reducing_with_others)
        return self.iteration.broken

    def note_failed_forward(self, error: BaseException) -> None:
        """The wrapped forward has raised: inside a join its peers may go on to what follows, a reduction as a rule."""
        if (torch.is_grad_enabled() and self.iteration.wants_reductions) or self._buffers.due_after_forward():
            self.iteration.break_off("forward", error, shadowed=False)

    def sync_final_model(self, is_last_joiner: bool) -> None:
        """All ranks take over parameters and buffers of the highest rank among the last joiners (DDPJ-016, 017)."""
        team, session, buffers = self.iteration.team, self.iteration.session, self._buffers
        if session is not None:  # its last message has told already who came last
            source = session.source
        else:
            source = GroupRank(self.find_common_rank(int(team.rank), is_last_joiner))
        self.authoritative_rank = int(source)
        self._reducer.restore_full_values()
        self.iteration.await_futures()  # else what a buffer hook has started here may write to them afterwards
        buffers.look_up()
        state = [*self._parameters]
        formerly: Sizes | None = None
        if buffers.in_forward:
            if buffers.formerly is not None:
                formerly = [*map(size_of, state), *buffers.formerly]
            state += buffers.tensors
        watch = self.iteration.watch()
        broadcast_coalesced(team, state, source, "final model", buffers.chunk_bytes, watch, formerly=formerly)
        buffers.begin_anew()
        self._begin_anew()  # also for a context around this one

    def find_common_rank(self, input_rank: int, rank_cond: bool) -> int:
        """The highest ``input_rank`` among ranks for which ``rank_cond`` holds; ValueError if for none (DDPJ-021)."""
        candidate = torch.tensor([input_rank if rank_cond else -1], dtype=torch.int64, device=self._device)
        highest = collectives.all_reduce(self.iteration.team, candidate, "common rank", dist.ReduceOp.MAX)
        found = int(highest.wait(self.iteration.watch()).item())
        if found == -1:
            self._reducer.log.fail(
                ValueError,
                "No rank of the group is a candidate, so no model can be taken over. This is a bug of ours: please "
                "report it.",
            )
        return found

    def any_reduction_wanted(self, is_joined_rank: bool) -> bool | None:
        """Tell, or on a joined rank learn, whether any rank synchronises its next backward (DDPJ-029).

        Our own joined ranks learn it from the announcements of ``Session``; this is torch's way. Live ranks do not wait
        and get None; joined ranks get the answer.
        """
        wanted = not is_joined_rank and self.iteration.wants_reductions
        flag = torch.tensor([wanted], dtype=torch.float32, device=self._device)
        pending = collectives.all_reduce(self.iteration.team, flag, "any backward to synchronise")
        return bool(pending.wait(self.iteration.watch()).item()) if is_joined_rank else None


class _DDPJoinHook(FollowingHook):
    """Follows the stages that live ranks announce.

    Raises AssertionError for anything but a complete DDP object (DDPJ-005). Creating it sets the model's divide rule
    (DDPJ-012) and the uneven-inputs entry of its log (DDPJ-006).
    """

    acts = tuple(stage.name for stage in Stage if stage is not Stage.PARAMETER)
    leads = True

    def __init__(self, ddp: Joinable, divide_by_initial_world_size: bool) -> None:
        """``ddp`` is known by what it has: the part that is made for this."""
        uneven = getattr(ddp, "__dict__", {}).get("_uneven")
        assert isinstance(uneven, UnevenInputs), (
            f"DDP join hook requires a DistributedDataParallel, not {type(ddp).__name__}"
        )
        logger: DDPLogger | None = getattr(ddp, "logger", None)
        assert logger is not None, "DDP join hook requires a model with a logger; this one has lost it"
        logger._set_uneven_input_join()
        self.uneven = uneven
        uneven.iteration.divides_by_initial_world_size = divide_by_initial_world_size
        #: the rule of the blocks that this hook serves
        self.divides_by_initial_world_size = uneven.iteration.divides_by_initial_world_size
        super().__init__()

    def alike(self) -> object:
        """Which model it is, and how averages divide."""
        return self.uneven.iteration.model()._config.number, self.divides_by_initial_world_size

    def follow(self, act: int) -> None:
        """Joined rank: go through the announced stage with nothing to contribute."""
        self.uneven.iteration.shadow(Stage(act))

    def begins(self, iterations: int) -> None:
        """Joined rank: count them."""
        self.uneven.iteration.begin(iterations)

    def entered(self) -> None:
        """RuntimeError where gradients are averaged parameter by parameter, which nobody can shadow."""
        self.uneven.enter()

    def leaving(self) -> None:
        """RuntimeError where this model's last backward here has left parameters out."""
        self.uneven.leave()

    def broken_off(self) -> BrokenOff | None:
        """What of this model's last iteration here an exception has ended."""
        return self.uneven.broken_off()

    def left_open(self) -> bool:
        """Whether this model's last iteration here has not come to its backward."""
        return self.uneven.iteration.awaits_backward

    def post_hook(self, is_last_joiner: bool) -> None:
        """All ranks take over the model of the highest rank among the last joiners (DDPJ-016 … DDPJ-020)."""
        self.uneven.sync_final_model(is_last_joiner)
