"""A forward under no_sync before the synchronised one leaves gradients local, in both backwards."""

# shows: DDP-126 test_delayed_gradients_are_averaged_once_the_backward_of_the_forward_outside_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
    for layer in layers:
        layer.weight.data.fill_(1.0)
    delayed = {"delay_all_reduce_named_params": [("1.weight", layers[1].weight)]}
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight, **delayed)
    batch = torch.full((1, 1), 4.0 * (rank + 1))
    with model.no_sync():
        inside = model(batch).sum()
    outside = model(batch).sum()
    for loss in (inside, outside):
        loss.backward()
        torch.distributed.barrier()  # the delayed reduction, if there is one, has ended
    return [layer.weight.grad.item() for layer in layers]


# one process: twice the mean of 4 and 8
judge(train, "both backwards are averaged in the end", [12.0, 12.0])
