"""What the hooks of the library share: whose group they reduce over, by what they divide, and their futures."""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from ...comm import collectives
from ...comm.averaging import divides_first
from ...comm.pending import Pending, Watch
from ...comm.ranks import Team
from ...comm.sparse import sum_sparse
from .. import kernels

TensorFuture = torch.futures.Future[torch.Tensor]
Hook = Callable[[Any, Any], TensorFuture]


class _AnyGradBucket(Protocol):
    """What a hook may ask of a bucket, torch's as well as ours (COMM-016).

    Our own bucket also answers ``names()`` of its parameters, ``process_group()``, the group that its DDP runs on,
    ``divisor()``, the number by which an average over this iteration divides, ``divisor_over(ranks)``, that of an
    average over some ranks only, and ``watch()``, what looks out for failed peers. torch's has none of them.
    """

    def index(self) -> int: ...
    def is_last(self) -> bool: ...
    def buffer(self) -> torch.Tensor: ...
    def set_buffer(self, buffer: torch.Tensor) -> None: ...
    def gradients(self) -> list[torch.Tensor]: ...
    def parameters(self) -> list[torch.Tensor]: ...


if TYPE_CHECKING:
    GradBucket = _AnyGradBucket
else:
    # what the hooks are annotated with: torch's class, so that its DDP takes them too
    GradBucket = dist.GradBucket


_TORCHS_LIBRARY = "torch.distributed.algorithms.ddp_comm_hooks"
_TORCHS_WRAPPERS = {"fp16_compress_wrapper_hook", "bf16_compress_wrapper_hook"}
#: those of torch's hooks that divide by the size of the group in their state
_DIVIDE_BY_SIZE = {
    "allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "powerSGD_hook", "batched_powerSGD_hook",
    "quantization_pertensor_hook", "quantization_perchannel_hook", "post_localSGD_hook",
}  # fmt: skip


def call_hook(hook: Hook, state: Any, bucket: Any) -> TensorFuture:
    """What the hook returns for this bucket, divided by ``bucket.divisor()`` also where it is one of torch's, which
    know of no other divisor than the size of their group (DDPJ-014)."""
    group = averaged_over(hook, state)  # asked before the hook counts the iteration
    future = hook(state, bucket)
    if group is None:
        return future
    factor = group.size() / divisor_of(Team.of(group), bucket)
    return future if factor == 1.0 else future.then(lambda done: done.value() * factor)


def averaged_over(hook: Any, state: Any) -> dist.ProcessGroup | None:
    """The group by whose size a hook of torch's divides; None for any other hook."""
    hook = function_of(hook)
    if not str(getattr(hook, "__module__", "")).startswith(_TORCHS_LIBRARY):
        return None
    name = getattr(hook, "__name__", "")
    if name in _TORCHS_WRAPPERS:
        return averaged_over(inspect.getclosurevars(hook).nonlocals["hook"], state)
    if name == "post_localSGD_hook" and state.iter >= state.start_localSGD_iter:
        return state.subgroup if state.post_local_gradient_allreduce else None
    if name in _DIVIDE_BY_SIZE:
        return getattr(state, "process_group", state) or dist.group.WORLD
    return None


def function_of(hook: Any) -> Any:
    """What partials have been made of, else the hook itself (COMM-010)."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook


def team_of(group: dist.ProcessGroup | None, bucket: GradBucket) -> Team:
    """The ranks that a hook with this group as its state reduces over; None means the group of the bucket's DDP.

    torch takes None for the whole world, which is wrong for a DDP on a subgroup (COMM-024).
    """
    if group is None and hasattr(bucket, "process_group"):
        group = bucket.process_group()
    team = Team.of(group)
    if team.rank < 0:
        raise ValueError(
            "Communication hook: this process is not a member of the process group in the hook's state. "
            "Give the hook the group that its DistributedDataParallel runs on, or None for exactly that group."
        )
    return team


def divisor_of(team: Team, bucket: Any) -> int:
    """The number by which a mean over ``team`` divides.

    The group's size, or inside a join context, as DDP knows, the number of its ranks that are active.
    """
    if not hasattr(bucket, "divisor"):
        return team.size
    is_own = bucket.process_group() is team.group
    return int(bucket.divisor() if is_own else bucket.divisor_over(team.global_ranks()))


def watch_of(bucket: GradBucket) -> Watch | None:
    """What is to look out for failed peers while a hook waits; None: what its team has."""
    return bucket.watch() if hasattr(bucket, "watch") else None


def start_mean(team: Team, divisor: int, tensor: torch.Tensor, label: str) -> Pending:
    """Start averaging a dense tensor in place; ``finish_mean`` must follow.

    The division comes first or last as in DDP without a hook, so that the bits are the same.
    """
    if divides_first(tensor.dtype):
        kernels.divide(tensor, divisor)
    return collectives.all_reduce(team, tensor, label)


def finish_mean(tensor: torch.Tensor, divisor: int) -> torch.Tensor:
    """What remains of ``start_mean`` once the collective has ended."""
    if not divides_first(tensor.dtype):
        kernels.divide(tensor, divisor)
    return tensor


def mean(group: dist.ProcessGroup | None, bucket: GradBucket, tensor: torch.Tensor, what: str) -> TensorFuture:
    """A future of the average of ``tensor`` over the group: in place, or a new tensor if it is sparse."""
    team = team_of(group, bucket)
    divisor = divisor_of(team, bucket)
    label = label_of(what, bucket)
    if tensor.is_sparse:  # its lengths are needed on the host, so it blocks
        first = divides_first(tensor.dtype)
        total = sum_sparse(team, tensor / divisor if first else tensor, label, watch_of(bucket))
        return completed(total if first else total / divisor)
    return after(start_mean(team, divisor, tensor, label), lambda: finish_mean(tensor, divisor))


def after(pending: Pending, finish: Callable[[], torch.Tensor]) -> TensorFuture:
    """A future of what ``finish`` returns once ``pending`` has ended; an error of the collective becomes its error.

    ``finish`` runs on the backend's thread: it must neither communicate nor wait.
    """

    def on_done(done: torch.futures.Future[Any]) -> torch.Tensor:
        pending.take(done.value())  # raises what the collective raised
        return finish()

    return pending.future().then(on_done)


def completed(tensor: torch.Tensor) -> TensorFuture:
    """A completed future of ``tensor`` (COMM-013)."""
    future: TensorFuture = torch.futures.Future(devices=None if tensor.device.type == "cpu" else [tensor.device])
    future.set_result(tensor)
    return future


def label_of(what: str, bucket: GradBucket) -> str:
    """The name of a collective in traces and errors."""
    return f"ddp hook {what} bucket {bucket.index()}"


_side_streams: dict[torch.device, torch.cuda.Stream] = {}  # one per device for the whole process; only ``aside`` adds


def aside(device: torch.device) -> AbstractContextManager[Any]:
    """Run what follows on a side stream behind the current one, so that waits in it do not hold back the backward.

    On a CPU there are no streams, and it changes nothing.
    """
    if device.type != "cuda":
        return nullcontext()
    stream = _side_streams.get(device)
    if stream is None:
        stream = _side_streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


def without_autocast(buffer: torch.Tensor) -> AbstractContextManager[Any]:
    """Compute in the dtype of the buffer, also where backward runs under autocast.

    A future's callback may run on the backend's thread, which knows of no autocast, or on this one: in each process on
    another, so that results would differ.
    """
    return torch.autocast(buffer.device.type, enabled=False)


def hold_for_current_stream(*tensors: torch.Tensor) -> None:
    """Keep the memory of tensors made on another stream until the current stream is done with them."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
