"""The mode without buckets: each parameter's gradient is averaged by itself as soon as it has accumulated (DDP-167)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from ..comm import collectives
from ..comm.averaging import divides_first
from . import kernels

if TYPE_CHECKING:
    from .wrapper import DistributedDataParallel


class PerParameterReduction:
    """One blocking average for each parameter. Nothing happens under ``no_sync``.

    Registered communication hooks are called with ``(gradient, parameter)`` instead of a bucket.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = weakref.ref(ddp)
        self._handles: list[Any] = []

    def install(self) -> None:
        """Take over from the bucket reducer."""
        ddp = self._ddp()
        assert ddp is not None, "the model is gone"
        if ddp._join_session is not None:
            self.refuse_uneven_inputs()
        ddp.reducer.remove_hooks()
        for parameter in ddp.reducer.parameters:
            self._handles.append(parameter.register_post_accumulate_grad_hook(kernels.weak_call(weakref.WeakMethod(self.reduce))))

    def refuse_uneven_inputs(self, *, entered: bool = False) -> None:
        """RuntimeError inside a join block; where one is entered, only if gradients are averaged this way."""
        ddp = self._ddp()
        if ddp is None or (entered and not self._handles):
            return
        ddp._log_and_throw(
            RuntimeError,
            "This DDP averages its gradients parameter by parameter (_register_accum_grad_hook), which a rank that has "
            "run out of inputs cannot follow: it would wait for buckets that never come. Train on uneven inputs "
            "without it, or give every rank equally many inputs and leave the join context out (enable=False).",
        )

    def reduce(self, parameter: torch.Tensor) -> None:
        """Average this parameter's gradient over the group, in place."""
        ddp = self._ddp()
        if ddp is None or not ddp.require_backward_grad_sync or parameter.grad is None:
            return
        with torch.no_grad():
            if ddp._comm_hooks:
                for hook, state in ddp._comm_hooks:
                    hook(state, (parameter.grad, parameter))
                return
            team = ddp.reducer.team
            before, after = (team.size, 1) if divides_first(parameter.grad.dtype) else (1, team.size)
            kernels.divide(parameter.grad, before)
            collectives.all_reduce(team, parameter.grad, "gradient of one parameter").wait()
            kernels.divide(parameter.grad, after)
