"""A parameter that replaces one after wrapping trains with local gradients, and nothing says so."""

# column: megatron
# shows: DDP-034 *

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig

from ..cases.prelude import judge

torch.cuda.current_device = lambda: torch.device("cpu")  # where its buffers are made


def train(rank):
    alone = dist.new_group([rank], use_local_synchronization=True)
    data, other = ("dp", "dp_cp", "intra_dp_cp"), ("tp", "pp", "ep", "expt_dp")
    groups = ProcessGroupCollection(**dict.fromkeys(data, dist.group.WORLD), **dict.fromkeys(other, alone))
    layers = TransformerConfig(num_layers=1, hidden_size=1, num_attention_heads=1)
    model = DistributedDataParallel(
        layers, DistributedDataParallelConfig(), torch.nn.Linear(1, 1, bias=False), pg_collection=groups
    )
    model.module.weight = torch.nn.Parameter(torch.ones(1, 1))
    model(torch.full((1, 1), 1.0 + 2 * rank)).sum().backward()
    model.finish_grad_sync()
    weight = model.module.weight
    return (weight.grad if weight.grad is not None else weight.main_grad).item()


judge(train, "gradients are the mean over all ranks, or an error says that a parameter is new", 2.0)
