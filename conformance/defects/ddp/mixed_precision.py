"""Defects of area ddp: native mixed precision."""

from __future__ import annotations

from typing import Any

from impl.ddp import kernels
from impl.ddp.mixed_precision import MixedPrecisionRun

from ..planting import defect, edit, swap


@defect("DDP-135")
def a_failed_backward_leaves_parameters_lowered() -> None:
    """After a backward that raised, parameters that later iterations leave out stay in low precision."""
    edit("weakref.finalize(reached, failed)", "weakref.finalize(failed, print)")
    edit("self._backward_over()", "self._restore_all()", within="before_forward")


@defect("DDP-135")
def a_nested_backward_restores_what_the_outer_one_needs() -> None:
    """With mixed precision all parameters are full again at the end of a backward that runs inside another."""
    swap(kernels, "running_node", lambda: None)


@defect("DDP-135")
def all_restored_at_the_first_gradient() -> None:
    """All parameters get their full precision back when the first gradient has come, while backward still runs."""
    edit("        self._restore(parameter)", "        self._restore_all()", within="_gradient_came")


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
    swap(MixedPrecisionRun, "after_forward", lambda self: None)


@defect("DDP-135")
def failed_forward_leaves_parameters_lowered() -> None:
    """After a forward that raised the parameters stay in low precision until the next one."""
    edit("if failed or not", "if not")


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
    """What a parameter had accumulated is lost where an iteration in low precision leaves it out."""
    edit("parameter.grad = kept\n", "pass\n")


@defect("DDP-135")
def lowered_copies_taken_for_full_values() -> None:
    """A second forward before backward takes the lowered parameters for the full ones."""
    edit("    self._backward_over()\n", "", within="before_forward")


@defect("DDP-135")
def parameters_stay_lowered() -> None:
    """After backward the parameters are what they were lowered to."""
    edit("parameter.data = full", "parameter.data = parameter.data.to(full.dtype)")


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
    edit("low = self.config.param_dtype", "low = self.config.param_dtype or self.config.reduce_dtype")


@defect("DDP-135")
def unused_parameters_stay_lowered() -> None:
    """Parameters without a gradient are not raised again after backward."""
    edit("self._backward_over()", "self._armed = False", within="_backward_ended")


@defect("DDP-136")
def views_of_low_gradients() -> None:
    """Under mixed precision, too, gradients become views of buckets, whose dtype is another one."""
    edit("self.gradient_as_bucket_view and self.mixed_precision is None", "self.gradient_as_bucket_view")
