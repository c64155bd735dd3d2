"""Defects of area ddp: replica consistency at start."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from impl.comm import collectives
from impl.comm.pending import Pending
from impl.comm.ranks import GroupRank, Team
from impl.ddp import DistributedDataParallel
from impl.ddp.reducer import Reducer

from ..planting import defect, edit, swap


@defect("DDP-025", "DDP-083")
def buffers_not_broadcast_at_the_start() -> None:
    """Parameters are made equal at the start, buffers are not."""
    edit("for item in managed), *buffers.values()]", "for item in managed)]")


@defect("DDP-029")
def what_is_delayed_is_not_compared() -> None:
    """Parameters that are reduced late may be of another shape on each rank."""
    edit("for name, parameter in late.items()", "for name, parameter in ()")


@defect("DDP-034")
def casting_leaves_the_hooks_behind() -> None:
    """Moving or casting the model does not have its gradients watched anew."""
    edit("self.reducer.watch_anew()", "pass")
    edit("        self.watch_anew()\n", "        pass\n", within="notice_changes")


@defect("DDP-034")
def a_cast_that_joined_ranks_cannot_follow_is_not_refused() -> None:
    """Inside a context live ranks go on with gradients of a dtype of which joined ranks do not know."""
    edit("if not session.everyone_active:", "if False:", within="_refuse_recast")


@defect("DDP-034")
def a_cast_is_noticed_by_the_first_parameter_alone() -> None:
    """Where a part of the model is cast past the wrapper, and the first parameter is not in it, nothing is watched."""
    edit(
        "list(map(_form_of, self.parameters)) != self._forms", "_form_of(self.parameters[0]) != self._forms[0]",
        within="notice_changes",
    )  # fmt: skip


@defect("DDP-049")
def a_cast_past_the_wrapper_is_noticed_by_forwards_alone() -> None:
    """A rank that enters a context with a model that was cast, and makes no forward in it, shadows in the old dtype."""
    edit("self._reducer.notice_changes()", "pass")


@defect("DDP-049")
def buckets_that_are_made_in_inference_mode_cannot_be_trained_with() -> None:
    """Where a model is wrapped, or laid out anew, in inference mode, its buckets are no ordinary tensors."""
    edit("with torch.inference_mode(False):", "if True:", within="BucketQueue.lay_out")


@defect("DDP-036")
def what_takes_no_gradients_is_watched_for_them() -> None:
    """A model that was made in inference mode cannot be wrapped, even to be evaluated."""
    edit("if parameter.is_inference():", "if False:", within="Arrivals._hook")


@defect("DDP-049")
def gradients_cannot_be_watched_from_inference_mode_on() -> None:
    """A context that only evaluates, in inference mode, cannot be entered once the model was laid out anew."""
    edit("with outside_transforms(), torch.inference_mode(False):", "with outside_transforms():")
def a_backward_that_failed_hides_what_has_changed_since() -> None:
    """What was done to the model behind a backward that failed is looked at before that one is given up."""
    edit(
        "        reducer.check_finished()\n        reducer.notice_changes()\n",
        "        reducer.notice_changes()\n        reducer.check_finished()\n",
    )


@defect("DDP-049")
def what_is_thawed_stays_local() -> None:
    """What was frozen when the model was wrapped keeps local gradients for ever."""
    edit("self._take_in_thawed()", "pass", within="notice_changes")


@defect("DDP-049")
def what_is_thawed_stays_local_without_buckets() -> None:
    """What is thawed where gradients are averaged parameter by parameter is not averaged that way."""
    edit("self.reducer.if_thawed = self._per_parameter.watch_thawed", "pass")


@defect("DDP-027")
def counts_told_without_ranks() -> None:
    """The error about different numbers of parameters does not say which rank has how many."""
    edit("{found}", "see the model")


@defect("DDP-027")
def frozen_parameters_compare_as_trained() -> None:
    """The comparison of the ranks' models does not see which parameters are trained."""
    edit('", requires grad" if tensor.requires_grad else ""', '""')


@defect("DDP-025")
def frozen_parameters_not_broadcast() -> None:
    """Only parameters that require a gradient are made equal at the start."""
    edit("[*(item.parameter for item in managed)", "[*(i.parameter for i in managed if i.parameter.requires_grad)")


@defect("DDP-025", "DDP-080", "DDPJ-022", "ZERO-008", "HOOK-044", worlds=(3,))
def group_rank_taken_for_global_rank() -> None:
    """The source of a broadcast is given to torch as a group rank, which takes it for a global one."""
    def broadcast(team: Team, buffer: torch.Tensor, source: GroupRank, label: str) -> Any:
        return Pending(label, buffer, dist.broadcast(buffer, src=int(source), group=team.group, async_op=True))

    swap(collectives, "broadcast", broadcast)


@defect("DDP-026")
def init_sync_ignored() -> None:
    """init_sync=False is ignored: the initial broadcast is made all the same."""
    edit("if flag(\"init_sync\", init_sync):", "if True:")


@defect("DDP-034")
def a_replaced_parameter_is_taken_for_an_unused_one() -> None:
    """Where unused parameters are searched for, nobody looks for what came into their places."""
    edit("self.usage.unused - self._unused_before or not self.readiness.anything()", "not self.readiness.anything()")


@defect("DDP-027")
def only_differing_ranks_refuse() -> None:
    """A rank compares itself with rank 0 alone, so that rank 0 is content and goes on."""
    edit("    if others:", "    if team.rank in others:", within="verify_alike")


@defect("DDP-028", "DDP-030")
def shapes_not_compared() -> None:
    """Ranks compare names and dtypes of their models only."""
    edit("shape {tuple(tensor.shape)}, {tensor.dtype}, strides {tensor.stride()}", "{tensor.dtype}")


@defect("DDP-035")
def splits_the_input() -> None:
    """Each rank takes its share of the input instead of all of it."""
    def forward(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        team = self.reducer.team
        mine = [
            x.chunk(team.size)[team.rank] if isinstance(x, torch.Tensor) and len(x) >= team.size else x for x in inputs
        ]
        return right(self, *mine, **kwargs)

    right = swap(DistributedDataParallel, "_run_ddp_forward", forward)


@defect("DDP-025")
def starts_from_the_last_rank() -> None:
    """Replicas start equal to the last rank of the group instead of the first."""
    edit("GroupRank(0)", "GroupRank(team.size - 1)", within="synchronise_start")


@defect("DDP-030")
def strides_not_compared() -> None:
    """Ranks compare shapes, not strides."""
    edit(", strides {tensor.stride()}", "")


@defect("DDP-026")
def compares_without_initial_sync() -> None:
    """init_sync=False leaves the broadcast out, and the ranks compare their models all the same."""
    edit(
        "    self._config = config\n",
        "    if not init_sync:\n"
        "        params.verify_alike(self._iteration.team, {}, managed, {}, config.caps, config.placement.device,\n"
        "                            self._log_and_throw)\n"
        "    self._config = config\n",
        within="DistributedDataParallel.__init__",
    )


@defect("DDP-033")
def averages_what_was_added_later() -> None:
    """After each backward what was added since wrapping is averaged, too, though other ranks may not have it."""
    def deliver(self: Reducer) -> None:
        known = set(map(id, self.parameters))
        for parameter in self.module.parameters():
            if id(parameter) not in known and parameter.grad is not None:
                collectives.all_reduce(self.team, parameter.grad, "added").wait()
                parameter.grad /= self.team.size
        right(self)

    right = swap(Reducer, "_delivered", deliver)


@defect("DDP-025", "DDP-087")
def integers_travel_as_doubles() -> None:
    """What is not a number with a point makes the way through a double."""
    edit(
        "_overwrite([tensor.data for tensor in chunk], parts)",
        "copy_all(\n            [tensor.data for tensor in chunk],\n"
        "            [part if part.is_floating_point() or part.is_complex() else part.double() for part in parts])",
    )


@defect("DDP-025", "DDP-087")
def doubles_travel_as_floats() -> None:
    """Doubles are rounded on their way from rank 0."""
    edit(
        "_overwrite([tensor.data for tensor in chunk], parts)",
        "copy_all(\n            [tensor.data for tensor in chunk],\n"
        "            [part.float() if part.dtype == torch.float64 else part for part in parts])",
    )


@defect("DDP-025", "DDP-087")
def imaginary_parts_stay() -> None:
    """Of complex numbers the real part alone comes from rank 0."""
    edit(
        "_overwrite([tensor.data for tensor in chunk], parts)",
        "copy_all(\n            [tensor.data.real if tensor.is_complex() else tensor.data for tensor in chunk],\n"
        "            [part.real if part.is_complex() else part for part in parts])",
    )


@defect("DDP-005")
def every_tensor_travels_alone() -> None:
    """Each parameter and buffer has a broadcast of its own."""
    edit("size + stored.nbytes > chunk_bytes", "size + stored.nbytes > 0")


@defect("DDP-005")
def chunks_are_counted_in_elements() -> None:
    """The size of a chunk is taken for a number of elements."""
    edit("chunk and size + stored.nbytes > chunk_bytes", "chunk and size + stored.numel() > chunk_bytes")
    edit("size += stored.nbytes", "size += stored.numel()")


@defect("DDP-025")
def buffers_may_be_expanded_outermost() -> None:
    """Of an expanded buffer only the outermost dimension is taken once, and the others are written to as a whole."""
    edit("if stride == 0:", "if stride == 0 and dimension == 0:", within="each_once")


@defect("DDP-034")
def sparse_messages_are_kept_for_their_shapes() -> None:
    """A message of sparse gradients is used again for as many rows of as many numbers, of whatever dtype these are."""
    edit("self._kinds == _kinds(parts)", "[row for _, row in self._kinds] == [row for _, row in _kinds(parts)]")


@defect("DDP-087")
def copies_of_marked_numbers_are_overwritten() -> None:
    """What is marked as conjugate or negative stays as it is: a copy without the mark takes what has come."""
    edit("            target.copy_(source)", "            target.resolve_conj().resolve_neg().copy_(source)")


@defect("DDP-030")
def neighbours_of_any_layout_are_joined() -> None:
    """Small gradients of one shape are joined row by row, whatever the strides of their parameters."""
    edit("and one.is_contiguous()\n        and following.is_contiguous()\n", "")


@defect("DDP-020")
def ranks_may_differ_in_whether_forwards_synchronise_buffers() -> None:
    """Whether forwards synchronise buffers is not compared, so that some ranks send buffers and others do not."""
    edit('        "buffers synchronised in forward": self.sync_buffers,\n', "", within="deciding_collectives")
