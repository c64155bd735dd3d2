"""batched_powerSGD_hook ends in an assertion as soon as compression starts."""

# shows: COMM-026 * by bucket*
# shows: COMM-026 test_what_is_compressed_is_a_projection_*
# shows: COMM-026 test_with_error_feedback_what_a_whole_bucket_lost_*

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, batched_powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, batched_powerSGD_hook)
    for _ in range(4):
        model(torch.ones(1, 16)).sum().backward()
    return "trained"


judge(train, "the hook compresses gradients from the iteration start_powerSGD_iter on", "trained")
