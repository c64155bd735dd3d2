"""A model whose forward returns a named tuple with a constructor of its own cannot be used after Fabric.setup."""

# column: fabric
# shows: DDP-102 *

from collections import namedtuple

import torch
from lightning_fabric import Fabric

from ..cases.prelude import judge


class Output(namedtuple("Output", "loss name")):
    def __new__(cls, loss, *, name):
        return super().__new__(cls, loss, name)


class Model(torch.nn.Linear):
    def forward(self, x):
        return Output(super().forward(x).sum(), name="one")


def train(rank):
    model = Fabric(accelerator="cpu", devices=1).setup(Model(1, 1, bias=False))
    model(torch.ones(1, 1)).loss.backward()
    return model.weight.grad.item()


judge(train, "outputs may be tuples of one's own", 1.0)
