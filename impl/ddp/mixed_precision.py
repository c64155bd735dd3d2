"""Lower precision during forward and backward; full precision for the optimizer, checkpoints and accumulation."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..comm.flat import copy_all
from . import kernels, params
from .buffers import managed_buffers
from .containers import map_tensors
from .plan import ParameterSpec

_log = logging.getLogger(__name__)


@dataclass
class _MixedPrecision:
    """Which dtypes to lower; each only if it is given (DDP-134).

    ``param_dtype``: parameters and floating inputs during forward and backward. ``reduce_dtype``: gradients on their
    way between ranks (``param_dtype`` if None). ``buffer_dtype``: floating buffers, from construction on.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None


class MixedPrecisionRun:
    """Swaps low-precision copies in before each forward and the full-precision values back in backward.

    A parameter's full value returns as soon as its gradient has come, since by then nothing in the graph reads it any
    more; the gradient is raised to full precision there and added to what had accumulated (exceeds DDP-140). Works on
    any device (exceeds DDP-141). Keeps DDP-135 … DDP-139, DDP-172.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str], config: _MixedPrecision) -> None:
        """``ignored``: names of parameters and buffers that stay as they are."""
        _log.warning("This model runs in mixed precision: %s", config)
        self.config = config
        managed = params.managed_parameters(module, ignored)
        self._parameters = [item.parameter for item in managed if item.parameter.is_floating_point()]
        #: full-precision values of parameters that hold low-precision copies now
        self._full: dict[nn.Parameter, torch.Tensor] = {}
        #: gradients that had accumulated before the forward
        self._kept: dict[nn.Parameter, torch.Tensor] = {}
        #: whether everything is restored when the backward that is running is over
        self._armed = False
        self._cast_buffers(managed_buffers(module, ignored))
        me = weakref.WeakMethod(self._gradient_came)
        for parameter in self._parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(kernels.weak_call(me))

    def _cast_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        if self.config.buffer_dtype is None:
            return
        for buffer in buffers.values():
            if buffer.is_floating_point():
                buffer.data = buffer.to(self.config.buffer_dtype)

    def reduced_specs(self, specs: Sequence[ParameterSpec]) -> list[ParameterSpec]:
        """The specs in the dtype in which gradients travel (DDP-136)."""
        dtype = self.config.reduce_dtype or self.config.param_dtype
        if dtype is None:
            return list(specs)
        size = dtype.itemsize
        return [replace(s, dtype=dtype, element_bytes=size) if s.dtype.is_floating_point else s for s in specs]

    def before_forward(self, inputs: Any, kwargs: Any) -> tuple[Any, Any]:
        """Lower the parameters; returns the inputs with floating tensors lowered too (DDP-137)."""
        low = self.config.param_dtype
        if low is None:
            return inputs, kwargs
        self._backward_over()
        for parameter in self._parameters:
            self._full[parameter] = parameter.data
            if parameter.grad is not None:
                self._kept[parameter] = parameter.grad
                parameter.grad = None
        self._lower(low)
        return self._lowered(inputs, low), self._lowered(kwargs, low)

    def _lower(self, low: torch.dtype) -> None:
        """Show copies in low precision, made by one call for all: on an accelerator each would be a launch."""
        changing = [parameter for parameter in self._parameters if parameter.dtype is not low]
        copies = [torch.empty_like(parameter.data, dtype=low) for parameter in changing]
        if copies:
            copy_all(copies, [parameter.data for parameter in changing])
        for parameter, copy in zip(changing, copies, strict=True):
            parameter.data = copy

    @staticmethod
    def _lowered(value: Any, low: torch.dtype) -> Any:
        return map_tensors(lambda tensor: tensor.to(low) if tensor.is_floating_point() else tensor, value)

    def after_forward(self, *, failed: bool = False) -> None:
        """A forward without gradients leaves nothing lowered behind, and one that raised does not either."""
        if failed or not torch.is_grad_enabled():
            self._restore_all()

    def _gradient_came(self, parameter: torch.Tensor) -> None:
        if not self._armed:
            self._armed = True
            self._arm()
        if isinstance(parameter, nn.Parameter):
            self._restore(parameter)

    def _arm(self) -> None:
        kernels.call_when_backward_is_over(self._backward_ended, self._backward_over)

    def _backward_ended(self) -> None:
        """A reentrant checkpoint's backward runs inside another, which still needs what is lowered."""
        outer = kernels.running_node()
        if outer is None:
            self._backward_over()
        else:
            kernels.call_once_after(outer, self._arm)

    def _backward_over(self) -> None:
        self._armed = False
        self._restore_all()

    def _restore_all(self) -> None:
        for parameter in list(self._full):
            self._restore(parameter)

    def _restore(self, parameter: nn.Parameter) -> None:
        full = self._full.pop(parameter, None)
        if full is None:
            return
        gradient, parameter.grad = parameter.grad, None
        parameter.data = full
        kept = self._kept.pop(parameter, None)
        if gradient is not None:
            raised = gradient.to(full.dtype)
            parameter.grad = raised if kept is None else kept.add_(raised)
        elif kept is not None:
            parameter.grad = kept
