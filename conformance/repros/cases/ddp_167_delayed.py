"""In the Python-reducer mode the gradients of delayed parameters stay local, and nothing is said."""

# shows: DDP-167 test_the_python_reducer_averages_delayed_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    torch._dynamo.config.optimize_ddp = "python_reducer"
    module = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    for layer in module:
        torch.nn.init.constant_(layer.weight, 1.0)
    delayed = [("1.weight", module[1].weight)]
    try:
        model = DistributedDataParallel(
            module, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=module[0].weight
        )
        if not getattr(model, "_use_python_reducer", False):
            model._register_accum_grad_hook()
    except RuntimeError as error:
        return "refused" if "delay" in str(error) else str(error)
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    return [layer.weight.grad.item() for layer in module]


judge(train, "delayed gradients are averaged, or refused", [6.0, 6.0], "refused")
