"""Defects of area ddp: optimizer in backward, fused optimizer."""

from __future__ import annotations

from impl.ddp import DistributedDataParallel
from impl.ddp.optimizer_in_backward import OptimizersInBackward

from ..planting import defect, edit, swap


@defect("DDP-129")
def one_attached_optimizer_for_each_parameter() -> None:
    """Of several optimizers that are attached to a parameter only the first one steps."""
    edit("in getattr(parameter, _MARK):", "in getattr(parameter, _MARK)[:1]:")


@defect("DDP-129")
def optimizers_in_backward_keep_gradients() -> None:
    """Gradients stay after an optimizer in backward has used them."""
    edit("        parameter.grad = None", "        pass", within="step")


@defect("DDP-130")
def optimizers_looked_for_at_construction() -> None:
    """Optimizers that are attached after wrapping are not noticed."""
    def build(self: DistributedDataParallel) -> None:
        build_right(self)
        self.reducer.optimizers[:0] = [OptimizersInBackward.of(self.reducer.parameters) or OptimizersInBackward([])]

    build_right = swap(DistributedDataParallel, "_build_parts", build)
    edit("if self._attached != _attached():", "if False:")


@defect("DDP-130")
def optimizers_looked_for_once() -> None:
    """Optimizers that are attached after the first forward, an evaluation say, step with local gradients."""
    edit("if self._attached != _attached():", "if self._attached < 0:")


@defect("DDP-130")
def optimizers_looked_for_where_gradients_were_wanted_from_the_start() -> None:
    """An optimizer of a parameter that was frozen when the model was wrapped steps with the local gradient."""
    edit("OptimizersInBackward.of(self._module_parameters)", "OptimizersInBackward.of(reducer.parameters)")


@defect("DDP-130")
def optimizers_of_ignored_parameters_taken_over() -> None:
    """Optimizers on ignored parameters are stepped by DDP too."""
    edit("OptimizersInBackward.of(self._module_parameters)", "OptimizersInBackward.of(self.module.parameters())")


@defect("DDP-129")
def optimizers_step_twice() -> None:
    """An optimizer in backward steps with the local gradient, and again with the average."""
    swap(OptimizersInBackward, "_remove_original_hooks", lambda self: None)


@defect("DDP-058")
def optimizers_step_what_is_frozen() -> None:
    """An optimizer in backward steps a frozen parameter with the gradient that it has on this rank."""
    edit("if parameter.grad is None or not parameter.requires_grad:", "if parameter.grad is None:")


@defect("DDP-129")
def optimizers_stop_at_a_missing_gradient() -> None:
    """The first parameter without a gradient ends the round of the optimizers in backward."""
    edit("continue", "break", within="step")


@defect("DDP-133")
def refused_fused_optimizer_steps() -> None:
    """A second fused optimizer takes the place of the first before it is refused."""

    OCCUPY = '    self._occupy_hook_slot(None, hooks.default_hooks.allreduce_hook, f"fused {optim.__name__}")\n'


    KEEP = "    self.reducer.optimizers.append(made)\n"


    edit(OCCUPY + KEEP, KEEP + OCCUPY, within="_register_fused_optim")


@defect("DDP-133")
def fused_optimizers_step_everything() -> None:
    """A fused optimizer steps all parameters, also where it is given some."""
    edit("list(optim_params) if optim_params is not None else list", "list")


@defect("DDP-129")
def optimizers_of_delayed_parameters_do_not_step() -> None:
    """A delayed parameter's own optimizer is taken off it, and nobody steps it."""
    edit("        self.optimizers.step()\n", "        pass\n", within="DelayedReduction.reduce")


@defect("DDP-133")
def attached_optimizers_take_the_place_of_a_fused_one() -> None:
    """Where some parameters carry optimizers of their own, the fused one of the others does not step."""
    edit("fused if carried is None else [carried, *fused]", "fused if carried is None else [carried]")


@defect("DDP-130")
def attached_optimizers_counted_by_parameter() -> None:
    """A second optimizer that a parameter is given amid training goes unnoticed, and steps with the local gradient."""
    edit("sum(len(each) for each in handles.values())", "len(handles)")


@defect("DDP-133")
def step_without_arguments_is_asked_for_its_closure() -> None:
    """A fused optimizer whose step takes nothing is looked at as if it took a closure."""
    edit("return closure is not None and closure.default is inspect.", "return closure.default is inspect.")


@defect("DDP-133")
def delayed_parameters_are_fused() -> None:
    """A fused optimizer may be given delayed parameters, and steps them before their gradients are averaged."""
    edit("if any(parameter in late for group in", "if late is None or any(parameter is None for group in")


@defect("DDP-133")
def fused_optimizers_step_what_is_ignored() -> None:
    """A fused optimizer that is given no parameters takes all of the module, ignored ones with their own gradients."""
    edit("else list(self.reducer.parameters)", "else list(self.parameters())", within="_register_fused_optim")
