"""Lower precision during forward and backward; full precision for the optimizer, checkpoints and accumulation."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..comm.averaging import gradient_dtype
from ..comm.flat import copy_all
from . import kernels, params
from .buffers import managed_buffers
from .containers import map_tensors
from .messages import COPIES_CHANGED
from .plan import ParameterSpec
from .readiness import call_when_backward_is_over

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
    """Swaps low-precision copies in before a forward and the full-precision values back in its backward.

    The full values of a bucket return when it starts, since by then nothing in the graph reads its parameters any more,
    and all others at the end of backward. ``.grad`` stays where it is: autograd adds low gradients to a full one
    (exceeds DDP-140). Further forwards before the backward compute with the same copies, so that they share its graph.
    Works on any device (exceeds DDP-141). Keeps DDP-135 … DDP-139, DDP-172.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str], config: _MixedPrecision) -> None:
        """``ignored``: names of parameters and buffers that stay as they are."""
        _log.warning("This model runs in mixed precision: %s", config)
        self.config = config
        managed = params.managed_parameters(module, ignored)
        self._parameters = [item.parameter for item in managed if item.parameter.is_floating_point()]
        #: full-precision values of parameters that hold low-precision copies now
        self._full: dict[nn.Parameter, torch.Tensor] = {}
        #: while there are any: their versions after the last forward, and what looks out for who asks for the state
        self._versions: dict[nn.Parameter, int] = {}
        self._handles: list[Any] = []
        self._module = module
        #: whether there were some before the forward that runs now, or ran last
        self._were_lowered = False
        #: whether everything is restored when the backward that is running is over
        self._armed = False
        weakref.finalize(self, _restore, self._parameters, self._full, config.param_dtype, self._handles).atexit = False
        self._cast_buffers(managed_buffers(module, ignored))
        self.watch([parameter for parameter in self._parameters if parameter.requires_grad])

    def watch(self, parameters: Iterable[nn.Parameter]) -> None:
        """Notice a backward by the gradients of these."""
        came = kernels.weak_call(self._gradient_came)
        for parameter in parameters:
            handle = parameter.register_post_accumulate_grad_hook(came)
            weakref.finalize(self, handle.remove).atexit = False

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
        return [replace(s, dtype=dtype) if s.dtype.is_floating_point else s for s in specs]

    def before_forward(self, inputs: Any, kwargs: Any) -> tuple[Any, Any]:
        """Lower the parameters; returns the inputs with floating tensors lowered too (DDP-137)."""
        low = self.config.param_dtype
        if low is None:
            return inputs, kwargs
        self._check_unchanged()
        self._were_lowered = self.lowered_now
        self._lower_all(low)
        return self._lowered(inputs, low), self._lowered(kwargs, low)

    def _lower_all(self, low: torch.dtype) -> None:
        changing = [parameter for parameter in self._parameters if parameter.dtype is not low]
        self._full.update((parameter, parameter.data) for parameter in changing)
        if changing:
            lower(changing, low)
            self._note_versions()
            self._look_out()

    def _note_versions(self) -> None:
        self._versions = {parameter: parameter._version for parameter in self._full}

    @staticmethod
    def _lowered(value: Any, low: torch.dtype) -> Any:
        return map_tensors(lambda tensor: tensor.to(low) if tensor.is_floating_point() else tensor, value)

    def after_forward(self, *, failed: bool = False) -> None:
        """A forward without gradients, or one that raised, leaves nothing lowered that was not before it.

        What was belongs to an earlier forward, whose backward is to come. What the forward has changed itself (an
        embedding with ``max_norm`` does) is changed in the full values, too.
        """
        for parameter in self._changed():
            full = self._full[parameter]
            full.copy_(torch.where(parameter.data == full.to(parameter.dtype), full, parameter.data.to(full.dtype)))
        if not self._were_lowered and (failed or not torch.is_grad_enabled()):
            self.restore_all()
        self._note_versions()

    @property
    def lowered_now(self) -> bool:
        """Whether some parameters hold low-precision copies now."""
        return bool(self._full)

    # -- between a forward and its backward, which may never come

    def _look_out(self) -> None:
        """Whoever saves the state of the module or a part of it, or loads the module's, meets full values (DDP-135)."""
        saved = kernels.weak_call(self._state_is_saved)
        loaded = kernels.weak_call(self._state_is_loaded)
        self._handles += [part.register_state_dict_pre_hook(saved) for part in self._module.modules()]
        self._handles.append(self._module.register_load_state_dict_pre_hook(loaded))

    def _state_is_saved(self, *_: Any) -> None:
        self._check_unchanged()
        self.restore_all()

    def _state_is_loaded(self, *_: Any) -> None:
        self.restore_all()

    def _check_unchanged(self) -> None:
        """RuntimeError if low-precision copies have changed since the last forward: that would be lost."""
        if any(parameter.dtype is not self.config.param_dtype for parameter in self._full):
            self.restore_all()  # cast past the wrapper
        if self._changed():
            self.restore_all()
            raise RuntimeError(COPIES_CHANGED)

    def _changed(self) -> list[nn.Parameter]:
        """The parameters whose low-precision copies have changed since their versions were noted."""
        return [parameter for parameter in self._full if parameter._version != self._versions[parameter]]

    # -- backward

    def before_backward(self) -> None:
        """The backward of another forward may have restored what this one needs."""
        low = self.config.param_dtype
        if low is not None and not self._full:
            self._lower_all(low)
            self._gradient_came()
        elif not any(parameter.requires_grad for parameter in self._parameters):
            self._gradient_came()  # none will: the model is frozen, and passes gradients on

    def _gradient_came(self, *_: torch.Tensor) -> None:
        if not self._armed:
            self._armed = True
            self._arm()

    def _arm(self) -> None:
        call_when_backward_is_over(self._backward_ended, self._backward_over)

    def _backward_ended(self) -> None:
        """A reentrant checkpoint's backward runs inside another, which still needs what is lowered."""
        outer = kernels.running_node()
        if outer is None:
            self._backward_over()
        else:
            kernels.call_once_after(outer, self._arm)

    def _backward_over(self) -> None:
        self._armed = False
        self.restore_all()

    def restore_all(self) -> None:
        """Give all parameters their full values, and full precision to their gradients."""
        self.restore(self._parameters)

    def restore(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give these parameters their full values, and full precision to their gradients."""
        _restore(parameters, self._full, self.config.param_dtype, self._handles)


def _restore(
    parameters: Iterable[nn.Parameter],
    full: dict[nn.Parameter, torch.Tensor],
    low: torch.dtype | None,
    handles: list[Any],
) -> None:
    """Take these parameters' values out of ``full``; once that is empty, remove the hooks of ``handles``.

    One that is not ``low`` any more, or on another device, has been cast or moved meanwhile: so are its full values.
    """
    for parameter in parameters:
        if parameter in full:
            kept = full.pop(parameter)
            parameter.data = kept.to(parameter.device, kept.dtype if parameter.dtype is low else parameter.dtype)
        if parameter.grad is not None:
            parameter.grad = parameter.grad.to(gradient_dtype(parameter))
    while handles and not full:
        handles.pop().remove()


def lower(parameters: Sequence[nn.Parameter], low: torch.dtype) -> None:
    """Show copies in low precision, made by one call for all: on an accelerator each would be a launch."""
    with torch.inference_mode(False):  # an evaluation's copies are as good as others
        copies = [torch.empty_like(parameter.data, dtype=low) for parameter in parameters]
    copy_all(copies, [parameter.data for parameter in parameters])
    for parameter, copy in zip(parameters, copies, strict=True):
        parameter.data = copy
