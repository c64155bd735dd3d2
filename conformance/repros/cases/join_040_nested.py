"""Two models, each in a context of its own: a rank that has run out answers the outer model with the inner one."""

# shows: JOIN-040 test_models_of_contexts_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (1, 3)  # how many batches each rank has


def train(rank):
    outer, inner = (DistributedDataParallel(torch.nn.Linear(size, 1, bias=False)) for size in (8, 1))
    seen = []
    try:
        with outer.join(), inner.join():
            for _ in range(INPUTS[rank]):
                for model in (outer, inner):
                    model.zero_grad()
                    model(torch.full((1, model.module.in_features), 2.0)).sum().backward()
                    seen.append(model.module.weight.grad[0, 0].item())
    except RuntimeError as error:
        return "an error" if "join" in str(error).lower() else f"RuntimeError: {error}"[:200]
    right = [2.0 * sum(step < count for count in INPUTS) / 2 for step in range(INPUTS[rank]) for _ in range(2)]
    return "mean gradients" if seen == right else f"gradients {seen} instead of {right}"


judge(train, "ranks whose collectives do not belong together are told so", "an error", "mean gradients")
