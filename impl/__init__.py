"""Joinery's own data-parallel training for uneven inputs; public names are torch's, letter by letter."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ddp import BuiltinCommHookType as BuiltinCommHookType
    from .ddp import DDPCommHookType as DDPCommHookType
    from .ddp import DistributedDataParallel as DistributedDataParallel
    from .ddp import GradBucket as GradBucket
    from .ddp import register_ddp_comm_hook as register_ddp_comm_hook
    from .join import Join as Join
    from .join import Joinable as Joinable
    from .join import JoinHook as JoinHook
    from .overlap import hook_with_zero_step as hook_with_zero_step
    from .overlap import hook_with_zero_step_interleaved as hook_with_zero_step_interleaved
    from .zero import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer

__version__ = "0.2.0"

# the package of each public name; it is imported when one of its names is first asked for
_PACKAGES = {
    "BuiltinCommHookType": "impl.ddp",
    "DDPCommHookType": "impl.ddp",
    "DistributedDataParallel": "impl.ddp",
    "GradBucket": "impl.ddp",
    "register_ddp_comm_hook": "impl.ddp",
    "Join": "impl.join",
    "JoinHook": "impl.join",
    "Joinable": "impl.join",
    "ZeroRedundancyOptimizer": "impl.zero",
    "hook_with_zero_step": "impl.overlap",
    "hook_with_zero_step_interleaved": "impl.overlap",
}

__all__ = sorted(_PACKAGES)


def __getattr__(name: str) -> Any:
    if name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PACKAGES[name]), name)
