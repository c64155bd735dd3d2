"""Trains three small models on uneven data with torch's own classes, and saves the weights.

    torchrun --standalone --nproc-per-node 2 conformance/examples/train_uneven.py weights.pt

To train with Joinery, change the two lines marked below into ``from impl import DistributedDataParallel, Join``.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join  # <- import line 1
from torch.nn.parallel import DistributedDataParallel  # <- import line 2

STEPS = {0: 3, 1: 5}  # optimizer steps that each rank has data for


def data(rank: int, number: int, *shape: int) -> torch.Tensor:
    """Small integers, the same for everybody who asks for this rank's batch of this number."""
    generator = torch.Generator().manual_seed(100 * rank + number)
    return torch.randint(-2, 3, shape, generator=generator).float()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def convnet() -> nn.Module:
    features = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(8, 2))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def average(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook as users write them: average the bucket over everybody."""
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def train_mlp(rank: int) -> nn.Module:
    """Uneven inputs; two micro-batches to a step, the first without synchronisation."""
    torch.manual_seed(0)
    model = mlp()
    for parameter in model.parameters():
        parameter.data.mul_(4).round_()  # integers, so that every rank and every order of summing gives the same bits
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=2**-10)
    with ddp.join():
        for step in range(STEPS[rank]):
            optimizer.zero_grad()
            with ddp.no_sync():
                ddp(data(rank, 2 * step, 2, 4)).sum().backward()
            ddp(data(rank, 2 * step + 1, 2, 4)).sum().backward()
            optimizer.step()
    return model


def train_convnet(rank: int) -> nn.Module:
    """Uneven inputs with BatchNorm, whose buffers follow the ranks that are still active."""
    torch.manual_seed(1)
    ddp = DistributedDataParallel(convnet(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.0)
    with Join([ddp]):
        for step in range(STEPS[rank]):
            optimizer.zero_grad()
            ddp(data(rank, step, 4, 3, 8, 8)).pow(2).mean().backward()
            optimizer.step()
    return ddp.module


def train_transformer(rank: int) -> nn.Module:
    """Even inputs, Adam, and the communication hook from above."""
    torch.manual_seed(2)
    ddp = DistributedDataParallel(transformer(), bucket_cap_mb=0.01)
    ddp.register_comm_hook(None, average)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    for step in range(4):
        optimizer.zero_grad()
        ddp(data(rank, step, 2, 5, 16)).pow(2).mean().backward()
        optimizer.step()
    return ddp.module


def main(out: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trained = {train.__name__: train(rank).state_dict() for train in (train_mlp, train_convnet, train_transformer)}
    if rank == 0:
        torch.save(trained, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
