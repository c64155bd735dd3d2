"""A static graph cannot be joined by a rank without inputs: its first iteration is not followed."""

# shows: DDPJ-032 test_a_static_graph_can_be_*
# shows: DDPJ-032 test_a_static_graph_combines_* no inputs *
# shows: DDPJ-032 test_a_static_graph_that_a_lone_rank_*

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), static_graph=True)
    seen = []
    with Join([model]):
        for _ in range(INPUTS[rank]):
            model.zero_grad()
            model(torch.full((1, 1), 2.0)).sum().backward()
            seen.append(model.module.weight.grad.item())
    # one process: the mean over all ranks, to which a rank without inputs adds zero
    right = [2.0 * sum(step < inputs for inputs in INPUTS) / 2 for step in range(INPUTS[rank])]
    return "mean gradients" if seen == right else f"gradients {seen} instead of {right}"


judge(train, "models with a static graph can be joined", "mean gradients")
