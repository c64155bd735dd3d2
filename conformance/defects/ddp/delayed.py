"""Defects of area ddp: delayed all-reduce."""

from __future__ import annotations

from ..planting import defect, edit

DUE = "if Stage.DELAYED in self.iteration.order"
REDUCES = "    with torch.no_grad():\n        self._gather_strays()"  # how it begins


def _locally(when: str) -> None:
    """Leave delayed gradients local where this held at the end of the last forward."""
    edit("self._notice_cast()", f"self._local = {when}\n    self._notice_cast()", within="after_forward")
    edit(REDUCES, f"    if self._local:\n        return\n{REDUCES}")


@defect("DDP-123")
def delayed_buffer_always_emptied() -> None:
    """The flat buffer of delayed gradients is emptied after every forward."""
    edit(
        "    self._fill_gaps()",
        "    for parameter in self._views:\n        parameter.grad = None\n    self._fill_gaps()",
        within="after_forward",
    )


@defect("DDP-123")
def delayed_buffer_keeps_old_gradients() -> None:
    """A delayed gradient that was set to None starts from what its view last held."""
    edit("            view.zero_()\n", "", within="_fill_gaps")


@defect("DDP-122")
def delayed_gradients_cleared_after_forward_stay_local() -> None:
    """A delayed gradient that is cleared between forward and backward is not taken into the buffer."""
    edit("self._gather_strays()", "pass", within="reduce")


@defect("DDP-122")
def delayed_gradients_stay_in_the_places_of_others() -> None:
    """A delayed gradient that was given the place of another parameter's is taken in after the backward only."""
    edit("self._gather_strays()", "pass", within="after_forward")


@defect("DDP-122")
def delayed_gradients_that_change_places_overwrite_each_other() -> None:
    """Delayed gradients that were moved come back to the memory that they had, in which another one may lie."""
    edit("self._lay_out()", "pass", within="_gather_strays")


@defect("DDP-122")
def delayed_gradients_one_by_one() -> None:
    """Each delayed gradient travels by itself instead of all in one piece."""
    edit("self._start(self._flats)", "self._start(list(self._views.values()))")


@defect("DDP-122")
def delayed_gradients_summed() -> None:
    """Delayed gradients are summed and not divided."""
    edit("kernels.divide(flat, 1 if divides_first(flat.dtype) else divisor)", "pass")


@defect("DDP-121")
def delayed_parameters_not_broadcast() -> None:
    """Delayed parameters keep each rank's own initial values."""
    edit("[parameter.detach() for parameter in parameters]", "[]")


@defect("DDP-122")
def evaluation_cancels_the_delayed_reduction() -> None:
    """A forward without gradients between forward and backward keeps delayed gradients from being averaged."""
    _locally("not torch.is_grad_enabled()")


@defect("DDP-122")
def strays_stay_beside_the_delayed_buffer() -> None:
    """A delayed gradient that came in other memory is averaged in the buffer, but stays where and what it was."""
    edit(
        "parameter.grad = view.detach()",
        "parameter.grad = view.detach() if parameter.grad is None else parameter.grad",
        within="_gather_strays",
    )


@defect("DDP-122")
def delayed_gradients_stay_local_at_first() -> None:
    """The first backward does not reduce the delayed gradients."""
    edit(DUE, f"{DUE} and self.facts.rebuilt")


@defect("DDP-122")
def delayed_gradients_of_further_backwards_stay_local() -> None:
    """Where several backwards bring the gradients of one forward, the delayed ones are not averaged."""
    edit("self._arm()", "self._further = True\n        self._arm()", within="_bucket_filled")
    edit(DUE, f'{DUE} and not vars(self).get("_further")')


@defect("DDP-128")
def one_kind_of_delayed_gradients() -> None:
    """Of delayed gradients of several kinds those of the first are reduced, the others stay local."""
    edit("for pending in self._start(self._flats):", "for pending in self._start(self._flats[:1]):")


@defect("DDP-122")
def an_evaluation_decides_for_the_backward_to_come() -> None:
    """A forward without gradients under no_sync, before the backward, keeps delayed gradients from being averaged."""
    _locally("not self._iteration.wants_reductions and not torch.is_grad_enabled()")


@defect("DDP-128")
def delayed_gradients_are_divided_as_the_first_dtype_is() -> None:
    """Whether the sum is divided before or after it is decided by the dtype of the first delayed gradients."""
    edit(
        "kernels.divide(flat, 1 if divides_first(flat.dtype) else divisor)",
        "kernels.divide(flat, 1 if divides_first(self._flats[0].dtype) else divisor)",
    )


@defect("DDP-122")
def delayed_gradients_are_local_in_evaluation_mode() -> None:
    """A backward through a model in evaluation mode does not reduce the delayed gradients."""
    _locally("not self._iteration.training")


@defect("DDP-049")
def delayed_doubles_travel_as_floats() -> None:
    """The gradient of a delayed parameter travels in the parameter's dtype, not in that of its gradient."""
    edit("return gradient_dtype(parameter), parameter.device", "return parameter.dtype, parameter.device")


@defect("DDP-126")
def the_last_forward_decides_for_delayed_gradients() -> None:
    """Delayed gradients are reduced where the last forward is synchronised, whichever backward comes."""
    _locally("not self._iteration.wants_reductions")


@defect("DDP-127")
def every_parameter_is_delayed() -> None:
    """Where all parameters that are trained are to be delayed, none is left for the buckets."""
    edit("return chosen if some_go_first else {}", "return chosen")


@defect("DDP-122")
def moved_gradients_are_taken_for_the_buffers() -> None:
    """A delayed gradient whose data were moved elsewhere, as a cast or another layout does, is not taken in."""
    handed = "parameter.grad = view.detach() if parameter.requires_grad else None"
    edit(handed, f"{handed}\n            parameter.grad.handed = True")
    edit("each.data_ptr() == self._views[p].data_ptr()", 'hasattr(each, "handed")')


@defect("DDP-122")
def old_gradients_of_who_leaves_it_out_are_averaged() -> None:
    """A delayed layer that this rank leaves out, with gradients that were cleared, adds those of the last iteration."""
    edit("        self._fill_gaps()\n        divisor", "        divisor")


@defect("DDP-128")
def delayed_under_one_of_two_names() -> None:
    """A delayed parameter with two names travels in a bucket as well, under the name that was not given."""
    edit("if id(parameter) not in left_out", "if name not in ignored", within="managed_parameters")


@defect("DDP-058")
def a_frozen_delayed_parameter_gets_a_gradient() -> None:
    """A delayed parameter that is frozen has a gradient of zeros after a forward."""
    edit("parameter.grad = view.detach() if parameter.requires_grad else None", "parameter.grad = view.detach()")


@defect("DDP-058")
def the_gradient_of_a_frozen_delayed_parameter_is_averaged() -> None:
    """A gradient that a frozen delayed parameter has from elsewhere is averaged with the others."""
    edit("if not each.requires_grad]", "if False]", within="DelayedReduction.reduce")


@defect("DDP-122")
def delayed_gradients_stay_local_while_all_others_are_frozen() -> None:
    """A backward in which only delayed parameters are trained is taken for none that is reduced."""
    edit("self.reducer.arrivals.beside = self._delayed_parameters", "pass")
@defect("DDP-122")
def sparse_gradients_are_not_gathered() -> None:
    """A delayed gradient that has become sparse since the forward stays where it is, and is not averaged."""
    edit("all(not each.is_sparse and each.data_ptr()", "all(each.is_sparse or each.data_ptr()")
