"""Parameters of different dtype are accepted: ranks take each other's bytes for numbers, or break."""

# shows: DDP-032 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layer = torch.nn.Linear(1, 1).to(torch.float32 if rank == 0 else torch.float64)
    try:
        model = DistributedDataParallel(layer)
    except (RuntimeError, TypeError, ValueError) as error:
        return "refused" if "float64" in str(error) else f"{type(error).__name__}: {error}"
    return f"accepted; weight {model.module.weight.item()}"


judge(train, "all ranks must have the same model, or are told that they have not", "refused")
