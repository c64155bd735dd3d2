"""Implementations from elsewhere as subjects: an adapter each, judged in an environment of its own (``board``).

An adapter gives an implementation the constructor and the methods of torch's that it has under other names, and says
what it lacks. It repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from .. import Unsupported

#: What DDP's wrapper has beside forward, module and no_sync, and other wrappers have not: names, and one feature.
OF_DDP_ALONE = (
    "device_ids", "device", "dim", "output_device", "process_group", "reducer", "logger", "broadcast_buffers",
    "require_backward_grad_sync", "static_graph", "gradient_as_bucket_view", "join", "join_hook", "join_device",
    "join_process_group", "register_comm_hook", "_register_builtin_comm_hook", "_register_fused_optim",
    "_get_ddp_logging_data", "_set_params_and_buffers_to_ignore_for_model", "_set_static_graph",
    "_set_ddp_runtime_logging_sample_rate", "_update_process_group", "require_forward_param_sync", "to_kwargs",
    "gather", "scatter", "parameters_to_ignore", "mixed_precision", "find_unused_parameters",
    "_distributed_broadcast_coalesced",
    "_check_reducer_finalized", "_remove_autograd_hooks", "_register_accum_grad_hook", "register_module",
    "process groups written in Python",
)  # fmt: skip
#: What DDP's options mean when nobody gives them; asking for it is asking for nothing.
OF_DDP: Mapping[str, Any] = {
    "device_ids": None, "output_device": None, "dim": 0, "broadcast_buffers": True, "init_sync": True,
    "process_group": None, "bucket_cap_mb": None, "find_unused_parameters": False, "check_reduction": False,
    "gradient_as_bucket_view": False, "static_graph": False, "delay_all_reduce_named_params": None,
    "param_to_hook_all_reduce": None, "mixed_precision": None, "device_mesh": None,
    "skip_all_reduce_unused_params": False,
}  # fmt: skip


class Wrapper(nn.Module):
    """A wrapper whose parameters have the names that they have in DDP: the implementation's own stands beside it."""

    def __init__(self, module: nn.Module, wrapped: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.__dict__["wrapped"] = wrapped

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.wrapped(*given, **named)

    def train(self, mode: bool = True) -> Any:
        self.wrapped.train(mode)
        return super().train(mode)


def lacking(names: Iterable[str], reason: str, but: Iterable[str] = ()) -> dict[str, str]:
    """``lacks`` of a subject: all these names for one reason, but for some."""
    return {name: reason for name in names if name not in set(but)}


def taken(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The options that an adapter passes on; one that it cannot ends the check, unless it has DDP's default."""
    for name in sorted(set(options) - set(names)):
        if name not in OF_DDP or options[name] != OF_DDP[name]:
            raise Unsupported(f"no option {name}")
    return {name: options[name] for name in names if name in options}


def without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The options but for these, which the implementation sets itself or lacks; one that is on ends the check."""
    if asked := [name for name in names if options.get(name)]:
        raise Unsupported(f"no option {asked[0]}")
    return {name: value for name, value in options.items() if name not in names}
