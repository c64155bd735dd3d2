"""OSS.load_state_dict empties states of the caller's dictionary, so that it cannot be loaded again."""

# column: fairscale-oss
# shows: ZERO-018 *

import torch
from fairscale.optim import OSS

from ..cases.prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.ones(2)
    ordinary = torch.optim.SGD(weights, lr=1.0, momentum=0.5)
    ordinary.step()
    saved = ordinary.state_dict()
    OSS(weights, torch.optim.SGD, lr=1.0, momentum=0.5).load_state_dict(saved)
    return f"{sum(not state for state in saved['state'].values())} of {len(saved['state'])} states lost"


judge(train, "an argument is not changed", "0 of 2 states lost")
