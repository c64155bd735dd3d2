"""Prints how much optimizer state each rank holds with ZeroRedundancyOptimizer, beside an equal share of the whole.

    torchrun --standalone --nproc-per-node 4 -m conformance.examples.zero_memory

Forty similar layers with Adam; add ``--torch`` to see torch's own class.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors in an optimizer's state."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def main() -> None:
    if "--torch" in sys.argv:
        from torch.distributed.optim import ZeroRedundancyOptimizer
    else:
        from impl import ZeroRedundancyOptimizer
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(40)))
    sharded = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    whole = torch.optim.Adam(model.parameters(), lr=1e-3)
    model(torch.ones(1, 64)).sum().backward()
    whole.step()
    sharded.step()
    held = torch.zeros(world, dtype=torch.int64)
    held[rank] = state_bytes(sharded.optim)
    dist.all_reduce(held)
    if rank == 0:
        share = state_bytes(whole) / world
        print(f"plain Adam holds {state_bytes(whole):,} bytes of state on every rank; 1/{world} of it is {share:,.0f}")
        for owner, size in enumerate(held.tolist()):
            print(f"rank {owner} holds {size:,} bytes, {size / share - 1:+.1%} of an equal share")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
