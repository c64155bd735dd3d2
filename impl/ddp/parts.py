"""What a DDP object is made of: every attribute of its own, with the sentence that says when it is valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from .buffers import _BufferCommHook
    from .delayed import DelayedReduction
    from .iteration import Iteration
    from .log import DDPLogger
    from .mixed_precision import MixedPrecisionRun, _MixedPrecision
    from .per_parameter import PerParameterReduction
    from .plan import BucketCaps
    from .reducer import Reducer
    from .wrapper import DistributedDataParallel


class Running:
    """The object whose wrapped forward is running in this process; None outside every forward.

    Not an attribute of the class DistributedDataParallel: setting one makes Python forget what it knows of the class.
    """

    def __init__(self) -> None:
        self.ddp: DistributedDataParallel | None = None


running = Running()


class Parts:
    """Declarations shared by the files that make up ``DistributedDataParallel``."""

    # -- fixed by the constructor
    module: nn.Module
    process_group: dist.ProcessGroup  # changes only in ``_update_process_group``
    device_mesh: Any
    device: torch.device  # of the managed parameters
    device_type: str
    device_ids: list[int] | None
    output_device: int | None
    is_multi_device_module: bool
    dim: int
    find_unused_parameters: bool
    gradient_as_bucket_view: bool
    skip_all_reduce_unused_params: bool
    batched_grad_copy: bool
    mixed_precision: _MixedPrecision | None
    forward_sync_buffers: bool  # whether forwards synchronise buffers at all
    broadcast_buffers: bool  # its older name
    broadcast_bucket_size: int  # bytes in one chunk of a broadcast
    bucket_bytes_cap: int
    bucket_bytes_cap_list: list[int]  # empty unless the user gave one
    use_side_stream_for_tensor_copies: bool
    parameters_to_ignore: set[str]  # as ``named_parameters`` spells them
    _module_parameters: list[nn.Parameter]  # the managed ones, frozen ones included
    _caps: BucketCaps

    # -- built by the constructor, and anew after unpickling
    reducer: Reducer
    logger: DDPLogger | None  # None until the reducer is built
    _delayed: DelayedReduction | None
    _mixed_precision_run: MixedPrecisionRun | None
    _per_parameter: PerParameterReduction

    # -- switches of the user
    static_graph: bool  # turns True once, in ``_set_static_graph``
    require_backward_grad_sync: bool  # whether the next backward is synchronised; ``no_sync`` changes it
    _ddp_sink_clone: bool
    _buffer_hook: _BufferCommHook | None  # None means the broadcast from the source
    _comm_hooks: list[tuple[Any, Any]]  # (hook, state); at most one
    _iteration: Iteration

    # -- state that forwards and backwards change
    _failed_forward: str | None  # how the last forward in this join block failed, if one did; for people
    require_forward_param_sync: bool  # each forward says whether the next one synchronises buffers (DDP-081)
    modules_buffers: list[torch.Tensor]  # the managed buffers as of the last synchronisation
    named_module_buffers: dict[str, torch.Tensor]
    _has_rebuilt_buckets: bool
    _lazy_init_ran: bool
    _authoritative_rank: int | None  # whose model all ranks took over at the end of the last join; group rank

    def _log_and_throw(self, err_type: type[Exception], err_msg: str) -> NoReturn:
        """Record an error in the logging data, then raise it (DDP-019)."""
        if self.logger is not None:
            self.logger.set_error_and_log(f"{err_type!s}: {err_msg}")
        raise err_type(err_msg)
