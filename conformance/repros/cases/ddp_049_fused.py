"""A fused optimizer mixes elements up where parameters were laid out anew since the model was wrapped."""

# shows: DDP-049 test_a_fused_optimizer_of_a_model_that_is_laid_out_anew_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layer = torch.nn.Linear(3, 2, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = DistributedDataParallel(layer, gradient_as_bucket_view=True)
    layer.weight.data = layer.weight.data.t().contiguous().t()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    model(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    optimizer.step()
    return layer.weight.tolist()


judge(train, "the weights that one process computes", [[-1.0, -2.0, -3.0]] * 2)
