"""A parameter that is frozen when DeepSpeed's engine with ZeRO-1 is made, and trained later, is never stepped."""

# column: deepspeed-zero1
# shows: ZERO-013 *

import os

import deepspeed.runtime.zero.muon.muon_optimizer  # which takes long, and every engine loads
import torch

from ..cases.prelude import judge

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled now
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(2), requires_grad=early) for early in (True, False))

    def forward(self):
        return (self.a + self.b).sum() / 2


def train(rank):
    os.environ["LOCAL_RANK"] = str(rank)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)[0]
    for _ in range(2):
        engine.backward(engine())
        engine.step()
        model.b.requires_grad_()
    return model.a.tolist(), model.b.tolist()


judge(train, "what is trained later is stepped from then on, or refused", ([-1.0, -1.0], [-0.5, -0.5]))
