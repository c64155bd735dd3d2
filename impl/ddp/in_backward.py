"""Optimizers that users attached to parameters: stepped by DDP, with the averaged gradient, before backward returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from .wrapper import DistributedDataParallel

_MARK = "_in_backward_optimizers"  # set on parameters by torch's _apply_optimizer_in_backward


class OptimizersInBackward:
    """The managed parameters that carry optimizers of their own (DDP-129, DDP-130).

    Works on any device and beside communication hooks (exceeds DDP-131, DDP-132). The gradients are None afterwards.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._remove_original_hooks()

    @staticmethod
    def of(ddp: DistributedDataParallel) -> OptimizersInBackward | None:
        """Look, before the first forward, for attached optimizers; None where there are none."""
        carrying = [parameter for parameter in ddp.reducer.parameters if hasattr(parameter, _MARK)]
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
