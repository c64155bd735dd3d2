"""With optimize_ddp = "python_reducer" the reducer tells numbers out of memory that nobody has written."""

# column: torch-python-reducer
# shows: DDP-099 *

import torch
import torch._dynamo
from torch.nn.parallel import DistributedDataParallel

from ..cases.prelude import judge

torch._dynamo.config.optimize_ddp = "python_reducer"


def train(rank):
    parts = torch.nn.ModuleList([torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
    parts.forward = lambda x: parts[rank](x)
    model = DistributedDataParallel(parts, find_unused_parameters=True)
    seen = []
    for _ in range(3):
        held = [torch.full((2,), 1234567, dtype=torch.int32) for _ in range(64)]  # of the size that is asked for
        del held
        model(torch.ones(1, 1)).sum().backward()
        seen.append(model.reducer._get_local_used_map().tolist())
    return seen


judge(train, "the map says how many ranks used each parameter", [[1, 1]] * 3)
