"""After load_state_dict a sharded optimizer still saves what was consolidated before, and says nothing."""

# shows: ZERO-015 test_the_global_state_of_before_a_loading_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    for target in range(2):
        optimizer.consolidate_state_dict(to=target)
    loaded = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1)) for _ in range(2)], lr=0.5).state_dict()
    optimizer.load_state_dict(loaded)
    try:
        return f"saved with a learning rate of {optimizer.state_dict()['param_groups'][0]['lr']}"
    except RuntimeError:
        return "refused: consolidate first"


judge(train, "the state that was loaded, or a request to consolidate", "refused: consolidate first")
