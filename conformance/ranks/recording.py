"""The recording process group: stands where the backend's group would, notes each collective, and passes it on.

torch builds a group's backend by calling a class or a registered creator. ``recorded`` puts a wrapper in that place,
under the same name, so that ``get_backend()``, subgroups and explicit ``backend=`` arguments are as in an unrecorded
run. The wrapper builds the real backend and hands torch a ``RecordingGroup`` around it: a Python ``ProcessGroup``,
whose methods C++ callers (DDP's reducer) find as well. Handles and futures are the real group's own.

Not seen: C++ callers of the collectives for which torch has no Python override (``gather``, ``scatter``, ``reduce``,
``alltoall`` with lists). They work, unrecorded. All private torch API of the ranks is used in this file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import collective_trace as trace
from . import poison
from .outcomes import Event

# method of ProcessGroup -> (public name, which argument is described, what a lone integer argument means)
METHODS: dict[str, tuple[str, int, str]] = {
    "allreduce": ("all_reduce", 0, ""),
    "allreduce_coalesced": ("all_reduce_coalesced", 0, ""),
    "broadcast": ("broadcast", 0, "source"),
    "allgather": ("all_gather", 1, ""),
    "allgather_coalesced": ("all_gather_coalesced", 1, ""),
    "_allgather_base": ("all_gather_into_tensor", 1, ""),
    "all_gather_single": ("all_gather_into_tensor", 1, ""),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1, ""),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1, ""),
    "reduce_scatter": ("reduce_scatter", 0, ""),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 0, ""),
    "reduce_scatter_single": ("reduce_scatter_tensor", 0, ""),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 0, ""),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 0, ""),
    "reduce": ("reduce", 0, "target"),
    "gather": ("gather", 1, "target"),
    "scatter": ("scatter", 0, "source"),
    "alltoall": ("all_to_all", 1, ""),
    "alltoall_base": ("all_to_all_single", 1, ""),
    "all_to_all_single": ("all_to_all_single", 1, ""),
    "send": ("send", 0, "target"),
    "recv": ("recv", 0, "source"),
    "recv_anysource": ("recv_anysource", 0, ""),
    "barrier": ("barrier", -1, ""),
    "monitored_barrier": ("monitored_barrier", -1, ""),
}
# passed on unrecorded, because the base class would look for state that only the real group has
_PASSED_ON = ("_start_coalescing", "_end_coalescing", "get_group_store", "shutdown", "abort", "set_timeout")


class RecordingGroup(dist.ProcessGroup):
    """A process group that notes what is started on it and leaves the work to ``inner``."""

    def __init__(self, inner: dist.ProcessGroup, real: Any, kind: Any) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self.inner = inner
        self.real = real  # the backend itself; torch sets options on what it takes to be one
        self._kind = kind
        for device in inner._device_types:
            self._register_backend(device, kind, inner._get_backend(device))
        self._set_default_backend(kind)

    @property
    def options(self) -> Any:
        return self.real.options

    def getBackendName(self) -> str:
        """As an unrecorded group: C++ callers take a group by this name for one of torch's own kinds."""
        registered = self._kind == dist.ProcessGroup.BackendType.CUSTOM and self.real is not self.inner
        return "custom" if registered else str(self.real.name())


def _recorded(method: str, op: str, subject: int, number_means: str) -> Callable[..., Any]:
    def call(self: RecordingGroup, *args: Any, **kwargs: Any) -> Any:
        kept = trace.current()
        facts = facts_of(op, subject, number_means, args, kwargs)
        number = kept.start(self, facts) if kept is not None else -1
        work = poison.start(self.inner, method, _label(facts), max(facts[4:]), args, kwargs)
        if kept is None:
            return work
        if work is None:  # this one blocks
            kept.done(number)
        else:  # a look must not end the poison
            kept.running(number, work.real if isinstance(work, poison.PoisonedWork) else work)
        return work

    call.__name__ = method
    return _unseen_by_compilers(call)


def _label(facts: trace.Facts) -> str:
    op, reduce_op, dtype, shape, source, target = facts
    return str(Event(op, reduce_op, dtype, shape, source, "", "", target=target))


def _passed_on(method: str) -> Callable[..., Any]:
    def call(self: RecordingGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, method)(*args, **kwargs)

    call.__name__ = method
    return _unseen_by_compilers(call)


def _unseen_by_compilers(call: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile would look into a method that it finds on its way, and refuse to read a group's attributes."""
    disabled: Callable[..., Any] = torch.compiler.disable(call)  # type: ignore[no-untyped-call]
    return disabled


for _method, _about in METHODS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(RecordingGroup, _method, _recorded(_method, *_about))
for _method in _PASSED_ON:
    if hasattr(dist.ProcessGroup, _method):
        setattr(RecordingGroup, _method, _passed_on(_method))


def facts_of(op: str, subject: int, number_means: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> trace.Facts:
    """Describe a call. Callers pass an options object, or the same facts one by one."""
    values = [*args, *kwargs.values()]
    tensors = list(tensors_in(values[subject])) if 0 <= subject < len(values) else []
    root = _root(values, kwargs) if number_means else -1
    shape = tuple(tensors[0].shape) if len(tensors) == 1 else (sum(tensor.numel() for tensor in tensors),)
    return (
        op,
        _reduce_op(values) if "reduce" in op else "",
        str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
        shape if tensors else (),
        root if number_means == "source" else -1,
        root if number_means == "target" else -1,
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def _root(values: list[Any], kwargs: dict[str, Any]) -> int:
    for value in values:
        if hasattr(value, "rootRank"):
            return int(value.rootRank)
    if "root" in kwargs:
        return int(kwargs["root"])
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), 0)


def _reduce_op(values: list[Any]) -> str:
    for value in values:
        op: Any = getattr(value, "reduceOp", value)
        if isinstance(op, dist.ReduceOp.RedOpType):
            return op.name
        if isinstance(op, dist.ReduceOp):
            kinds = dist.ReduceOp.RedOpType.__members__.items()
            return next((name for name, kind in kinds if _same(op, kind)), str(op))
    return "SUM"  # torch's default


def _same(op: Any, kind: Any) -> bool:
    """A ``ReduceOp`` equals the enum member it holds; torch's annotations do not know."""
    return bool(op == kind)


def _wrap(
    real: Any, rank: int, size: int, kind: Any, devices: list[str], group: type[RecordingGroup]
) -> RecordingGroup:
    """A recording group around a backend, or around a whole group where the creator made one."""
    if isinstance(real, dist.ProcessGroup):
        return group(real, real, kind)
    inner = dist.ProcessGroup(rank, size)  # type: ignore[call-arg]
    for device in devices:
        inner._register_backend(torch.device(device), kind, real)
    inner._set_default_backend(kind)
    return group(inner, real, kind)


class _Stand(type):
    """Makes a class that stands for a backend class: calling it builds a recorded one, all else is the original's."""

    original: Any
    kind: Any
    devices: list[str]
    group: type[RecordingGroup]

    def __call__(cls, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        real = cls.original(store, rank, size, *args, **kwargs)
        return _wrap(real, rank, size, cls.kind, cls.devices, cls.group)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, (cls.original, RecordingGroup))

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)


@contextlib.contextmanager
def recorded(name: str, group: type[RecordingGroup] = RecordingGroup) -> Iterator[None]:
    """While this lasts, groups that this process makes of the backend ``name`` are recorded, by a ``group`` each."""
    built_in = f"ProcessGroup{name.upper()}" if name != "gloo" else "ProcessGroupGloo"
    plugins: dict[str, Any] = dist.Backend._plugins
    if name.upper() in plugins:
        original = plugins[name.upper()]
        plugins[name.upper()] = original._replace(creator_fn=_recording_creator(original, _devices(name), group))
        try:
            yield
        finally:
            plugins[name.upper()] = original
    elif hasattr(distributed_c10d, built_in):
        original = getattr(distributed_c10d, built_in)
        kind = getattr(dist.ProcessGroup.BackendType, name.upper())
        about = {"original": original, "kind": kind, "devices": _devices(name), "group": group}
        setattr(distributed_c10d, built_in, _Stand(built_in, (), about))
        try:
            yield
        finally:
            setattr(distributed_c10d, built_in, original)
    else:
        raise RuntimeError(f"backend {name!r} cannot be recorded: this torch builds it in a way that is not known here")


def _devices(name: str) -> list[str]:
    """The device types that torch, too, registers the backend for, whether or not such a device is there."""
    return list(dist.Backend.backend_capability.get(name, ["cpu"]))


def _recording_creator(
    registered: Any, devices: list[str], group: type[RecordingGroup]
) -> Callable[..., RecordingGroup]:
    def create(*args: Any) -> RecordingGroup:
        real = registered.creator_fn(*args)
        rank, size = (args[0].group_rank, args[0].group_size) if registered.extended_api else args[1:3]
        return _wrap(real, rank, size, dist.ProcessGroup.BackendType.CUSTOM, devices, group)

    return create
