"""A model whose forward returns an object of one's own trains with local gradients under replicate (FSDP2)."""

# column: torch-replicate-fsdp2
# shows: DDP-037 *

import torch
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh

from ..cases.prelude import judge


class Output:
    def __init__(self, loss):
        self.loss = loss


class Model(torch.nn.Linear):
    def forward(self, x):
        return Output(super().forward(x).sum())


def train(rank):
    model = replicate(Model(1, 1, bias=False), mesh=init_device_mesh("cpu", (2,)))
    model(torch.full((1, 1), 1.0 + 2 * rank)).loss.backward()
    gradient = model.weight.grad
    return None if gradient is None else gradient.to_local().item()


judge(train, "gradients are the mean over all ranks", 2.0)
