"""Names of torch's DDP that other code uses: attributes that a part keeps, and what the small methods do."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any

from torch import nn

from .log import Fail
from .params import managed_parameters

_RELEVANT_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME",
    "GLOO_DEVICE_TRANSPORT", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_RINGS", "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS", "NCCL_CHECKS_DISABLE", "NCCL_CHECK_POINTERS", "NCCL_LAUNCH_MODE", "NCCL_IB_HCA",
    "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_INDEX", "NCCL_IB_SL", "NCCL_IB_TC", "NCCL_IB_AR_THRESHOLD",
    "NCCL_IB_CUDA_SUPPORT", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_SINGLE_RING_THRESHOLD",
    "NCCL_LL_THRESHOLD", "NCCL_TREE_THRESHOLD", "NCCL_ALGO", "NCCL_PROTO", "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_DEBUG_FILE", "NCCL_COLLNET_ENABLE", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_DISTRIBUTED_DEBUG",
)


def _dump_DDP_relevant_env_vars() -> None:
    """Print one line for each environment variable that data-parallel training reads; N/A when unset (DDP-024)."""
    for name in _RELEVANT_VARIABLES:
        sys.stdout.write(f"env:{name}={os.environ.get(name, 'N/A')}\n")


class KeptBy:
    """An attribute or method with torch's name that one of the object's parts keeps, under a name of its own."""

    def __init__(self, part: str, name: str) -> None:
        self._part = part
        self._name = name
        self._found = attrgetter(name)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else self._found(vars(owner)[self._part])

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(vars(owner)[self._part], self._name, value)


# -- inspection


def names_by_place(
    module: nn.Module, ignored: Collection[str], parameters: Sequence[nn.Parameter], fail: Fail
) -> dict[int, str]:
    """Names by the parameters' places in ``parameters``; ValueError unless all trained ones are there (DDP-147)."""
    places = {parameter: place for place, parameter in enumerate(parameters)}
    names: dict[int, str] = {}
    for name, parameter in ((item.name, item.parameter) for item in managed_parameters(module, ignored)):
        if not parameter.requires_grad:
            continue
        if parameter not in places:
            fail(
                ValueError,
                f"Param with name {name} is trained by the module, but missing from the parameters that are "
                "reduced. That is a bug inside DDP: please report it.",
            )
        names[places[parameter]] = name
    if len(places) != len(names):
        fail(
            ValueError,
            f"Expected param to name mapping of all {len(places)} parameters that are reduced, but the module has "
            f"names for {len(names)} of them only. That is a bug inside DDP: please report it.",
        )
    return names


def parameters_or_former(m: nn.Module, *, recurse: bool) -> Iterator[nn.Parameter]:
    """Parameters module by module; former parameters of a replica where it has some (DDP-170)."""
    for each in m.modules() if recurse else [m]:
        former = getattr(each, "_former_parameters", None)
        yield from each.parameters(recurse=False) if former is None else former.values()


def data_parallel_parameters(module: nn.Module, *, named: bool) -> Iterator[Any]:
    """Parameters (or name and parameter) that are not marked as ignored (DDP-152, DDP-153)."""
    for name, parameter in module.named_parameters():
        if not getattr(parameter, "_ddp_ignored", False):
            yield (name, parameter) if named else parameter


def check_sync_batchnorm(module: nn.Module, device_type: str, fail: Fail) -> None:
    """ValueError for SyncBatchNorm layers anywhere in a CPU module (DDP-017)."""
    if device_type == "cpu" and any(isinstance(child, nn.SyncBatchNorm) for child in module.modules()):
        fail(
            ValueError,
            "This CPU module holds SyncBatchNorm layers, which need an accelerator (GPU modules). Use BatchNorm "
            "layers, or move the module before wrapping it.",
        )
