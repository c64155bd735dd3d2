"""Implementations from elsewhere as subjects: an adapter each, judged in an environment of its own (``board``).

An adapter gives an implementation the constructor and the methods of torch's that it has under other names, and says
what it lacks. It repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

#: What DDP's wrapper has beside forward, module and no_sync, and other wrappers have not.
OF_DDP_ALONE = (
    "device_ids", "device", "dim", "output_device", "process_group", "reducer", "logger", "broadcast_buffers",
    "require_backward_grad_sync", "static_graph", "gradient_as_bucket_view", "join", "join_hook", "join_device",
    "join_process_group", "register_comm_hook", "_register_builtin_comm_hook", "_register_fused_optim",
    "_get_ddp_logging_data", "_set_params_and_buffers_to_ignore_for_model", "_set_static_graph", "_set_ddp_runtime_logging_sample_rate",
    "parameters_to_ignore", "mixed_precision", "find_unused_parameters", "_distributed_broadcast_coalesced",
    "_check_reducer_finalized", "_remove_autograd_hooks", "_register_accum_grad_hook", "register_module",
)  # fmt: skip
OPTIONS = (
    "device_ids", "output_device", "dim", "broadcast_buffers", "init_sync", "process_group", "bucket_cap_mb",
    "find_unused_parameters", "check_reduction", "gradient_as_bucket_view", "static_graph",
    "delay_all_reduce_named_params", "param_to_hook_all_reduce", "mixed_precision", "device_mesh",
    "skip_all_reduce_unused_params",
)  # fmt: skip


def lacking(names: Iterable[str], reason: str, but: Iterable[str] = ()) -> dict[str, str]:
    """``lacks`` of a subject: all these names for one reason, but for some."""
    return {name: reason for name in names if name not in set(but)}
