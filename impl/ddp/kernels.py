"""The few operations of the hot path, and the private names of torch's modules that ddp uses."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

import torch
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel as TorchsOwn  # as it is now: a program may put ours in its place

from ..comm.flat import copy_all
from .plan import DEFAULT_FIRST_BUCKET_BYTES

#: what collectives and hooks hand out; ``torch.futures.Future`` is only its best-known subclass
AnyFuture = torch._C.Future

#: from this many elements on (the mean of a bucket), one fused scale-and-copy for each tensor beats a copy of the whole
#: list and one pass over the flat buffer
_LARGE_NUMEL = 4096


def copy_divided(
    targets: list[torch.Tensor], flat: torch.Tensor, views: list[torch.Tensor], divisor: int, *, large: bool
) -> None:
    """Fill the targets with the parts ``views`` of ``flat`` divided by ``divisor``; ``flat`` may change."""
    if large:
        for target, view in zip(targets, views, strict=True):
            torch.div(view, divisor, out=target)
        return
    divide(flat, divisor)
    copy_all(targets, views)


def are_large(flat: torch.Tensor, views: list[torch.Tensor]) -> bool:
    """Whether one pass for each tensor pays. Never on an accelerator, where each would be a launch."""
    return flat.device.type == "cpu" and flat.numel() >= _LARGE_NUMEL * len(views)


def divide(flat: torch.Tensor, divisor: int) -> None:
    """Divide in place. A power of two is applied as an exact reciprocal: the same bits, and a cheaper loop."""
    if divisor == 1:
        return
    if divisor & (divisor - 1) == 0:
        flat.mul_(1.0 / divisor)
    else:
        flat.div_(divisor)


#: a range in profiles, like ``torch.profiler.record_function`` at a sixteenth of its cost (0.5 against 7.8 µs)
profiled = torch._C._profiler._RecordFunctionFast


#: ``call_at_end_of_backward(callback)`` has the autograd engine call it when the backward pass now running (the
#: innermost, if nested) ends
call_at_end_of_backward: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback


#: the tensor of which another one is a view, if it is one
viewed: Callable[[torch.Tensor], torch.Tensor | None] = attrgetter("_base")


def running_node() -> Any:
    """The node that this thread evaluates now. Where a pass ends, that of the one around it, or None."""
    return torch._C._current_autograd_node()


def call_once_after(node: torch.autograd.graph.Node, call: Callable[[], None]) -> None:
    """Have ``call`` called when this node has been evaluated; not again, should its graph be kept."""

    def evaluated(*_: Any) -> None:
        handle.remove()
        call()

    handle = node.register_hook(evaluated)


def backwards_are_compiled() -> bool:
    """Whether compiled autograd is on (whose module is there once somebody has asked for it)."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


class CompiledByBucket(AbstractContextManager[None]):
    """Inside the block the compiler splits what it compiles into pieces of about a bucket.

    It cuts a forward where a bucket is full, so that gradients arrive bucket by bucket and not all at the end, and asks
    torch's own class whose forward is running. It takes no cap below that of torch's first bucket.
    """

    def __init__(self, cap_bytes: int) -> None:
        self.bucket_bytes_cap = max(cap_bytes, DEFAULT_FIRST_BUCKET_BYTES)
        self._outer: Any = None  # of the forward around this one

    def __enter__(self) -> None:
        self._outer = TorchsOwn._active_ddp_module
        TorchsOwn._active_ddp_module = self  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        TorchsOwn._active_ddp_module = self._outer


#: a number for the backward pass now running on this thread (nested ones have their own); -1 outside any
backward_id: Callable[[], int] = torch._C._current_graph_task_id

#: whether this process takes part in RPC, without which there is no distributed autograd
uses_rpc: Callable[[], bool] = rpc.api._is_current_rpc_agent_set if rpc.is_available() else bool


def distributed_context() -> int | None:
    """The number of the distributed-autograd context that is open on this thread, if any. Only where RPC is used."""
    try:
        return int(torch._C._distributed_autograd._current_context()._context_id())
    except RuntimeError:
        return None


#: whether this code runs inside a transform of ``torch.func``, where new tensors are of the transform's own kind
transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active  # type: ignore[attr-defined]

#: inside such a block they are ordinary ones all the same
outside_transforms: Callable[[], AbstractContextManager[None]] = torch._C._DisableFuncTorch  # type: ignore[attr-defined]


def accumulator(parameter: torch.Tensor) -> torch.autograd.graph.Node:
    """The node that adds to this parameter's ``.grad``; it stays the same while a user freezes and thaws it."""
    if parameter.requires_grad:
        with outside_transforms(), torch.inference_mode(False):
            return torch.autograd.graph.get_gradient_edge(parameter).node
    parameter.requires_grad_(True)
    try:
        return accumulator(parameter)
    finally:
        parameter.requires_grad_(False)


#: whether the backward pass now running (in one of whose hooks we are) will evaluate this node; RuntimeError where the
#: functional interface was asked for its very gradient
will_evaluate: Callable[[torch.autograd.graph.Node], bool] = torch._C._will_engine_execute_node  # type: ignore[attr-defined]


def is_evaluated(node: torch.autograd.graph.Node) -> bool:
    """The same, and False where no backward pass runs or the functional interface was asked."""
    try:
        return will_evaluate(node)
    except RuntimeError:
        return False


def weak_call(method: Callable[..., None]) -> Callable[..., None]:
    """A hook that calls this bound method as long as its object lives, and does not keep it alive."""
    weak = weakref.WeakMethod(method)

    def call(*given: Any) -> None:
        found = weak()
        if found is not None:
            found(*given)

    return call


def versions_kept(tensors: Iterable[torch.Tensor]) -> AbstractContextManager[Any]:
    """A context in which changes of these tensors count as none for autograd."""
    counting = tuple(tensor for tensor in tensors if not tensor.is_inference())
    return torch.autograd._unsafe_preserve_version_counter(counting)  # type: ignore[no-any-return]


def keep_local_shards(module: torch.nn.Module) -> None:
    """Let a module whose parameters are sharded over another dimension of a mesh hold its own shards as parameters;
    within its forward they are distributed tensors again."""
    from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

    _pre_dp_module_transform(module)
