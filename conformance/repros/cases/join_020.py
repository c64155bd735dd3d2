"""An entry of Join's list that is no Joinable is noticed after the joinables before it have been changed."""

# shows: JOIN-020 *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from .prelude import judge


class Stepper(Joinable):
    join_device, join_process_group = torch.device("cpu"), property(lambda self: dist.group.WORLD)
    asked = 0  # how often Join asked for a hook

    def __init__(self):
        super().__init__()

    def join_hook(self, **kwargs):
        self.asked += 1
        return JoinHook()


def train(rank):
    stepper = Stepper()
    try:
        Join([stepper, torch.nn.Linear(1, 1)])
    except (AttributeError, TypeError) as error:
        return f"{type(error).__name__}; hooks made by then: {stepper.asked}"
    return "no error"


judge(train, "joinables is a list of Joinable, and bad arguments have no effect", "TypeError; hooks made by then: 0")
