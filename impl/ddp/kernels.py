"""The few operations of the hot path, and the only place in ddp that uses torch names with an underscore."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch.distributed import rpc

from .graph import parameters_behind
from .plan import DEFAULT_FIRST_BUCKET_BYTES

#: what collectives and hooks hand out; ``torch.futures.Future`` is only its best-known subclass
AnyFuture = torch._C.Future


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target with as few launches as the device allows (one for the whole list)."""
    torch._foreach_copy_(targets, sources)


#: from this many elements on (the mean of a bucket), one fused scale-and-copy for each tensor beats a copy of the whole
#: list and one pass over the flat buffer
_LARGE_NUMEL = 4096


def copy_divided(
    targets: list[torch.Tensor], flat: torch.Tensor, views: list[torch.Tensor], divisor: int, *, large: bool
) -> None:
    """Fill the targets with the parts ``views`` of ``flat`` divided by ``divisor``; ``flat`` may change."""
    if large and divisor != 1:
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

_AS_IT_IS = nullcontext()


def unrecorded() -> AbstractContextManager[None]:
    """``torch.no_grad()`` where gradients are recorded: not in most backwards, where it would cost 3 µs each time."""
    return torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS


def call_at_end_of_backward(callback: Callable[[], None]) -> None:
    """Have the autograd engine call ``callback`` when the backward pass now running (innermost, if nested) ends."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def call_when_backward_is_over(ended: Callable[[], None], failed: Callable[[], None]) -> None:
    """As ``call_at_end_of_backward``; where the pass raises, ``failed`` is called instead: the engine lets go of us."""

    def reached() -> None:
        dropped.detach()
        ended()

    dropped = weakref.finalize(reached, failed)
    dropped.atexit = False
    call_at_end_of_backward(reached)


def running_node() -> torch.autograd.graph.Node | None:
    """The node that this thread evaluates now; where a pass inside another ends, that of the outer one."""
    return torch._C._current_autograd_node()  # type: ignore[no-any-return]


def backwards_are_compiled() -> bool:
    """Whether compiled autograd is on (whose module is there once somebody has asked for it)."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(module.compiled_autograd_enabled)


class _Split:
    """What the compiler is told of a DDP whose forward it may meet: how large a piece of its graph should be.

    It cuts a forward where a bucket is full, so that gradients arrive bucket by bucket and not all at the end, and asks
    torch's own class whose forward is running. It takes no cap below that of torch's first bucket.
    """

    def __init__(self, cap_bytes: int) -> None:
        self.bucket_bytes_cap = max(cap_bytes, DEFAULT_FIRST_BUCKET_BYTES)
        self._outer: Any = None  # of the forward around this one

    def __enter__(self) -> None:
        self._outer = torch.nn.parallel.DistributedDataParallel._active_ddp_module
        torch.nn.parallel.DistributedDataParallel._active_ddp_module = self  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        torch.nn.parallel.DistributedDataParallel._active_ddp_module = self._outer


def compiled_by_bucket(cap_bytes: int) -> AbstractContextManager[None]:
    """Inside the block, what the compiler compiles it splits into pieces of about a bucket; nothing without it."""
    return _Split(cap_bytes) if "torch._dynamo" in sys.modules else _AS_IT_IS


def backward_id() -> int:
    """A number for the backward pass now running on this thread (nested ones have their own); -1 outside any."""
    return torch._C._current_graph_task_id()


def distributed_context() -> int | None:
    """The number of the distributed-autograd context that is open on this thread; None without RPC or outside one."""
    if not rpc.is_available() or not rpc.api._is_current_rpc_agent_set():
        return None
    try:
        return int(torch._C._distributed_autograd._current_context()._context_id())
    except RuntimeError:
        return None


def accumulator(parameter: torch.Tensor) -> torch.autograd.graph.Node:
    """The node that adds to this parameter's ``.grad``; it stays the same while a user freezes and thaws it."""
    if parameter.requires_grad:
        return torch.autograd.graph.get_gradient_edge(parameter).node
    parameter.requires_grad_(True)
    try:
        return torch.autograd.graph.get_gradient_edge(parameter).node
    finally:
        parameter.requires_grad_(False)


def accumulates_now(
    parameters: Sequence[torch.Tensor], known: Mapping[torch.Tensor, torch.autograd.graph.Node]
) -> bool:
    """Whether the backward pass now running (in one of whose hooks we are) may add to some ``.grad``.

    False for ``torch.autograd.grad`` (DDP-065), for ``backward(inputs=...)`` that names none of the parameters, and
    where all parameters are frozen for the moment. ``known`` are the accumulating nodes of some of the parameters, for
    whoever has them: finding one costs more than all the rest (12 of 16 µs).
    """
    nodes = (node for each, node in known.items() if each.requires_grad)
    further = (accumulator(each) for each in parameters if each.requires_grad and each not in known)
    try:
        if any(map(torch._C._will_engine_execute_node, chain(nodes, further))):  # type: ignore[attr-defined]
            return True  # as a rule told by the first one
    except RuntimeError:  # the functional interface was asked for this very gradient
        return False
    # Either they are passed by, or they are not in this graph: a reentrant checkpoint reaches them in its own.
    places = {each: 0 for each in parameters if each.requires_grad}
    node = running_node()
    return node is not None and bool(places) and not parameters_behind([node], places)


def dense_view(flat: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """A view of ``flat`` from element ``offset`` on, shaped like ``like``, with its strides if those are dense.

    Gradients laid out like their parameters keep the optimizer's loops simple (channels_last stays channels_last).
    """
    if _is_dense(like):
        return flat.as_strided(like.size(), like.stride(), flat.storage_offset() + offset)
    return flat[offset : offset + like.numel()].view(like.size())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements fill a block of memory with neither holes nor overlaps."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def weak_call(method: weakref.WeakMethod[Any]) -> Callable[[torch.Tensor], None]:
    """A hook for tensors that calls ``method`` as long as its object lives, and does not keep it alive."""

    def call(tensor: torch.Tensor) -> None:
        found = method()
        if found is not None:
            found(tensor)

    return call
