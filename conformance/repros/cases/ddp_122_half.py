"""The gradients of a model in half precision cannot be delayed."""

# shows: DDP-122 test_delayed_gradients_in_half_precision_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False, dtype=torch.float16) for _ in range(2)])
    for layer in layers:
        layer.weight.data.fill_(1.0)
    delayed = {"delay_all_reduce_named_params": [("1.weight", layers[1].weight)]}
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight, **delayed)
    model(torch.full((1, 1), 4.0 * (rank + 1), dtype=torch.float16)).sum().backward()
    torch.distributed.barrier()  # the delayed reduction, if there is one, has ended
    return layers[1].weight.grad.item()


# one process: the mean of 4 and 8
judge(train, "a delayed gradient in half precision is averaged over the ranks", 6.0)
