"""DeepSpeed's engine with ZeRO-1 steps complex parameters as real numbers, which only a warning about a cast tells."""

# column: deepspeed-zero1
# shows: ZERO-008 *

import os

import deepspeed.runtime.zero.muon.muon_optimizer  # which takes long, and every engine loads
import torch

from ..cases.prelude import judge

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled now
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))

    def forward(self):
        return (self.weight * (0.5 - 0.5j)).sum().real


def train(rank):
    os.environ["LOCAL_RANK"] = str(rank)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)[0]
    engine.backward(engine())
    engine.step()
    return model.weight.tolist()


judge(train, "a step equals that of the ordinary optimizer", [-0.5 - 0.5j, -0.5 - 0.5j])
