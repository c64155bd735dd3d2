"""A Join that was refused leaves its joinables enabled: they go on notifying outside of any context."""

# shows: JOIN-018 *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    first = DistributedDataParallel(torch.nn.Linear(1, 1))
    second = DistributedDataParallel(torch.nn.Linear(1, 1), process_group=dist.new_group([0, 1]))
    try:
        Join([first, second])
    except ValueError:  # the documented answer to two process groups
        sends = Join.notify_join_context(first) is not None
        return f"ValueError, and then a step sends {'a collective' if sends else 'nothing'}"
    return "no error"


judge(train, "only inside a context a joinable notifies", "ValueError, and then a step sends nothing")
