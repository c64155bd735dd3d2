"""Defects of area ddp: gradient_as_bucket_view."""

from __future__ import annotations

from impl.ddp.reducer import Reducer

from ..planting import defect, edit, swap


@defect("DDP-120")
def batched_copy_divides_twice() -> None:
    """With batched copies the average is divided once more."""
    def deliver(self: Reducer) -> None:
        if self.iteration.model().batched_grad_copy:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad /= self.team.size
        right(self)

    right = swap(Reducer, "_delivered", deliver)


@defect("DDP-117", "DDP-118")
def gradients_never_share_memory() -> None:
    """gradient_as_bucket_view is accepted and has no effect."""
    edit("return self.gradient_as_bucket_view and", "return False and")


@defect("DDP-034")
def gradients_of_a_former_dtype_move_into_the_buckets() -> None:
    """With bucket views, buckets that are laid out for the former dtype take over gradients that were cast past the
    wrapper."""
    edit(" and parameter.grad.dtype is view.dtype:", ":")


@defect("DDP-117")
def gradients_of_a_half_emptied_bucket_are_lost() -> None:
    """With bucket views, one gradient that lies in the bucket is taken to mean that all do."""
    edit("elif not all(map(is_, gradients, self.", "elif not any(map(is_, gradients, self.")


@defect("DDP-117")
def gradients_that_were_replaced_stay_where_they_are() -> None:
    """With bucket views, a gradient that the loop has replaced is not pointed at the bucket again."""
    edit("if self._all_apart or parameter.grad is not handed:", "if parameter.grad is None:")


@defect("DDP-117")
def loaded_models_do_not_get_the_gradients_of_the_bucket() -> None:
    """With bucket views, gradients of another layout than the bucket's are taken to lie in it."""
    edit(
        "self.as_view and gradient is self._handed[place]:",
        "self.as_view and (gradient is self._handed[place] or gradient.stride() != view.stride()):",
    )


@defect("DDP-117")
def gradients_that_were_moved_are_taken_to_lie_in_the_bucket() -> None:
    """With bucket views, nobody looks whether the tensor that was handed out still lies there."""
    edit("places = list(map(torch.Tensor.data_ptr, self._handed))", "places = self._places", within="_notice_moved")


@defect("DDP-117")
def one_gradient_that_was_moved_stands_for_all_of_its_bucket() -> None:
    """With bucket views, only the first gradient of a bucket is looked at: the program moves all of them or none."""
    edit("if places == self._places:", "if places[:1] == self._places[:1]:", within="_notice_moved")


@defect("DDP-117")
def gradients_that_change_places_overwrite_each_other() -> None:
    """With bucket views, a gradient that the program gives to another parameter is left where it lies."""
    edit("if gradient.untyped_storage().data_ptr() in flats:", "if False:")


@defect("DDP-117")
def models_with_a_layer_in_common_see_each_others_buckets() -> None:
    """With bucket views, a gradient that two models average is collected from a bucket that the other one sends."""
    edit("were_views, self._as_view = self._as_view, False", "were_views = False", within="keep_apart")


@defect("DDP-117")
def only_the_newer_model_knows_of_a_layer_in_common() -> None:
    """Of two models with a layer in common the older one does not hear of the newer: its gradients stay views."""
    edit("        other._beside.add(self)\n", "        pass\n")


@defect("DDP-049")
def models_do_not_hear_of_a_layer_in_common_that_is_thawed() -> None:
    """Where two models have a layer in common that was frozen when they were wrapped, its gradients stay views."""
    edit("self._find_those_beside()", "pass", within="_take_in_thawed")


@defect("DDP-117")
def every_gradient_is_taken_for_a_dense_one() -> None:
    """Where a sparse gradient lies is asked for as if it lay in one place."""
    edit("gradient is None or gradient.layout is not torch.strided or", "gradient is None or")


@defect("DDP-117")
def buckets_of_two_models_stay_where_gradients_are() -> None:
    """Where another model averages a gradient, too, it stays in the bucket that it lay in."""
    edit("self._lay_out(self.plan)", "pass", within="keep_gradients_apart")
