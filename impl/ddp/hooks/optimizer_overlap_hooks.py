"""An optimizer step inside the hook: as soon as a bucket is averaged, its parameters are stepped."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from ...comm.averaging import gradient_dtype
from ..buckets import complex_again
from .reduction import GradBucket, Hook, call_hook, function_of

_STEP_METHOD = "step_param"


class _OptimizerHookState:
    """A functional optimizer, and the parameters that it may step (all of them by default).

    Args:
        functional_optim: an object with ``step_param(parameter, gradient)``.
        params: only these parameters are stepped; None means all.

    Raises:
        ValueError: ``functional_optim`` cannot step a single parameter (COMM-030).
    """

    __slots__ = ("functional_optimizer", "params_to_optimize")

    def __init__(self, functional_optim: Any, params: Iterable[torch.Tensor] | None = None) -> None:
        if not callable(getattr(functional_optim, _STEP_METHOD, None)):
            raise ValueError(
                f"Optimizer in hook: {type(functional_optim).__name__} has no method {_STEP_METHOD}(parameter, "
                "gradient). Only functional optimizers can step one parameter at a time; give one of those."
            )
        self.functional_optimizer = functional_optim
        self.params_to_optimize = None if params is None else set(params)

    def wants(self, parameter: torch.Tensor) -> bool:
        """Whether this parameter is to be stepped."""
        return self.params_to_optimize is None or parameter in self.params_to_optimize


def _hook_then_optimizer(hook: Hook, optimizer_state: _OptimizerHookState) -> Hook:
    """``hook``, and as soon as its result is there, a step of the bucket's parameters with that result."""

    def hook_then_optimizer_wrapper(hook_state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer, gradients, parameters = bucket.buffer(), bucket.gradients(), bucket.parameters()

        @torch.no_grad()  # which the backend's thread, if it is that which calls this, does not know of
        def step(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            averaged = done.value()
            if averaged is not buffer and not buffer.is_sparse:  # a hook need not work in place: its result counts
                buffer.copy_(averaged.reshape(buffer.shape))
            views = [averaged] if buffer.is_sparse else gradients
            for parameter, gradient in zip(parameters, views, strict=True):
                if optimizer_state.wants(parameter):
                    shown_real = parameter.is_complex() and not gradient.is_complex()
                    given = complex_again(gradient) if shown_real else gradient
                    given = given.to(gradient_dtype(parameter))  # it may have travelled in another
                    optimizer_state.functional_optimizer.step_param(parameter, given)
            return averaged

        return call_hook(hook, hook_state, bucket).then(step)

    return hook_then_optimizer_wrapper


def steps_in_backward(hook: object) -> bool:
    """Whether it is a hook that ``_hook_then_optimizer`` has made, ours or torch's, or a wrapper around one."""
    hook = function_of(hook)
    if not inspect.isfunction(hook):
        return False
    inside = inspect.getclosurevars(hook).nonlocals.get("hook")
    return hook.__name__ == "hook_then_optimizer_wrapper" or (inside is not None and steps_in_backward(inside))
