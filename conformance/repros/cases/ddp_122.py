"""A delayed gradient that is cleared between forward and backward is never averaged."""

# shows: DDP-122 test_gradients_cleared_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
    for layer in layers:
        layer.weight.data.fill_(1.0)
    delayed = {"delay_all_reduce_named_params": [("1.weight", layers[1].weight)]}
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight, **delayed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.full((1, 1), 4.0 * (rank + 1))).sum()
    optimizer.zero_grad()
    loss.backward()
    torch.distributed.barrier()  # the delayed reduction, if there is one, has ended
    return layers[1].weight.grad.item()


# one process: the mean of 4 and 8
judge(train, "a delayed gradient is averaged over the ranks", 6.0)
