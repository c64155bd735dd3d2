"""torchft's DistributedDataParallel under its real manager: every rank a replica, a lighthouse beside rank 0."""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from typing import Any
from weakref import WeakSet

import torch.distributed as dist
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel

from .. import Subject, Unsupported
from . import lacking, without

_LIMIT = timedelta(seconds=20)
_KEPT: list[Any] = []  # servers that other ranks may still need where this one's model is refused
_REDUCED: WeakSet[Manager] = WeakSet()  # managers whose step has seen a backward


def _manager(module: nn.Module) -> Manager:
    """A manager for this rank."""
    lighthouse = None
    if dist.get_rank() == 0:
        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=dist.get_world_size(), join_timeout_ms=100)
    address = [lighthouse.address() if lighthouse else ""]
    dist.broadcast_object_list(address, 0)
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    _KEPT.append((lighthouse, store))
    return Manager(
        ProcessGroupGloo(timeout=_LIMIT), module.load_state_dict, module.state_dict, dist.get_world_size(),
        use_async_quorum=False, timeout=_LIMIT, quorum_timeout=_LIMIT, rank=0, world_size=1, store_addr="127.0.0.1",
        store_port=store.port, lighthouse_addr=address[0], replica_id=f"replica{dist.get_rank()}", hostname="127.0.0.1",
    )  # fmt: skip


def _occupied(*_: Any, **__: Any) -> None:
    raise Unsupported("torchft's DDP occupies the hook, and its manager decides on the group")


class Replica(DistributedDataParallel):
    """Asks for a quorum when it was made, and where a backward begins to reduce after one that did.

    So a step of the manager's is a backward that all replicas take part in, as it is where torchft's optimizer wrapper
    follows each; forwards, and backwards that reduce nothing, ask for none.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        options = without(options, "process_group", "device_mesh")
        options.pop("find_unused_parameters", None)  # is always on
        manager = _manager(module)
        super().__init__(manager, module, **options)
        self.register_comm_hook = self._register_builtin_comm_hook = self._register_fused_optim = _occupied
        self._update_process_group = _occupied
        manager.start_quorum()

    @staticmethod
    def _comm_hook(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are texts
        if bucket.index() == 0:  # the first that a backward reduces
            if state in _REDUCED:
                state.should_commit()
                state.start_quorum()
            _REDUCED.add(state)
        return DistributedDataParallel._comm_hook(state, bucket)


subject = Subject(
    name="torchft",
    version=version("torchft"),
    names={"DistributedDataParallel": Replica},
    lacks=lacking(("recorded collectives", "process groups written in Python", "pickling"), "its groups are its own"),
)
