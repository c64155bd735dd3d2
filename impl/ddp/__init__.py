"""DistributedDataParallel: gradients averaged over a process group, with a reducer of our own."""

from .buckets import GradBucket
from .buffers import _BufferCommHook, _BufferCommHookLocation
from .compat import _dump_DDP_relevant_env_vars
from .hooks import BuiltinCommHookType, DDPCommHookType, register_ddp_comm_hook
from .join_hook import _DDPJoinHook
from .mixed_precision import _MixedPrecision
from .wrapper import DistributedDataParallel

__all__ = [
    "BuiltinCommHookType", "DDPCommHookType", "DistributedDataParallel", "GradBucket", "_BufferCommHook",
    "_BufferCommHookLocation", "_DDPJoinHook", "_MixedPrecision", "_dump_DDP_relevant_env_vars",
    "register_ddp_comm_hook",
]
