"""A model whose forward returns a frozen dataclass cannot be trained after Fabric.setup."""

# column: fabric
# shows: DDP-102 *

from dataclasses import dataclass

import torch
from lightning_fabric import Fabric

from ..cases.prelude import judge


@dataclass(frozen=True)
class Output:
    loss: torch.Tensor


class Model(torch.nn.Linear):
    def forward(self, x):
        return Output(super().forward(x).sum())


def train(rank):
    model = Fabric(accelerator="cpu", devices=1).setup(Model(1, 1, bias=False))
    model(torch.ones(1, 1)).loss.backward()
    return model.weight.grad.item()


judge(train, "outputs may be dataclasses", 1.0)
