"""A hook is refused whose annotations are text, though they name the right types."""

# shows: COMM-004 test_annotations_that_are_text_*
# shows: COMM-005 test_annotations_that_are_text_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def hook(state: "object", bucket: "torch.distributed.GradBucket") -> "torch.futures.Future[torch.Tensor]":
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def train(rank):
    DistributedDataParallel(torch.nn.Linear(1, 1)).register_comm_hook(None, hook)
    return "registered"


judge(train, "a hook of the right types is registered, as a module with postponed annotations has it", "registered")
