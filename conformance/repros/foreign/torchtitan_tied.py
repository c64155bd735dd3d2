"""data_parallel of simple_fsdp unties parameters that two modules share."""

# column: torchtitan
# shows: DDP-059 *

import torch
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel

from ..cases.prelude import judge


def train(rank):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    model = data_parallel(model, init_device_mesh("cpu", (2,)), mode="replicate")
    return len(list(model.parameters()))


judge(train, "a parameter that two modules share stays one", 1)
