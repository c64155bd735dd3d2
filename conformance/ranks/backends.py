"""What a backend's name means here: whether so many ranks can have it, and on which devices they then work.

A name is one of torch's (``gloo``, ``nccl``, ``mpi``, ``ucc``) or ``package.module:name``: importing the module must
register the backend ``name`` with ``torch.distributed.Backend.register_backend``. It is imported in the driver, to see
whether that works, and in every rank.

``gloo+cuda`` is a backend for tensors of a kind of device that it can carry but would not choose. There ranks share
devices, if there are fewer: right for telling what is correct, on one GPU too, and for no time. Every case and record
says it in the backend's name.

``nccl+hostid`` and ``nccl+multirank`` are NCCL with ranks that share GPUs, which NCCL refuses unless it is told (see
``SHARING``). What is correct there is correct; NVIDIA supports neither way, and no time of it means anything.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

#: How ranks of NCCL come to share a GPU: each takes itself to be a host of its own and they talk over the loopback
#: device, or NCCL (2.30 and newer) is told to allow it.
SHARING = {
    "hostid": {
        "NCCL_HOSTID": "joinery-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    },
    "multirank": {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
}  # fmt: skip

#: All ranks are on this machine. Without it Gloo looks up the machine's own name, which can be slow or fail.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform.startswith("linux") else "lo0"}


class NotRunnable(Exception):
    """This backend or this many ranks cannot be had on this machine; the text says why."""


def load(spec: str) -> str:
    """Import the module that registers the backend, if ``spec`` names one; returns the backend's own name."""
    spec, _, _ = spec.partition("+")
    module, colon, name = spec.rpartition(":")
    if not colon:
        return spec.lower()
    if "," in spec:
        raise ValueError(f"backend {spec!r}: one backend per run, please; a backend per device is not supported here")
    importlib.import_module(module)
    return name.lower()


def device_of(spec: str, rank: int) -> torch.device:
    """Where tensors must lie for this backend: the CPU if it can, else the rank's own accelerator."""
    name, asked = load(spec), _asked_kind(spec)
    if asked == "cpu":
        return torch.device("cpu")
    if asked:
        return torch.device(asked, rank % max(1, _devices(asked)))
    can = _carries(name)
    return torch.device("cpu") if "cpu" in can else torch.device(can[0], rank)


def surroundings_of(spec: str, rank: int) -> dict[str, str]:
    """Variables that a rank must have before this backend starts."""
    return {name: value.format(rank=rank) for name, value in _sharing(spec).items()}


def _sharing(spec: str) -> dict[str, str]:
    name, _, way = spec.lower().partition("+")
    return SHARING.get(way, {}) if name == "nccl" else {}


def _asked_kind(spec: str) -> str:
    return "cuda" if _sharing(spec) else spec.partition("+")[2].lower()


def _carries(name: str) -> list[str]:
    """The kinds of devices whose tensors a backend takes."""
    return dist.Backend.backend_capability.get(name, ["cpu"])


def ensure_runnable(spec: str, world: int) -> None:
    """Raise ``NotRunnable``, with the reason, unless ``world`` ranks can have this backend here."""
    try:
        name = load(spec)
    except ImportError as error:
        raise NotRunnable(f"backend {spec!r}: its module cannot be imported: {error}") from error
    if name not in dist.Backend.backend_list:
        raise NotRunnable(
            f"backend {spec!r} is not registered with torch.distributed. Name the module that registers it: "
            f"package.module:{name}"
        )
    with contextlib.suppress(AttributeError):  # newer than the oldest torch that may be used
        if name in ("gloo", "nccl", "mpi", "ucc") and not dist.is_backend_available(name):
            raise NotRunnable(f"this build of torch comes without the backend {name!r}")
    asked = _asked_kind(spec)
    if "+" in spec and asked not in _carries(name):
        raise NotRunnable(f"backend {spec!r}: {name} takes tensors on {' or '.join(_carries(name))}, not on {asked!r}")
    kind = asked or device_of(spec, 0).type
    have, here = _devices(kind), min(world, _MOST_HERE[-1])
    if asked and not have:
        raise NotRunnable(f"backend {spec!r} needs a {asked} device, and this machine has none")
    if have < here and not _sharing(spec) and (name == "nccl" or not asked):
        raise NotRunnable(
            f"backend {spec!r} needs one {kind} device per rank: {here} ranks were asked for, this machine has {have}"
        )


_MOST_HERE = [sys.maxsize]  # how many ranks of a run are on this machine at most; the last entry counts


@contextlib.contextmanager
def spread(most_here: int) -> Iterator[None]:
    """Inside the block, runs have at most so many of their ranks on this machine."""
    _MOST_HERE.append(most_here)
    try:
        yield
    finally:
        _MOST_HERE.pop()


def _devices(kind: str) -> int:
    """How many devices of a kind there are; the CPU takes any number of ranks."""
    if kind == "cpu":
        return sys.maxsize
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None and module.is_available() else 0
