"""A model that is checkpointed as a whole, in a join context: ranks end in different collectives, and hang or die."""

# shows: DDP-067 test_a_model_that_is_checkpointed_as_a_whole_may_have_uneven_*

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from .prelude import judge


def train(rank):
    model = DDP(torch.nn.Linear(1, 1, bias=False))
    with model.join():
        for _ in range(rank + 1):
            model.zero_grad()
            checkpoint(model, torch.ones(1, 1, requires_grad=True), use_reentrant=False).sum().backward()
    return "trained"


judge(train, "the layers are recomputed, and the ranks train on uneven inputs", "trained")
