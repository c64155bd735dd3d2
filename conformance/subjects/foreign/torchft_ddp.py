"""torchft's DistributedDataParallel under its real manager: every rank a replica, a lighthouse beside rank 0."""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel

from .. import Subject
from . import without

_LIMIT = timedelta(seconds=20)
_KEPT: list[Any] = []  # servers that other ranks may still need where this one's model is refused


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


class Replica(DistributedDataParallel):
    """Asks for a quorum before a step's first forward and commits after it, as torchft's optimizer wrapper does."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        options = without(options, "process_group", "find_unused_parameters", "device_mesh")
        manager = _manager(module)
        super().__init__(manager, module, **options)
        self._manager, self._step = manager, "new"
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._gradient_came)

    def _gradient_came(self, _: torch.Tensor) -> None:
        self._step = "reduced"

    def forward(self, *given: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and self._step != "begun":
            if self._step == "reduced":
                self._manager.should_commit()
            self._manager.start_quorum()
            self._step = "begun"
        return super().forward(*given, **named)


subject = Subject(
    name="torchft",
    version=version("torchft"),
    names={"DistributedDataParallel": Replica},
    lacks={"register_comm_hook": "torchft's DDP occupies the hook"},
)
