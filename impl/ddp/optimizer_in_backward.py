"""Optimizers that DDP steps with the averaged gradients before backward returns: attached to parameters, or fused."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch
from torch import nn

from .log import Fail

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
        """Look, before a forward, for attached optimizers; None where there are none."""
        carrying = [parameter for parameter in parameters if hasattr(parameter, _MARK)]
        return OptimizersInBackward(carrying) if carrying else None

    def _remove_original_hooks(self) -> None:
        """The hooks that would step each parameter with its local gradient must not fire as well."""
        from torch.distributed.optim.apply_optimizer_in_backward import param_to_optim_hook_handle_map as handles

        for parameter in self._parameters:
            for handle in handles.get(parameter, []):
                handle.remove()

    def step(self) -> None:
        """Step every carried optimizer with the averaged gradients, and drop those; what is frozen has none."""
        for parameter in self._parameters:
            if parameter.grad is None or not parameter.requires_grad:
                continue
            for optimizer in getattr(parameter, _MARK):
                optimizer.step()
            parameter.grad = None


def check_fused(optim: type, fail: Fail) -> None:
    """RuntimeError for a class that is no optimizer, or one whose step wants the loss computed again (DDP-133)."""
    if not (isinstance(optim, type) and issubclass(optim, torch.optim.Optimizer)):
        fail(
            RuntimeError, f"{optim!r} cannot run fused with backward: it is not a subclass of torch.optim.Optimizer."
        )
    if _needs_closure(optim):
        fail(
            RuntimeError,
            f"{optim.__name__} cannot run fused with backward: its step needs a closure that computes the loss again. "
            "Call its step after backward, as without DDP.",
        )


def _needs_closure(optim: type[torch.optim.Optimizer]) -> bool:
    closure = inspect.signature(optim.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
