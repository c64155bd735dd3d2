"""Our own implementation as a subject."""

from __future__ import annotations

import importlib
from importlib import import_module
from typing import Any

from . import Subject

# where each name lives; a package that is not built yet is declared as lacking, not hidden
_PACKAGES = {
    "impl": (
        "Join", "Joinable", "JoinHook", "DistributedDataParallel", "GradBucket", "BuiltinCommHookType",
        "DDPCommHookType", "register_ddp_comm_hook", "ZeroRedundancyOptimizer", "hook_with_zero_step",
        "hook_with_zero_step_interleaved",
    ),
    "impl.join": ("_JoinConfig",),
    "impl.ddp.survivors": ("regroup",),
    "impl.errors": ("PeerFailed", "CollectivesDiffer"),
    "impl.ddp": ("_DDPJoinHook", "_MixedPrecision", "_BufferCommHookLocation", "_dump_DDP_relevant_env_vars"),
    "impl.ddp.hooks": (
        "default_hooks", "debugging_hooks", "powerSGD_hook", "post_localSGD_hook", "quantization_hooks",
        "optimizer_overlap_hooks",
    ),
    "impl.zero": ("_ZeROJoinHook",),
    "impl.overlap": (),
}

# modules that are a public name by themselves
_MODULES = {"impl.join": "join", "impl.ddp": "ddp", "impl.zero": "zero", "impl.overlap": "ddp_zero_hook"}


def gather() -> Subject:
    """Our public names as the modules hold them now (a planted defect may have replaced some)."""
    names: dict[str, Any] = {}
    lacks: dict[str, str] = {}
    for package, wanted in _PACKAGES.items():
        try:
            module = import_module(package)
        except ImportError as error:
            lacks.update(dict.fromkeys(wanted, f"{package} cannot be imported: {error}"))
            continue
        names.update({name: getattr(module, name) for name in wanted})
        if package in _MODULES:
            names[_MODULES[package]] = module
    return Subject("impl", importlib.import_module("impl").__version__, names, lacks)


subject = gather()
