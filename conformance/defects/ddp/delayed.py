"""Defects of area ddp: delayed all-reduce."""

from __future__ import annotations

from ..planting import defect, edit

DUE = "if Stage.DELAYED in self.iteration.order"
REDUCES = "    frozen = self._frozen\n    self._follow_changes()\n"  # how it begins
DELIVERS = "    self._queue.deliver(frozen)\n"
#: leaves what is None with what its place last held
OLD = (
    "    for bucket in self._queue.buckets:\n"
    "        for each, handed in zip(bucket.parameters, bucket._handed, strict=True):\n"
    "            each.grad = handed if each.grad is None and each.requires_grad else each.grad\n"
)


def _locally(when: str) -> None:
    """Leave delayed gradients local where this held at the end of the last forward."""
    edit("self._follow_changes()  # now", f"self._local = {when}\n    self._follow_changes()  # now")
    edit(REDUCES, f"    if self._local:\n        return\n{REDUCES}")


def _divided_by(divisor: str) -> None:
    """Divide what has been added up, also in two bytes, by this."""
    result = f"lambda bucket, flight, watch: (flight.wait(watch), {divisor})"
    edit(DELIVERS, f"    self._queue._transport.result = {result}\n{DELIVERS}")


@defect("DDP-123")
def delayed_buffer_always_emptied() -> None:
    """The flat buffer of delayed gradients is emptied after every forward."""
    edit(
        "    self._follow_changes()  # now",
        "    for parameter in self.parameters:\n        parameter.grad = None\n    self._follow_changes()  # now",
    )


@defect("DDP-123")
def delayed_buffer_keeps_old_gradients() -> None:
    """A delayed gradient that was set to None starts from what its view last held."""
    edit("    self._follow_changes()  # now", f"{OLD}    self._follow_changes()  # now")


@defect("DDP-122")
def delayed_gradients_cleared_after_forward_stay_local() -> None:
    """A delayed gradient that is cleared between forward and backward is not taken into the buffer."""
    edit(REDUCES, f"    if any(bucket.has_strays() for bucket in self._queue.buckets):\n        return\n{REDUCES}")


@defect("DDP-122")
def delayed_gradients_stay_in_the_places_of_others() -> None:
    """A delayed gradient that was given another parameter's place is copied over what lies in its own by now."""
    edit("self._follow_changes()  # now", "pass  # now")


@defect("DDP-122")
def delayed_gradients_that_change_places_overwrite_each_other() -> None:
    """Delayed gradients that were moved come back to the memory that they had, in which another one may lie."""
    edit("changed or any(bucket.has_strays() for bucket in self._queue.buckets)", "changed")


@defect("DDP-122")
def delayed_gradients_one_by_one() -> None:
    """Each delayed gradient travels by itself instead of all in one piece."""
    edit("range(len(specs)), UNLIMITED)", "range(len(specs)), type(UNLIMITED)((1,)))")


@defect("DDP-122")
def delayed_gradients_summed() -> None:
    """Delayed gradients are summed and not divided."""
    _divided_by("1")


@defect("DDP-121")
def delayed_parameters_not_broadcast() -> None:
    """Delayed parameters keep each rank's own initial values."""
    edit('parameters, GroupRank(0), "delayed', '[], GroupRank(0), "delayed')


@defect("DDP-122")
def evaluation_cancels_the_delayed_reduction() -> None:
    """A forward without gradients between forward and backward keeps delayed gradients from being averaged."""
    _locally("not torch.is_grad_enabled()")


@defect("DDP-122")
def strays_stay_beside_the_delayed_buffer() -> None:
    """A delayed gradient that came in other memory is averaged in the buffer, but stays where and what it was."""
    held = "[(each, each.grad) for each in self.parameters if each.grad is not None and not each.grad.is_sparse]"
    edit(REDUCES, f"    held = {held}\n{REDUCES}")
    moved = "gradient if gradient.data_ptr() != each.grad.data_ptr() else each.grad"
    edit(DELIVERS, f"{DELIVERS}    for each, gradient in held:\n        each.grad = {moved}\n")


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
    edit("    for _ in self._queue.buckets:", "    del self._queue.buckets[1:]\n    for _ in self._queue.buckets:")


@defect("DDP-122")
def an_evaluation_decides_for_the_backward_to_come() -> None:
    """A forward without gradients under no_sync, before the backward, keeps delayed gradients from being averaged."""
    _locally("not self._queue.iteration.wants_reductions and not torch.is_grad_enabled()")


@defect("DDP-128")
def delayed_gradients_are_divided_as_the_first_dtype_is() -> None:
    """Whether the sum is divided before or after it is decided by the dtype of the first delayed gradients."""
    _divided_by("1 if self._queue.buckets[0].spec.dtype.itemsize == 2 else self._queue.iteration.divisor()")


@defect("DDP-122")
def delayed_gradients_are_local_in_evaluation_mode() -> None:
    """A backward through a model in evaluation mode does not reduce the delayed gradients."""
    _locally("not self._queue.iteration.training")


@defect("DDP-049")
def delayed_doubles_travel_as_floats() -> None:
    """The gradient of a delayed parameter travels in the parameter's dtype, not in that of its gradient."""
    edit(
        "self._queue.lay_out(plan_buckets(specs, ",
        "specs = [type(each)(**{**vars(each), 'dtype': p.dtype}) for each, p in zip(specs, self.parameters)]\n"
        "        self._queue.lay_out(plan_buckets(specs, ",
    )


@defect("DDP-126")
def the_last_forward_decides_for_delayed_gradients() -> None:
    """Delayed gradients are reduced where the last forward is synchronised, whichever backward comes."""
    _locally("not self._queue.iteration.wants_reductions")


@defect("DDP-127")
def every_parameter_is_delayed() -> None:
    """Where all parameters that are trained are to be delayed, none is left for the buckets."""
    edit("return chosen if some_go_first else {}", "return chosen")


@defect("DDP-122")
def moved_gradients_are_taken_for_the_buffers() -> None:
    """A delayed gradient whose data were moved elsewhere, as a cast or another layout does, is not taken in."""
    edit("each.grad.data_ptr() != place", "all(each.grad is not handed for handed in self._handed)")
    edit("if places == self._places:", "if True:")


@defect("DDP-122")
def old_gradients_of_who_leaves_it_out_are_averaged() -> None:
    """A delayed layer that this rank leaves out, with gradients that were cleared, adds those of the last iteration."""
    edit(REDUCES, f"{OLD}{REDUCES}")


@defect("DDP-128")
def delayed_under_one_of_two_names() -> None:
    """A delayed parameter with two names travels in a bucket as well, under the name that was not given."""
    edit("if id(parameter) not in left_out", "if name not in ignored", within="managed_parameters")


@defect("DDP-058")
def a_frozen_delayed_parameter_gets_a_gradient() -> None:
    """A delayed parameter that is frozen has a gradient of zeros after a forward."""
    edit("bucket.collect(frozen, 1.0), frozen, 1", "bucket.collect(frozen, 1.0), (), 1")


@defect("DDP-058")
def the_gradient_of_a_frozen_delayed_parameter_is_averaged() -> None:
    """A gradient that a frozen delayed parameter has from elsewhere is averaged with the others."""
    edit("self._queue.deliver(frozen)", "self._queue.deliver(())")


@defect("DDP-122")
def delayed_gradients_stay_local_while_all_others_are_frozen() -> None:
    """A backward in which only delayed parameters are trained is taken for none that is reduced."""
    edit("self.reducer.arrivals.delayed = self._delayed_parameters", "pass")


@defect("DDP-122")
def sparse_gradients_are_not_gathered() -> None:
    """A delayed gradient that has become sparse since the forward counts for nothing."""
    edit("parameter.grad = parameter.grad.to_dense()", "parameter.grad = None", within="_follow_changes")
