"""Leaving an inner no_sync of Megatron's DistributedDataParallel ends the outer one."""

# column: megatron
# shows: DDP-075 *

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
    config = DistributedDataParallelConfig(overlap_grad_reduce=True)
    model = DistributedDataParallel(layers, config, torch.nn.Linear(1, 1), pg_collection=groups)
    with model.no_sync():
        with model.no_sync():
            pass
        return ["local" if not group.is_last_microbatch else "synchronised" for group in model.bucket_groups]


judge(train, "inside no_sync gradients stay local", ["local"])
