"""A parameter that one replica uses gets no gradient on the others, so the replicas part without a word."""

# column: torchft
# shows: DDP-099 *

from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel

from ..cases.prelude import judge


def train(rank):
    one, lighthouse = torch.nn.Linear(1, 1, bias=False), None
    model, limit = torch.nn.ModuleList([one, torch.nn.Linear(1, 1, bias=False)]), timedelta(seconds=10)
    if rank == 0:
        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=100)
    dist.broadcast_object_list(address := [lighthouse.address() if lighthouse else ""], 0)
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    model.forward = lambda x: sum(each(x) for each in list(model)[: 2 - rank])
    manager = Manager(
        ProcessGroupGloo(timeout=limit), model.load_state_dict, model.state_dict, 2, use_async_quorum=False, rank=0,
        world_size=1, store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=address[0],
        replica_id=f"replica{rank}", hostname="127.0.0.1",
    )  # fmt: skip
    ddp = DistributedDataParallel(manager, model)
    manager.start_quorum()
    ddp(torch.ones(1, 1)).sum().backward()
    return [None if each.weight.grad is None else each.weight.grad.item() for each in model]


judge(train, "a parameter that some ranks use gets the mean on all", [1.0, 0.5], deadline=25)
