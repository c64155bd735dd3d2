"""gradients() cuts a bucket row by row, whatever the layout of its parameters: elements come in another order."""

# shows: COMM-016 test_gradients_in_a_bucket_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layer = torch.nn.Conv2d(2, 1, 2, bias=False).to(memory_format=torch.channels_last)
    model, seen = DistributedDataParallel(layer), []

    def hook(state, bucket):
        seen.extend(bucket.gradients()[0].flatten().tolist())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, hook)
    model(torch.arange(8.0).view(1, 2, 2, 2)).sum().backward()
    return seen


# the gradient of each weight is the pixel that it meets
judge(train, "the gradients of a bucket are those of its parameters", [float(pixel) for pixel in range(8)])
