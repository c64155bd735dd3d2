"""Defects of area ddp: native mixed precision."""

from __future__ import annotations

from typing import Any

from impl.ddp import kernels
from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import defect, edit, swap


@defect("DDP-136")
def gradients_have_the_dtype_of_their_parameters() -> None:
    """In mixed precision gradients that a program keeps in another dtype are given the parameter's."""
    edit("parameter.grad.to(gradient_dtype(parameter))", "parameter.grad.to(parameter.dtype)")


@defect("DDP-136")
def what_is_thawed_behind_an_open_forward_stays_local_at_first() -> None:
    """While a forward without its backward holds parameters lowered, nobody looks for what has been thawed."""
    edit(
        "    self.restore_full_values()  #",
        "    if self._lowered is not None and self._lowered.lowered_now:\n            return  #",
        within="notice_changes",
    )


@defect("DDPJ-009")
def a_rank_that_leaves_a_forward_open_has_low_rows() -> None:
    """A joined rank's table of no rows has the dtype to which an open forward has lowered it, and not the others'."""
    edit("dtype=self.spec.dtype", "dtype=parameter.dtype", within="_no_rows")


@defect("DDP-136")
def rows_travel_in_the_dtype_of_their_gradient() -> None:
    """Sparse gradients are exchanged as they are, whatever dtype is asked for."""
    edit("return rows.to(self.spec.dtype)", "return rows")


@defect("DDP-135")
def a_failed_backward_leaves_parameters_lowered() -> None:
    """After a backward that raised, parameters that later iterations leave out stay in low precision."""
    edit("weakref.finalize(reached, failed)", "weakref.finalize(failed, print)")


@defect("DDP-135")
def who_saves_the_state_hears_of_no_lost_step() -> None:
    """A step behind a forward without its backward is lost where the state is saved, without a word."""
    edit("    self._check_unchanged()\n    self.restore_all()\n", "    self.restore_all()\n", within="_state_is_saved")


@defect("DDP-135")
def states_are_loaded_into_copies() -> None:
    """A state that is loaded between a forward and its backward goes into the low-precision copies."""
    edit(
        "self.restore_all()",
        "self._versions = {parameter: parameter._version for parameter in self._full}",
        within="_state_is_loaded",
    )


@defect("DDP-135")
def a_nested_backward_restores_what_the_outer_one_needs() -> None:
    """With mixed precision all parameters are full again at the end of a backward that runs inside another."""
    swap(kernels, "running_node", lambda: None)


@defect("DDP-135")
def all_restored_at_the_first_gradient() -> None:
    """All parameters get their full precision back when the first gradient has come, while backward still runs."""
    edit("    if not self._armed:\n", "    self.restore_all()\n    if not self._armed:\n", within="_gradient_came")


@defect("DDP-139")
def buffers_cast_at_the_first_forward() -> None:
    """Buffers take their dtype at the first forward, not at construction."""
    cast = swap(MixedPrecisionRun, "_cast_buffers", lambda self, ddp: setattr(self, "model", ddp))

    def before(self: MixedPrecisionRun, inputs: Any, kwargs: Any) -> Any:
        cast(self, self.model)
        return right(self, inputs, kwargs)

    right = swap(MixedPrecisionRun, "before_forward", before)


@defect("DDP-135")
def evaluation_leaves_parameters_lowered() -> None:
    """After a forward without gradients the parameters stay in low precision."""
    edit("(failed or not torch.is_grad_enabled())", "failed", within="after_forward")


@defect("DDP-135")
def failed_forward_leaves_parameters_lowered() -> None:
    """After a forward that raised the parameters stay in low precision until the next one."""
    edit("(failed or not torch.is_grad_enabled())", "not torch.is_grad_enabled()", within="after_forward")


@defect("DDP-138")
def ignored_tensors_are_cast() -> None:
    """Ignored parameters and buffers are cast like managed ones."""
    inside = "MixedPrecisionRun.__init__"
    edit("managed_parameters(module, ignored)", "managed_parameters(module, set())", within=inside)
    edit("managed_buffers(module, ignored)", "managed_buffers(module, set())", within=inside)


@defect("DDP-137")
def integers_are_cast() -> None:
    """Integer inputs are cast to the low precision like floating ones."""
    edit("tensor.to(low) if tensor.is_floating_point() else tensor", "tensor.to(low)")


@defect("DDP-140")
def low_precision_drops_old_gradients() -> None:
    """What a parameter had accumulated is lost where it is lowered."""
    edit("lower(changing, low)", "lower(changing, low), self._module().zero_grad()")


@defect("DDP-135")
def parameters_stay_lowered() -> None:
    """After backward the parameters are what they were lowered to."""
    edit("parameter.data = kept.to(", "parameter.data = parameter.data.to(", within="_restore")


@defect("DDP-136")
def reduces_in_full_precision() -> None:
    """Without a dtype for the reduction gradients travel in full precision."""
    edit("self.config.reduce_dtype or self.config.param_dtype", "self.config.reduce_dtype")


@defect("DDP-136")
def reduces_in_the_parameters_dtype() -> None:
    """With both given, gradients travel in the parameters' dtype, not in the reduction's."""
    edit("self.config.reduce_dtype or self.config.param_dtype", "self.config.param_dtype or self.config.reduce_dtype")


@defect("DDP-134")
def reduction_dtype_lowers_parameters() -> None:
    """A dtype for the reduction alone lowers the parameters too."""
    wrong = "low = self.config.param_dtype or self.config.reduce_dtype"
    edit("low = self.config.param_dtype", wrong, within="before_forward")


@defect("DDP-135")
def parameters_stay_lowered_where_no_bucket_starts() -> None:
    """Only buckets restore parameters, so that they stay lowered after a backward under no_sync."""
    edit("self._backward_over()", "self._armed = False", within="_backward_ended")


@defect("DDP-136")
def views_of_low_gradients() -> None:
    """Under mixed precision, too, gradients become views of buckets, whose dtype is another one."""
    edit("self.gradient_as_bucket_view and self.mixed_precision is None", "self.gradient_as_bucket_view")


@defect("DDP-135")
def frozen_parameters_are_not_lowered() -> None:
    """Only parameters that are trained are lowered for the forward."""
    edit(
        "for item in managed if item.parameter.is_floating_point()",
        "for item in managed if item.parameter.is_floating_point() and item.parameter.requires_grad",
    )


@defect("DDP-135")
def gradients_given_in_the_dtype_of_their_bucket() -> None:
    """Who has not used a parameter gets its gradient in the dtype in which it travelled."""
    edit("gradient_dtype(parameter), copy=True", "view.dtype, copy=True")


@defect("DDP-135")
def each_forward_lowers_anew() -> None:
    """A second forward before backward restores and lowers again, so that its graph ends in other nodes."""
    edit("    self._lower_all(low)\n", "    self.restore_all()\n    self._lower_all(low)\n", within="before_forward")


@defect("DDP-135")
def hooks_that_users_registered_come_after_the_reduction() -> None:
    """With mixed precision a bucket starts before hooks that users have registered since on its last parameter."""
    edit("for (parameter, hook), handle in self._last.items():", "for (parameter, hook), handle in ():")


@defect("DDP-135")
def accumulated_gradients_are_hidden_between_forward_and_backward() -> None:
    """What had accumulated before the forward is put aside, out of reach of zero_grad, and added after backward."""
    edit(
        "        lower(changing, low)\n",
        "        self._kept = [(each, each.grad) for each in self._parameters if each.grad is not None]\n"
        "        self._module().zero_grad()\n"
        "        lower(changing, low)\n",
    )
    edit(
        "    self._armed = False\n",
        "    self._armed = False\n"
        "    for each, old in self.__dict__.pop('_kept', ()):\n"
        "        each.grad = old if each.grad is None else each.grad + old\n",
        within="_backward_over",
    )


@defect("DDP-135")
def the_second_of_two_backwards_finds_full_values() -> None:
    """After two forwards the first backward restores what the second one still needs."""
    edit("if low is not None and not self._full:", "if False:", within="before_backward")


@defect("DDP-136")
def large_gradients_are_scaled_in_their_own_dtype() -> None:
    """Gradients that are large enough to be copied one by one are scaled before they are cast."""
    edit("torch.mul(source.to(view.dtype), factor, out=view)", "torch.mul(source, factor, out=view)")


@defect("DDP-135")
def only_synchronised_backwards_are_lowered_for() -> None:
    """The second of two backwards after two forwards under no_sync finds full values."""
    edit("call_when_backward_begins(made, pending", "call_when_backward_begins(made if sync else (), pending")


@defect("DDP-135")
def a_graph_is_lowered_for_once() -> None:
    """A second backward through the same graph finds full values."""
    edit(
        "if self._lowered is not None and backward != self.forwards.running_backward:",
        "if self._lowered is not None and not pending.spent:",
    )


@defect("DDP-135")
def what_a_forward_changes_is_lost() -> None:
    """What a forward changes of the low-precision copies is lost when the full values return."""
    edit("for parameter in self._changed():", "for parameter in ():")


@defect("DDP-136", "DDP-137")
def complex_gradients_travel_lowered() -> None:
    """With a lower dtype for reductions, complex gradients travel in it too."""
    edit(" if s.dtype.is_floating_point else s for s in specs]", " for s in specs]", within="reduced_specs")


@defect("DDP-135")
def a_forward_that_changes_rows_rounds_them_all() -> None:
    """Where a forward changes some elements of a lowered parameter, the full value takes over all of them."""
    changed = "torch.where(parameter.data == full.to(parameter.dtype), full, parameter.data.to(full.dtype))"
    edit(changed, "parameter.data")


@defect("DDP-136")
def casts_forget_the_dtype_of_reductions() -> None:
    """After a cast of the model gradients travel in the parameters' dtype."""
    asked = "if self._lowered is not None"
    edit(f"{asked}:", f"{asked} and self._lowered.lowered_now:", within="watch_anew")


@defect("DDP-135")
def frozen_models_stay_lowered() -> None:
    """After a backward of a model that is frozen for a while, which passes gradients on, the copies stay."""
    edit("elif not any(parameter.requires_grad for parameter in self._parameters):", "elif False:")


@defect("DDP-135")
def what_was_lowered_again_stays() -> None:
    """Where a graph is gone through again for its input alone, what is lowered for it stays."""
    edit("        self._lower_all(low)\n        self._gradient_came()\n", "        self._lower_all(low)\n")


@defect("DDP-135")
def copies_are_moved() -> None:
    """A model that is cast before a backward that never comes keeps the digits of its copies only."""
    edit("self.reducer.restore_full_values()", "pass", within="_apply")


@defect("DDP-135")
def copies_are_pickled() -> None:
    """A model that is pickled before a backward that never comes keeps the digits of its copies only."""
    edit("    self.reducer.restore_full_values()\n    kept =", "    kept =")


@defect("DDP-135")
def a_dropped_wrapper_leaves_copies() -> None:
    """A module whose wrapper is dropped before a backward that never comes keeps the digits of its copies only."""
    edit(
        "weakref.finalize(self, _restore, self._parameters, self._full, config.param_dtype, self._handles).atexit",
        "self._atexit",
    )


@defect("DDP-135")
def a_failed_backward_is_waited_for_ever() -> None:
    """After a backward that failed, none that is not synchronised gives full values back."""
    edit("_is_over(self._backward_ended, self._backward_over)", "_is_over(self._backward_ended, self.restore_all)")


@defect("DDP-135")
def what_a_forward_changes_is_noticed_late() -> None:
    """What a forward changes of the copies is taken for a step by the next forward, which refuses it."""
    edit("        self.restore_all()\n    self._note_versions()\n", "        self.restore_all()\n")


@defect("DDP-135")
def parts_are_saved_low() -> None:
    """Between a forward and its backward only the state of the whole module is saved in full."""
    edit("for part in self._module.modules()]", "for part in [self._module]]")


@defect("DDP-135")
def casts_between_forward_and_backward_are_undone() -> None:
    """What is cast past the wrapper between a forward and its backward is cast back with the full values."""
    edit("kept.dtype if parameter.dtype is low else parameter.dtype", "kept.dtype")


@defect("DDP-136")
def thawed_gradients_travel_in_full() -> None:
    """The gradients of what is thawed after wrapping travel in the parameters' own dtype."""
    edit("specs = self._lowered.reduced_specs(specs)", "pass", within="_take_in_thawed")


@defect("DDP-135")
def a_backward_inside_another_ends_lowering_for_none() -> None:
    """After a reentrant checkpoint's backward without synchronisation nothing gives full values back."""
    edit("        kernels.call_once_after(outer, self._arm)", "        pass")


@defect("DDP-135")
def thawed_parameters_tell_of_no_backward() -> None:
    """A backward that brings gradients of thawed parameters alone leaves the others in low precision."""
    edit("        self._lowered.watch([item.parameter for item in thawed])\n", "")


@defect("DDP-135")
def changed_copies_are_lost() -> None:
    """A step after a forward that has no backward changes low-precision copies, and is lost without a word."""
    edit("if self._changed():", "if False:", within="_check_unchanged")


@defect("DDPJ-009")
def thawed_where_they_are_low() -> None:
    """What is thawed while a forward has lowered it seems to be cast later, when some rank has run out of inputs."""
    edit("self.restore_full_values()", "pass", within="notice_changes")
