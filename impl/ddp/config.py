"""The options of a DDP object: the constructor's arguments, checked before anything communicates, and then frozen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..arguments import flag
from ..comm.ranks import Team
from .log import Entry, Fail
from .mixed_precision import _MixedPrecision
from .plan import BucketCaps


def warn_of_old_arguments(check_reduction: bool, broadcast_buffers: bool | None, forward_sync: bool | None) -> None:
    """FutureWarning for arguments that torch has retired (DDP-015, DDP-016)."""
    if check_reduction:
        warnings.warn(
            "check_reduction=True is deprecated and has no effect: unfinished reductions are always noticed. Leave "
            "it out.",
            FutureWarning,
            stacklevel=3,
        )
    if broadcast_buffers is None:
        return
    text = (
        "The `broadcast_buffers` argument is deprecated; use `forward_sync_buffers` (in forward) instead. Buffers that "
        "each rank is to keep for itself from the beginning need `broadcast_buffers=False` still."
    )
    if forward_sync is not None:
        text += " Both were given: `broadcast_buffers` is ignored."
    warnings.warn(text, FutureWarning, stacklevel=3)


def syncs_buffers_in_forward(broadcast_buffers: bool | None, forward_sync: bool | None) -> bool:
    """Whether forwards synchronise buffers: the newer argument wins, the default is True (DDP-082, DDP-083)."""
    if forward_sync is not None:
        return flag("forward_sync_buffers", forward_sync)
    return True if broadcast_buffers is None else flag("broadcast_buffers", broadcast_buffers)


def check_kinds(device_mesh: Any, mixed_precision: Any, trigger: Any) -> None:
    """TypeError for what would otherwise be noticed late, by code that cannot name the argument."""
    wanted = (
        ("device_mesh", device_mesh, hasattr(device_mesh, "get_group"), "a DeviceMesh"),
        ("mixed_precision", mixed_precision, hasattr(mixed_precision, "reduce_dtype"), "a _MixedPrecision"),
        ("param_to_hook_all_reduce", trigger, isinstance(trigger, torch.Tensor), "one of the module's parameters"),
    )
    for name, value, fits, kind in wanted:
        if value is not None and not fits:
            raise TypeError(f"{name} must be {kind} or None, not {value!r}.")
    for part in ("param_dtype", "reduce_dtype", "buffer_dtype") if mixed_precision is not None else ():
        dtype = getattr(mixed_precision, part)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"{part} of mixed_precision must be a floating-point dtype or None, not {dtype!r}.")


def check_delay_pair(named: Sequence[Any] | None, trigger: nn.Parameter | None, lowered: Any) -> None:
    """ValueError unless the two delay arguments come together (DDP-014), and without lowered parameters."""
    if (named is None) != (trigger is None):
        raise ValueError(
            "delay_all_reduce_named_params says what is reduced late and param_to_hook_all_reduce says when: give "
            "both or neither."
        )
    if named and lowered is not None and lowered.param_dtype is not None:
        raise ValueError(
            "delay_all_reduce_named_params keeps parameters out of mixed_precision, whose param_dtype lowers all "
            "others and the inputs: a forward could not compute with both. Leave one of them out."
        )


def group_of(process_group: dist.ProcessGroup | None, device_mesh: Any) -> dist.ProcessGroup:
    """The group to average over (DDP-001, DDP-003, DDP-012, DDP-013)."""
    if process_group is not None and device_mesh is not None:
        raise RuntimeError(
            "Cannot specify both process_group and device_mesh arguments. Each names the ranks to average over: give "
            "one of them."
        )
    if device_mesh is None:
        return Team.of(process_group).group
    if device_mesh.ndim != 1:
        raise RuntimeError(
            f"Only 1D device mesh is supported, and this one is {device_mesh}. Pass the dimension over which data is "
            'parallel, for example device_mesh["dp"].'
        )
    return device_mesh.get_group(mesh_dim=0)  # type: ignore[no-any-return]


def is_part_of_a_mesh(device_mesh: Any) -> bool:
    """Whether there are other dimensions beside this one, over which parameters may be sharded."""
    return bool(device_mesh._get_root_mesh() != device_mesh)


@dataclass(frozen=True)
class Placement:
    """Where a module lives and where its inputs and outputs go."""

    device: torch.device
    several_devices: bool
    device_ids: list[int] | None
    output_device: int | None


def place(
    module: nn.Module,
    managed: Sequence[nn.Parameter],
    delayed: Sequence[nn.Parameter],
    device_ids: Sequence[int | torch.device] | None,
    output_device: int | torch.device | None,
) -> Placement:
    """Find out where the module lives; refuse what cannot be trained (DDP-006 … DDP-011)."""
    everything = [*managed, *delayed]
    if not any(parameter.requires_grad for parameter in everything):
        raise RuntimeError(
            f"There is nothing to average: {type(module).__name__} has no managed parameters that require a gradient. "
            "Usual cause: a frozen model, or all names ignored. Use the module without DistributedDataParallel."
        )
    if isinstance(device_ids, int | str | torch.device):
        raise TypeError(
            f"device_ids must be a list of the one device of this process, not that device itself: [{device_ids!r}]."
        )
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(
            f"device_ids can only be None or contain a single element. It is {list(device_ids)}: start one process for "
            "each device."
        )
    for parameter in everything:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise RuntimeError(
                "Modules with uninitialized parameters cannot be wrapped, since nobody knows their shapes yet: run a "
                "dummy forward pass first."
            )
    types = sorted({parameter.device.type for parameter in everything})
    if len(types) != 1:
        raise ValueError(
            f"All of the input module must be on the same type of devices; its parameters are on {types}. Move them to "
            "one type."
        )
    devices = {parameter.device for parameter in everything}
    on_one_accelerator = len(devices) == 1 and types != ["cpu"]
    if (device_ids or output_device is not None) and not on_one_accelerator:
        raise ValueError(
            "DistributedDataParallel device_ids and output_device arguments only work with "
            "single-device/multiple-device GPU modules or CPU modules that leave them out; "
            f"device_ids={device_ids} and output_device={output_device} were given for parameters on "
            f"{sorted(map(str, devices))}. Leave both out for CPU and multi-device modules."
        )
    ids = [_index(device) for device in device_ids] if device_ids else None
    output = _index(output_device) if output_device is not None else (ids[0] if ids else None)
    return Placement(everything[0].device, len(devices) > 1, ids, output)


def _index(device: int | torch.device | str) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.get_device_module(torch.device(device)).current_device() if index is None else index


def side_stream_wanted() -> bool:
    """Whether inputs are copied on a side stream (DDP-023)."""
    return os.environ.get("PYTORCH_DDP_USE_SIDE_STREAM", "1") == "1"


def check_static_graph(*, trained: bool, find_unused: bool, fail: Fail) -> None:
    """Warn or raise where a static graph is asked for needlessly or too late (DDP-108, DDP-109)."""
    if trained:
        fail(
            RuntimeError,
            "_set_static_graph should be called before training loop starts: this model has already run a training "
            "forward. Pass static_graph=True to the constructor.",
        )
    if find_unused:
        warnings.warn(
            "A static graph finds its unused parameters automatically, so find_unused_parameters=True adds nothing: "
            "no need to set both.",
            UserWarning,
            stacklevel=3,
        )


def _backend_name(group: dist.ProcessGroup) -> str:
    try:
        return str(dist.get_backend(group))
    except ValueError:  # a group of a class of the user's own, which torch.distributed was never told of
        return group.name()


@dataclass(frozen=True)
class DDPConfig:
    """The options of a DDP object and where its module lives: checked when it is made, and never changed.

    Fields that are named like arguments of the constructor mean the same.
    """

    placement: Placement
    dim: int
    device_mesh: Any
    #: whether forwards synchronise buffers, unless the user says otherwise later
    sync_buffers: bool
    #: whether the constructor makes buffers equal
    sync_buffers_at_start: bool
    find_unused_parameters: bool
    gradient_as_bucket_view: bool
    skip_all_reduce_unused_params: bool
    batched_grad_copy: bool
    mixed_precision: _MixedPrecision | None
    caps: BucketCaps
    #: whether the user gave the sizes of several buckets
    caps_listed: bool
    #: names of what is not managed, as ``named_parameters`` spells them
    ignored: frozenset[str]
    #: whether inputs are copied on a side stream (DDP-023)
    side_stream: bool
    #: tells the model from others on its group, the same on all ranks; None where they have not been compared there
    number: int | None = None

    @property
    def as_view(self) -> bool:
        """Whether gradients are views of buckets: not in mixed precision, where buckets have another dtype."""
        return self.gradient_as_bucket_view and self.mixed_precision is None

    def deciding_collectives(self) -> dict[str, object]:
        """What all ranks have to agree on, since it decides which collectives are made, or of how many bytes."""
        return {
            "find_unused_parameters": self.find_unused_parameters,
            "skip_all_reduce_unused_params": self.skip_all_reduce_unused_params,
            "mixed_precision": self.mixed_precision,
            "buffers synchronised in forward": self.sync_buffers,
        }

    def torchs_names(self) -> dict[str, Any]:
        """The attributes under which torch's DDP shows its options."""
        shown = (
            "dim", "device_mesh", "find_unused_parameters", "gradient_as_bucket_view", "skip_all_reduce_unused_params",
            "batched_grad_copy", "mixed_precision",
        )
        place = self.placement
        return {
            **{name: getattr(self, name) for name in shown},
            "device": place.device,
            "device_type": place.device.type,
            "device_ids": place.device_ids,
            "output_device": place.output_device,
            "is_multi_device_module": place.several_devices,
            "bucket_bytes_cap": self.caps.steady_bytes,
            "bucket_bytes_cap_list": list(self.caps.sizes_bytes) if self.caps_listed else [],
            "parameters_to_ignore": set(self.ignored),
            "use_side_stream_for_tensor_copies": self.side_stream,
        }

    def log_entries(self, module: nn.Module, group: dist.ProcessGroup) -> dict[str, Entry]:
        """The logging data's entries about how the object was built (DDP-144)."""
        place = self.placement
        return {
            "world_size": group.size(),
            "rank": group.rank(),
            "backend_name": _backend_name(group),
            "module_name": type(module).__name__,
            "device_ids": ", ".join(map(str, place.device_ids or ())),
            "output_device": -1 if place.output_device is None else place.output_device,
            "bucket_cap_bytes": self.caps.steady_bytes,
            "broadcast_buffers": int(self.sync_buffers),
            "find_unused_parameters": int(self.find_unused_parameters),
            "gradient_as_bucket_view": int(self.gradient_as_bucket_view),
            "is_multi_device_module": int(place.several_devices),
            "has_sync_bn": int(any(isinstance(child, nn.SyncBatchNorm) for child in module.modules())),
        }
