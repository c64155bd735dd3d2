"""A joinable that is listed twice never notifies, so that nobody learns who has run out of inputs."""

# shows: JOIN-019 *

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    try:
        Join([model, model])
    except (TypeError, ValueError):
        return "refused"
    return "nobody notifies" if Join.notify_join_context(model) is None else "the first entry notifies"


judge(train, "the first joinable of the list notifies its peers", "the first entry notifies", "refused")
