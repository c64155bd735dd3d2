"""A dataclass of which a forward leaves a field unset ends the forward by AttributeError."""

# shows: DDP-102 test_a_field_that_a_forward_leaves_unset_*

from dataclasses import dataclass, field

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


@dataclass
class Outputs:
    value: torch.Tensor = field(init=False)
    more: torch.Tensor = field(init=False)


class Layer(torch.nn.Linear):
    def forward(self, batch):
        outputs = Outputs()
        outputs.value = super().forward(batch)
        return outputs


def train(rank):
    model = DistributedDataParallel(Layer(1, 1, bias=False), find_unused_parameters=True)
    model(torch.full((1, 1), 2.0 * rank)).value.sum().backward()
    return model.module.weight.grad.item()


judge(train, "tensors of a dataclass are found, and gradients are averages", 1.0)
