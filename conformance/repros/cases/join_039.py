"""An error in a main hook of Join stays on its rank: the other ranks wait for it until the group times out."""

# shows: JOIN-039 *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from .prelude import judge


class Stepper(Joinable, JoinHook):
    join_device, join_process_group = torch.device("cpu"), property(lambda self: dist.group.WORLD)

    def __init__(self):
        super().__init__()

    def join_hook(self, **kwargs):
        return self

    def main_hook(self):
        raise LookupError("the hook failed")


def train(rank):
    stepper = Stepper()
    try:
        with Join([stepper]):
            if rank == 0:  # and rank 1 has no inputs
                Join.notify_join_context(stepper)
    except (LookupError, RuntimeError) as error:
        return "ended, knowing of it" if "the hook failed" in str(error) else f"ended by {error}"
    return "trained on"


judge(train, "no rank waits for a rank that has failed", "ended, knowing of it")
