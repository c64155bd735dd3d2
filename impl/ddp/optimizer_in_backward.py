"""Optimizers that DDP steps with the averaged gradients before backward returns: attached to parameters, or fused."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .hooks.default_hooks import allreduce_hook

if TYPE_CHECKING:
    from .compat import CompatibleNames

_MARK = "_in_backward_optimizers"  # set on parameters by torch's _apply_optimizer_in_backward


class OptimizersInBackward:
    """The managed parameters that carry optimizers of their own (DDP-129, DDP-130).

    Works on any device and beside communication hooks (exceeds DDP-131, DDP-132). The gradients are None afterwards.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._remove_original_hooks()

    @staticmethod
    def of(parameters: Iterable[nn.Parameter]) -> OptimizersInBackward | None:
        """Look, before the first forward, for attached optimizers; None where there are none."""
        carrying = [parameter for parameter in parameters if hasattr(parameter, _MARK)]
        return OptimizersInBackward(carrying) if carrying else None

    def _remove_original_hooks(self) -> None:
        """The hooks that would step each parameter with its local gradient must not fire as well."""
        from torch.distributed.optim.apply_optimizer_in_backward import param_to_optim_hook_handle_map as handles

        for parameter in self._parameters:
            for handle in handles.get(parameter, []):
                handle.remove()

    def step(self) -> None:
        """Step every carried optimizer with the averaged gradients, and drop those."""
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            for optimizer in getattr(parameter, _MARK):
                optimizer.step()
            parameter.grad = None


def register(
    ddp: CompatibleNames, optim: type, *args: Any, optim_params: Iterable[Any] | None = None, **kwargs: Any
) -> None:
    """Step ``optim(parameters, *args, **kwargs)`` in every synchronised backward (DDP-133).

    It takes the place of the communication hook: registering twice, or beside a hook, raises RuntimeError, and so does
    a class that is no optimizer, or one whose step wants the loss computed again.
    """
    if not (isinstance(optim, type) and issubclass(optim, torch.optim.Optimizer)):
        ddp._log_and_throw(
            RuntimeError, f"{optim!r} cannot run fused with backward: it is not a subclass of torch.optim.Optimizer."
        )
    if _needs_closure(optim):
        ddp._log_and_throw(
            RuntimeError,
            f"{optim.__name__} cannot run fused with backward: its step needs a closure that computes the loss again. "
            "Call its step after backward, as without DDP.",
        )
    chosen = list(optim_params) if optim_params is not None else list(ddp.reducer.parameters)
    ddp._occupy_hook_slot(None, allreduce_hook, f"fused {optim.__name__}")
    ddp.reducer.optimizers.append(optim(chosen, *args, **kwargs))


def _needs_closure(optim: type[torch.optim.Optimizer]) -> bool:
    closure = inspect.signature(optim.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
