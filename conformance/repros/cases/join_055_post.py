"""A post hook that notifies on the ranks that came last starts a count for which nobody else comes."""

# shows: JOIN-055 test_a_post_hook_that_notifies_*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


class Stepper(Joinable, JoinHook):
    join_device, join_process_group = torch.device("cpu"), property(lambda self: dist.group.WORLD)

    def __init__(self):
        super().__init__()

    def join_hook(self, **kwargs):
        return self

    def post_hook(self, is_last_joiner):
        if is_last_joiner:
            Join.notify_join_context(self)


def train(rank):
    stepper = Stepper()
    with Join([stepper]):
        for _ in range(INPUTS[rank]):
            Join.notify_join_context(stepper)
    dist.all_reduce(whole := torch.tensor([10.0]))
    return whole.item()


judge(train, "what the ranks add up after the block is the sum of theirs", 20.0)
