"""Of a consolidated state the target's own part goes on with its next step, while the others' stay as they were."""

# shows: ZERO-016 test_what_has_been_consolidated_does_not_go_on_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    zero = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0, momentum=0.5)

    def step():
        for weight in weights:
            weight.grad = torch.ones(2)
        zero.step()

    step()
    zero.consolidate_state_dict()
    step()
    if rank:
        return "momentum: None"
    return f"momentum: {[state['momentum_buffer'].tolist() for state in zero.state_dict()['state'].values()]}"


judge(train, "the state is that of the consolidation", "momentum: [[1.0, 1.0], [1.0, 1.0]]", "momentum: None")
