"""PyTorch's own implementation as a subject."""

from __future__ import annotations

import inspect

import torch
import torch.distributed as dist
from torch.distributed.algorithms import join
from torch.distributed.algorithms.ddp_comm_hooks import (
    DDPCommHookType,
    ddp_zero_hook,
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
    register_ddp_comm_hook,
)
from torch.distributed.optim import zero_redundancy_optimizer as zero
from torch.nn.parallel import distributed as ddp

from . import Subject

#: Keywords of newer releases than the oldest that serves.
_NEWER = ("forward_sync_buffers", "batched_grad_copy")
_TAKEN = inspect.signature(ddp.DistributedDataParallel).parameters

subject = Subject(
    name="torch",
    version=torch.__version__,
    names={
        # join
        "join": join,
        "Join": join.Join,
        "Joinable": join.Joinable,
        "JoinHook": join.JoinHook,
        "_JoinConfig": join._JoinConfig,
        # ddp
        "ddp": ddp,
        "DistributedDataParallel": ddp.DistributedDataParallel,
        "GradBucket": dist.GradBucket,
        "BuiltinCommHookType": dist.BuiltinCommHookType,
        "DDPCommHookType": DDPCommHookType,
        "register_ddp_comm_hook": register_ddp_comm_hook,
        "default_hooks": default_hooks,
        "debugging_hooks": debugging_hooks,
        "powerSGD_hook": powerSGD_hook,
        "post_localSGD_hook": post_localSGD_hook,
        "quantization_hooks": quantization_hooks,
        "optimizer_overlap_hooks": optimizer_overlap_hooks,
        # zero
        "zero": zero,
        "ZeroRedundancyOptimizer": zero.ZeroRedundancyOptimizer,
        # overlap
        "ddp_zero_hook": ddp_zero_hook,
        "hook_with_zero_step": ddp_zero_hook.hook_with_zero_step,
        "hook_with_zero_step_interleaved": ddp_zero_hook.hook_with_zero_step_interleaved,
    },
    lacks={name: f"torch {torch.__version__} has no such option" for name in _NEWER if name not in _TAKEN},
)
