"""Of several backwards through one forward, a delayed gradient that comes after the trigger stays local."""

# shows: DDP-122 test_delayed_gradients_of_several_backwards_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class InTurn(torch.nn.Sequential):
    def forward(self, x):
        return [layer(x) for layer in self]


def train(rank):
    layers = InTurn(*[torch.nn.Linear(1, 1, bias=False) for _ in range(3)])
    delayed = {"delay_all_reduce_named_params": [("1.weight", layers[1].weight)]}
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight, **delayed)
    for output in model(torch.full((1, 1), 4.0 * (rank + 1))):
        output.sum().backward()
        torch.distributed.barrier()  # the delayed reduction, if there is one, has ended
    return [layer.weight.grad.item() for layer in layers]


# one process: the mean of 4 and 8
judge(train, "delayed gradients are averaged over the ranks", [6.0, 6.0, 6.0])
