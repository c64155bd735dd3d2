"""A hook's result that is a part of a larger tensor is read from the beginning of that tensor's storage."""

# shows: COMM-001 test_a_hook_may_answer_with_a_part_*
# shows: COMM-016 test_a_hook_may_answer_with_a_part_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def leave_as_it_is(state, bucket):
    room = torch.cat([torch.zeros(2), bucket.buffer()])
    future = torch.futures.Future()
    future.set_result(room[2:])
    return future


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    model.register_comm_hook(None, leave_as_it_is)
    model(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    return f"gradient {model.module.weight.grad.flatten().tolist()}"


judge(train, "the value of the hook's future becomes the gradients", "gradient [1.0, 2.0, 3.0]")
