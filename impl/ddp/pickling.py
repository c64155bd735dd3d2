"""What of a DDP object is pickled, and the check that it can be: all but the handles of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from .log import Fail

#: What belongs to this process and this moment, and is left out of a pickled object (DDP-155).
_OF_THIS_PROCESS = (
    "process_group", "reducer", "logger", "_delayed", "_mixed_precision_run", "_per_parameter", "_iteration",
    "_order", "_buffer_sync", "_uneven", "_followed_config", "_following_hook", "_join_bindings",
    "_compiled_call_impl",
)

#: what the user may have changed, and building the parts sets anew
KEPT_BY_PARTS = (
    "require_backward_grad_sync", "require_forward_param_sync", "forward_sync_buffers", "broadcast_bucket_size",
    "_ddp_sink_clone", "_synchronises_after_evaluation",
)


def state_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those attributes of an object that are pickled."""
    return {name: value for name, value in attributes.items() if name not in _OF_THIS_PROCESS}


def parts_of(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Any, bool]:
    """What a pickled state is made of: attributes of the object's own, those that parts keep, the names of delayed
    parameters, and whether the graph is static. A state of an older version may lack what parts keep (DDP-159)."""
    own = dict(state)
    delayed = own.pop("_delayed_names", None)
    kept = {name: own.pop(name) for name in KEPT_BY_PARTS if name in own}
    return own, kept, delayed, bool(own["static_graph"])


def check_default_group(group: dist.ProcessGroup, fail: Fail) -> None:
    """RuntimeError unless the group is the default one (DDP-156)."""
    if group is not dist.group.WORLD:  # which is None where there is no default group
        fail(
            RuntimeError,
            "Pickling needs a model on the default process group: a group cannot be stored, and the restored "
            "model must find its own again. Call init_process_group and leave process_group out of the "
            "constructor.",
        )
