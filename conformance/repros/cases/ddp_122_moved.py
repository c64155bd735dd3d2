"""Once the model was cast, a delayed gradient is never averaged again."""

# shows: DDP-122 test_delayed_gradients_are_averages_also_of_a_model_that_was_changed_*

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
    try:
        model(batch).sum().backward()
        model.double()
        model.zero_grad()
        model(batch.double()).sum().backward()
    except RuntimeError:
        return "refused"
    torch.distributed.barrier()  # the delayed reduction, if there is one, has ended
    return f"gradient {layers[1].weight.grad.item()}"


# one process: the mean of 4 and 8
judge(train, "a delayed gradient is averaged over the ranks", "gradient 6.0", "refused")
