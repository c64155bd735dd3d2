"""The library of communication hooks, and their registration by name; public names are torch's."""

import enum
from functools import partial
from typing import Any

from . import (
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from .builtin import BuiltinCommHookType, builtin_hook
from .reduction import Hook
from .validation import check_comm_hook, hook_name

__all__ = [
    "BuiltinCommHookType",
    "DDPCommHookType",
    "builtin_hook",
    "check_comm_hook",
    "debugging_hooks",
    "default_hooks",
    "hook_name",
    "optimizer_overlap_hooks",
    "post_localSGD_hook",
    "powerSGD_hook",
    "quantization_hooks",
    "register_ddp_comm_hook",
]


def _register(model: Any, state: Any, *, comm_hook: Hook) -> None:
    model.register_comm_hook(state, comm_hook)


def _register_powersgd(
    model: Any, state: Any, *, comm_hook: Hook, matrix_approximation_rank: int, start_powerSGD_iter: int = 1000
) -> None:
    """The given state is only a group: it is wrapped in a PowerSGDState."""
    wrapped = powerSGD_hook.PowerSGDState(state, matrix_approximation_rank, start_powerSGD_iter)
    model.register_comm_hook(wrapped, comm_hook)


def _powersgd(hook: Hook, rank: int) -> Any:
    return enum.member(partial(_register_powersgd, comm_hook=hook, matrix_approximation_rank=rank))


def _plain(hook: Hook) -> Any:
    return enum.member(partial(_register, comm_hook=hook))


class DDPCommHookType(enum.Enum):
    """The hooks by name; a member's value registers its hook: ``member.value(model=ddp, state=group)`` (COMM-023)."""

    ALLREDUCE = _plain(default_hooks.allreduce_hook)
    FP16_COMPRESS = _plain(default_hooks.fp16_compress_hook)
    BF16_COMPRESS = _plain(default_hooks.bf16_compress_hook)
    QUANTIZE_PER_TENSOR = _plain(quantization_hooks.quantization_pertensor_hook)
    QUANTIZE_PER_CHANNEL = _plain(quantization_hooks.quantization_perchannel_hook)
    POWER_SGD = _powersgd(powerSGD_hook.powerSGD_hook, 1)
    POWER_SGD_RANK2 = _powersgd(powerSGD_hook.powerSGD_hook, 2)
    BATCHED_POWER_SGD = _powersgd(powerSGD_hook.batched_powerSGD_hook, 1)
    BATCHED_POWER_SGD_RANK2 = _powersgd(powerSGD_hook.batched_powerSGD_hook, 2)
    NOOP = _plain(debugging_hooks.noop_hook)


def register_ddp_comm_hook(comm_hook_type: DDPCommHookType, model: Any, state: Any = None) -> None:
    """Register the hook that ``comm_hook_type`` names with ``model``; ``state`` is the group to average over.

    None stands for the group of the model; the PowerSGD types wrap the group in a state of their own.
    """
    if type(comm_hook_type).__name__ != "DDPCommHookType":  # torch's members are as good as ours
        known = ", ".join(member.name for member in DDPCommHookType)
        raise TypeError(f"comm_hook_type must be a DDPCommHookType ({known}), not {comm_hook_type!r}.")
    comm_hook_type.value(model=model, state=state)
