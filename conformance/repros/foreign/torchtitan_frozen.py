"""data_parallel of simple_fsdp makes frozen parameters trainable."""

# column: torchtitan
# shows: DDP-026 *

import torch
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel

from ..cases.prelude import judge


def train(rank):
    model = torch.nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    model = data_parallel(model, init_device_mesh("cpu", (2,)), mode="replicate")
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


judge(train, "wrapping does not change what is trained", ["weight"])
