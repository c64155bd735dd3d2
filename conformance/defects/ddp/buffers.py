"""Defects of area ddp: buffers and buffer communication hooks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from impl.comm.ranks import GroupRank
from impl.ddp import buffers
from impl.ddp.buffers import BufferSync, _BufferCommHook, _BufferCommHookLocation
from impl.ddp.iteration import Iteration

from ..planting import defect, edit, swap


@defect("DDP-092")
def any_buffer_hook_accepted() -> None:
    """A buffer hook that cannot be called is found out in the first forward."""
    edit("assert callable(hook),", "assert hook is not None,")


@defect("DDP-095")
def buffer_futures_not_awaited() -> None:
    """Nobody waits for the futures that a buffer hook returns."""
    edit("if self._iteration.futures:", "if False:", within="_results")


@defect("DDP-091")
def buffer_hook_before_by_default() -> None:
    """A buffer hook without a location runs before the forward."""
    edit(
        "= _BufferCommHookLocation.POST_FORWARD",
        "= _BufferCommHookLocation.PRE_FORWARD",
        within="_register_buffer_comm_hook",
    )


@defect("DDP-093")
def buffer_hook_beside_the_broadcast() -> None:
    """The broadcast is made although a buffer hook is registered."""
    edit("    else:\n        self._broadcast()", "    if True:\n        self._broadcast()")


@defect("DDP-094")
def buffer_hook_runs_twice() -> None:
    """A buffer hook runs before the forward and after it, whatever its location."""
    edit("hook.buffer_comm_hook_location is _BufferCommHookLocation.POST_FORWARD", "True")
    edit("hook.buffer_comm_hook_location is _BufferCommHookLocation.PRE_FORWARD", "True")


@defect("DDP-093")
def buffer_hook_sees_prefixed_names() -> None:
    """A buffer hook is given the names of the DDP model, with module. in front."""
    def call(self: _BufferCommHook, buffers: dict[str, torch.Tensor]) -> list[Any]:
        return right(self, {f"module.{name}": buffer for name, buffer in buffers.items()})

    right = swap(_BufferCommHook, "call", call)


@defect("DDP-096")
def buffer_hook_without_buffers() -> None:
    """A buffer hook is called for a model that has no buffers, with an empty dictionary."""
    edit("return wanted and len(self.tensors) > 0", "return wanted")


@defect("DDP-094")
def buffer_hooks_at_torchs_locations_never_run() -> None:
    """A location for a buffer hook is kept as it is given; one of torch's enumeration is none of ours, and nothing
    runs."""
    swap(_BufferCommHookLocation, "of", lambda location: location)


@defect("DDP-086")
def buffer_sync_counts_as_a_change() -> None:
    """Overwriting buffers bumps their versions, and a graph that saved them is lost."""
    edit("[tensor.data for", "[tensor.detach() for")


@defect("DDP-086")
def buffer_hook_counts_as_a_change() -> None:
    """What a buffer hook changes bumps versions, and a graph that saved the buffers is lost."""
    edit("calling_a_hook(self._iteration.team), kept:", "calling_a_hook(self._iteration.team):")


@defect("DDP-080", "DDP-087")
def buffers_are_averaged() -> None:
    """Buffers are averaged over the ranks instead of following rank 0."""
    def average(self: BufferSync) -> None:
        team = self._iteration.team
        for buffer in self.tensors:
            mean = buffer.double()
            dist.all_reduce(mean, group=team.group)
            buffer.copy_(mean / team.size)

    swap(BufferSync, "_broadcast", average)


@defect("DDP-080")
def buffers_follow_the_last_rank() -> None:
    """Outside of joins, buffers follow the last rank of the group."""
    swap(Iteration, "source", lambda self: GroupRank(self.team.size - 1))
    swap(Iteration, "likely_source", lambda self: GroupRank(self.team.size - 1))


@defect("DDP-084")
def buffers_looked_up_once() -> None:
    """Buffers are looked up at construction only; one that the module replaces is left behind."""
    edit("    self.look_up()\n", "", within="synchronise")


@defect("DDP-080")
def buffers_synchronised_after_the_forward() -> None:
    """Buffers are broadcast after the wrapped forward, which has then read the old ones."""
    before = swap(BufferSync, "comes_before_forward", lambda self: bool(self.hook) and before(self))
    after = swap(
        BufferSync,
        "due_after_forward",
        lambda self: self.will_synchronise() if self.hook is None else after(self),
    )


@defect("DDP-081", "DDP-096")
def buffers_synchronised_in_no_sync_too() -> None:
    """Buffers are broadcast whatever the former forward said."""
    edit("allowed and self", "self")


@defect("DDP-080")
def first_buffers_are_overlooked() -> None:
    """A model that has no buffers when it is wrapped is taken to have none for ever."""
    edit("if wanted and not self.tensors and", "if False and")


@defect("DDP-088")
def evaluation_keeps_its_own_buffers() -> None:
    """An evaluation never synchronises buffers, so that every rank evaluates a model of its own."""
    edit("return self._iteration.session is not None or not self._iteration.wants_reductions", "return True")


@defect("DDP-088")
def evaluation_mode_switches_buffers_off() -> None:
    """In evaluation mode buffers are not synchronised, gradients or not."""
    edit("and not self._evaluates_alone()", "and self._iteration.training")


@defect("DDP-081")
def evaluation_outlives_accumulation() -> None:
    """What an evaluation left to be synchronised waits for the next synchronised forward, past all accumulating
    ones."""
    edit(
        "self.due_after_evaluation = False",
        "self.due_after_evaluation &= not self._iteration.wants_reductions",
        within="trained",
    )


@defect("DDP-085", "DDP-149")
def ignored_buffers_take_part() -> None:
    """Buffers on the ignore list are synchronised like others."""
    swap(buffers, "managed_buffers", lambda module, ignored: dict(module.named_buffers()))


@defect("DDP-083")
def newer_switch_silences_the_start() -> None:
    """forward_sync_buffers=False switches off the broadcast at construction too."""
    edit("if config.sync_buffers_at_start else {}", "if config.sync_buffers else {}")


@defect("DDP-083")
def old_buffer_switch_rules_the_start() -> None:
    """The old switch for buffers decides about the start although the newer one was given, too."""
    edit("broadcast_buffers is not False or forward_sync_buffers is not None", "broadcast_buffers is not False")


@defect("DDP-083")
def older_switch_wins() -> None:
    """Of the two switches for buffers the older one wins."""
    edit(
        "if forward_sync is not None:",
        "if forward_sync is not None and broadcast_buffers is None:",
        within="syncs_buffers_in_forward",
    )


@defect("DDP-087")
def only_floating_buffers() -> None:
    """Integer and boolean buffers are left out."""
    edit("if name not in ignored", "if name not in ignored and buffer.is_floating_point()", within="managed_buffers")


@defect("DDP-087")
def only_persistent_buffers() -> None:
    """Buffers that are not in the state dict are left out."""
    edit("if name not in ignored", "if name not in ignored and name in module.state_dict()", within="managed_buffers")


@defect("DDP-095")
def only_the_first_future_of_a_hook_counts() -> None:
    """Of the futures that a buffer hook returns only the first is waited for."""
    edit("return list(futures) if", "return list(futures)[:1] if")


@defect("DDP-082")
def switch_off_forgets_the_start() -> None:
    """broadcast_buffers=False leaves the broadcast at construction in place."""
    edit(
        "sync_buffers_at_start=broadcast_buffers is not False or",
        "sync_buffers_at_start=module is not None or",
    )


@defect("DDP-095")
def buffer_futures_awaited_in_forward() -> None:
    """The futures of a buffer hook are awaited at once, while the loop may complete them later."""
    edit(
        "self._iteration.futures.extend(self.hook.call(self.named))",
        "self._iteration.futures.extend(self.hook.call(self.named))\n"
        "            [future.wait() for future in self._iteration.futures]",
    )


@defect("DDP-089")
def inference_is_no_evaluation() -> None:
    """Only evaluations under no_grad are made up for, those in inference mode are not."""
    edit(
        "self.due_after_evaluation |= self.allowed",
        "self.due_after_evaluation |= self.allowed and not torch.is_inference_mode_enabled()",
    )


@defect("DDP-089")
def evaluations_in_eval_mode_are_not_made_up_for() -> None:
    """An evaluation switches the next buffer broadcast off if the model was in evaluation mode."""
    edit(
        "self.due_after_evaluation |= self.allowed",
        "self.due_after_evaluation |= self.allowed and self._iteration.training",
    )


@defect("DDP-084")
def later_buffers_are_overlooked() -> None:
    """Buffers that a module got after it was wrapped are not synchronised."""
    edit(
        "    self.tensors = list(",
        "    known = self.__dict__.setdefault('_known', set(self.named))\n"
        "    self.named = {k: v for k, v in self.named.items() if k in known}\n"
        "    self.tensors = list(",
    )


@defect("DDP-081")
def an_evaluation_makes_up_for_another() -> None:
    """A second evaluation in a row sends the buffers once more."""
    edit("torch.is_grad_enabled() and self.due_after_evaluation", "self.due_after_evaluation")


@defect("DDP-081", "DDP-088")
def said_by_the_mode_of_a_former_forward() -> None:
    """Once trained, a model says of an evaluation under no_sync that it will synchronise buffers."""
    edit(
        "torch.is_grad_enabled() or self._iteration.model().training",
        "(self.__dict__.pop('mode', True), self.__dict__.update(mode=self._iteration.model().training))[0]"
        " or torch.is_grad_enabled()",
    )


@defect("DDP-096")
def a_hook_after_the_forward_goes_by_that_forward() -> None:
    """A buffer hook that runs after the forward is called if this forward is synchronised, whatever the one before."""
    edit(
        "and self.will_synchronise()",
        "and self._iteration.wants_reductions and self.in_forward and len(self.tensors) > 0",
        within="due_after_forward",
    )


@defect("DDP-049")
def futures_of_a_failed_backward_are_awaited_by_the_next() -> None:
    """What a buffer hook returned in an iteration whose backward failed is waited for in the next one."""
    edit("self.iteration.futures.clear()", "pass", within="Reducer._go_idle")


@defect("DDP-005", "DDP-087")
def a_broadcast_of_nothing_sends_all_buffers() -> None:
    """Asked to broadcast an empty list, the object broadcasts its buffers."""
    edit("tensors = self.modules_buffers if bufs is None else bufs", "tensors = bufs or self.modules_buffers")


@defect("DDP-084")
def buffers_of_the_module_that_was_wrapped() -> None:
    """Where another module takes the place of the wrapped one, its buffers are not synchronised."""
    edit("self.reducer.module = self._buffer_sync.module = self.module", "self.reducer.module = self.module")


@defect("DDP-095")
def futures_under_no_sync_are_left_alone() -> None:
    """A backward under no_sync returns before the futures that a buffer hook returned for its forward are done."""
    edit("if self.iteration.futures and not pending.sync", "if False")


@defect("DDP-095")
def only_the_mode_with_buckets_awaits_futures_under_no_sync() -> None:
    """Where gradients are averaged one by one, a backward under no_sync does not wait for a buffer hook's futures."""
    edit(
        "if self.iteration.futures and not pending.sync",
        "if self.arrivals.watching and self.iteration.futures and not pending.sync",
    )


@defect("DDPJ-026")
def no_roll_call_before_a_hook_without_gradients() -> None:
    """A forward without gradients tells nobody of itself, though a buffer hook follows it on all ranks."""
    edit("needed = recorded or self._buffer_sync.due_after_forward()", "needed = recorded")


@defect("DDP-080")
def sizes_of_buffers_are_not_compared() -> None:
    """A rank whose buffers have other sizes than at first does not compare them with what it is told."""
    edit("if not torch.equal(told, expected)", "if False")


@defect("DDP-080")
def a_message_of_other_sizes_is_taken_for_buffers() -> None:
    """A rank whose buffers are as they were takes what it is told of other sizes for its buffers."""
    edit("packed[:4].view(torch.int32).item() == _UNLIKE", "False")


@defect("DDP-081")
def an_evaluation_behind_accumulation_is_made_up_for() -> None:
    """Behind a forward under no_sync, the one after an evaluation synchronises buffers, as it would not else."""
    edit("self.due_after_evaluation |= self.allowed", "self.due_after_evaluation = True")


@defect("DDP-084")
def buffers_that_have_changed_are_taken_to_be_there() -> None:
    """A model whose only buffer is gone is asked for that one's device."""
    edit("formerly is not None and tensors and tensors[0].is_cpu", "formerly is not None and tensors[0].is_cpu")


@defect("DDP-080", worlds=(2,))
def buffers_without_elements_are_waited_for() -> None:
    """Who is told that the buffers of rank 0 have no elements now waits for a message of them."""
    edit("if opening == _UNLIKE and next_bytes:", "if opening == _UNLIKE:")
