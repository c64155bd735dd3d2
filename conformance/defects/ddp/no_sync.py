"""Defects of area ddp: no_sync."""

from __future__ import annotations

from impl.ddp.pending_backward import PendingBackward
from impl.ddp.reducer import Reducer
from impl.ddp.usage import Usage

from ..planting import defect, edit, swap


@defect("DDP-074")
def backward_decides_about_sync() -> None:
    """What counts is where the backward runs, not where the forward ran."""
    def begin(self: Reducer, pending: PendingBackward) -> None:
        model = self.iteration.model()
        pending.sync = model.require_backward_grad_sync
        right(self, pending)

    right = swap(Reducer, "begin", begin)


@defect("DDP-076")
def leaving_no_sync_meets() -> None:
    """Leaving no_sync waits for the other ranks."""
    edit(
        "self.require_backward_grad_sync = before",
        "self.require_backward_grad_sync = before\n        dist.barrier(self.process_group)",
    )


@defect("DDP-076")
def leaving_no_sync_reduces() -> None:
    """Leaving no_sync averages what has accumulated at once."""
    edit(
        "self.require_backward_grad_sync = before",
        "self.require_backward_grad_sync = before\n"
        "        for parameter in self.reducer.parameters:\n"
        "            if parameter.grad is not None:\n"
        "                dist.all_reduce(parameter.grad, group=self.process_group)\n"
        "                parameter.grad /= dist.get_world_size(self.process_group)",
    )


@defect("DDP-075")
def no_sync_ends_in_sync() -> None:
    """Leaving no_sync switches synchronisation on, whatever it was before."""
    edit("self.require_backward_grad_sync = before", "self.require_backward_grad_sync = True")


@defect("DDP-075")
def no_sync_not_left_after_an_error() -> None:
    """An exception inside no_sync leaves synchronisation switched off."""
    edit("    try:\n        yield\n    finally:\n        self", "    if True:\n        yield\n        self")


@defect("DDP-072", "DDP-074")
def no_sync_reduces() -> None:
    """Inside no_sync gradients are reduced as outside."""
    edit("expect_backward(output, given, sync=sync,", "expect_backward(output, given, sync=True,")


@defect("DDP-077")
def use_before_the_last_backward_forgotten() -> None:
    """A parameter that was used only inside no_sync counts as unused in the closing reduction."""
    swap(Usage, "here", lambda self, index: index not in self.unused)


@defect("DDP-077")
def use_before_a_new_beginning_forgotten() -> None:
    """A new group, or a thawed parameter, makes forget what was used only inside no_sync."""
    edit(
        "self._since_sync.extend(bytes(len(self._specs) - len(self._since_sync)))",
        "self._since_sync = bytearray(len(self._specs))",
    )


@defect("DDP-077")
def an_evaluation_forgets_use() -> None:
    """A forward in between that is not synchronised makes forget what was used only inside no_sync."""
    edit("        buffers.evaluated()\n", "        buffers.evaluated()\n        self.reducer.usage.delivered()\n")


@defect("DDP-047")
def an_evaluation_rebuilds_the_buckets() -> None:
    """The first forward after the order of arrival is known agrees on the buckets, also one without gradients."""
    edit("if not self.facts.rebuild_due or not torch.is_grad_enabled():", "if not self.facts.rebuild_due:")


@defect("DDP-072")
def no_sync_rebuilds_the_buckets() -> None:
    """The first forward after the order of arrival is known agrees on the buckets, also one under no_sync."""
    edit("(iteration.session is None and self.team.tally.buffers_travel)", "True")


@defect("DDP-073")
def the_rebuild_waits_while_buffers_are_sent() -> None:
    """Buckets are rebuilt by synchronised forwards alone, which some ranks begin with buffers, and others do not."""
    edit("(iteration.session is None and self.team.tally.buffers_travel)", "False")


@defect("DDP-073")
def only_a_model_with_buffers_is_rebuilt_where_they_are_sent() -> None:
    """Another model of the group, without buffers, is rebuilt by synchronised forwards alone."""
    edit("self.team.tally.buffers_travel)", "bool(list(self.module.buffers())))")


@defect("DDP-074")
def what_the_reducer_is_told_stays_local() -> None:
    """A backward that the reducer was told of by prepare_for_backward is local."""
    edit("pending = PendingBackward(sync=True)", "pending = PendingBackward(sync=False)")


@defect("DDP-072")
def parameters_that_are_outputs_begin_a_backward() -> None:
    """Every later backward that reaches a parameter which a forward has handed out is taken for that forward's."""
    edit("tensor.grad_fn is not None", "tensor.requires_grad", within="call_when_backward_begins")


@defect("DDP-077")
def a_cast_is_noticed_by_synchronised_forwards_alone() -> None:
    """After a cast past the wrapper, forwards under no_sync are watched on the nodes from before."""
    edit("        reducer.notice_changes()\n", "        if sync:\n            reducer.notice_changes()\n")


@defect("DDP-062", "DDP-072")
def forwards_inside_complain_of_nothing() -> None:
    """What an iteration left open, the next one completes, if its forward ran inside no_sync."""
    edit("reducer.check_finished()", "sync and reducer.check_finished()", within="_pre_forward")


@defect("DDP-068", "DDP-074")
def backwards_inside_a_local_one_are_warned_of() -> None:
    """Those of reentrant checkpoints, in the backward of a forward under no_sync, are taken for losses of others."""
    edit("not (pending.spent and pending.sync)", "not pending.spent", within="goes_past")
