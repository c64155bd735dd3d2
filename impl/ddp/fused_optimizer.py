"""An optimizer that DDP steps by itself, with the averaged gradients, before backward returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from .hooks.default_hooks import allreduce_hook

if TYPE_CHECKING:
    from .compat import CompatibleNames


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
    ddp._fused_optimizer = optim(chosen, *args, **kwargs)


def _needs_closure(optim: type[torch.optim.Optimizer]) -> bool:
    closure = inspect.signature(optim.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
