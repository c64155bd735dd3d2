"""gradients() of a bucket of complex parameters covers half of it: of two parameters a hook is shown one."""

# shows: COMM-016 test_complex_gradients_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.each = torch.nn.ParameterList([torch.zeros(2, dtype=torch.complex64) for _ in range(2)])

    def forward(self, batch):
        return sum((batch * weight).real.sum() for weight in self.each)


def train(rank):
    model = DistributedDataParallel(Sum())

    def hook(state, bucket):
        for gradient in bucket.gradients():
            gradient.zero_()
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, hook)
    model(torch.ones(2, dtype=torch.complex64)).backward()
    return [weight.grad.abs().sum().item() for weight in model.parameters()]


judge(train, "what a hook writes to all gradients of a bucket is what its parameters get", [0.0, 0.0])
