"""A warm-up of the overlap hooks, for scripts that were written for torch's: how long it lasts, and for whom."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero

from impl import DistributedDataParallel, Join, ZeroRedundancyOptimizer
from impl.overlap import hook_with_zero_step, hook_with_zero_step_interleaved
from impl.tests.comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow

ITERATIONS = 6


def model():
    layers = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(3)])
    for layer in layers:
        nn.init.eye_(layer.weight)
    return layers


def averaged(_state, bucket):
    """A hook that is done when it returns: torch's overlap hooks wait for futures inside of callbacks."""
    dist.all_reduce(bucket.buffer())
    future = torch.futures.Future()
    future.set_result(bucket.buffer().div_(dist.get_world_size()))
    return future


def pair(ours, static, factory, **options):
    wrapper, optimizer = (DistributedDataParallel, ZeroRedundancyOptimizer) if ours else (
        nn.parallel.DistributedDataParallel, TorchZero)  # fmt: skip
    ddp = wrapper(model(), bucket_cap_mb=1e-5, static_graph=static)
    zero = optimizer(ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=2.0**-6)
    with mock.patch.object(dist, "get_backend", return_value="another than Gloo, which torch refuses"):
        hook = factory(averaged, ddp, zero, **options)
    ddp.register_comm_hook(None, hook)
    return ddp, zero


def train(ddp, iterations, rank):
    trace = []
    for iteration in range(iterations):
        ddp(torch.full((1, 2), float(rank + iteration % 2))).sum().backward()
        trace.append([parameter.tolist() for parameter in ddp.module.parameters()])
        ddp.zero_grad()
    return trace


FACTORIES = {
    False: (hook_with_zero_step, ddp_zero_hook.hook_with_zero_step),
    True: (hook_with_zero_step_interleaved, ddp_zero_hook.hook_with_zero_step_interleaved),
}


def train_both(rank, world, static, interleaved):
    ours, theirs = FACTORIES[interleaved]
    mine, _zero = pair(True, static, ours, warm_up_iterations=3 if static else 2)
    found = train(mine, ITERATIONS, rank)
    his, _other = pair(False, static, theirs)
    return found, train(his, ITERATIONS, rank)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_with_a_warm_up_every_iteration_leaves_what_torchs_hooks_leave(static, interleaved):
    for mine, theirs in run_on_ranks(train_both, 2, static, interleaved):
        assert mine == theirs
        assert mine[0] == mine[2 if static else 1] != mine[-1]


def train_unevenly(rank, world):
    ddp, zero = pair(True, False, hook_with_zero_step, warm_up_iterations=2)
    with Join([ddp, zero]):
        train(ddp, (1, 4)[rank], rank)
    group = dist.group.WORLD
    return [parameter.tolist() for parameter in ddp.module.parameters()], len(zero.optim.param_groups), group.size()


def test_a_rank_that_has_joined_warms_up_with_the_others():
    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=2.0**-6)
    for iteration in range(2, 4):  # the first two update nothing; rank 0 has no inputs any more
        (alone(torch.full((1, 2), float(1 + iteration % 2))).sum() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = [parameter.tolist() for parameter in alone.parameters()]
    assert [found for found, _, _ in run_on_ranks(train_unevenly, 2)] == [expected] * 2


def warm_up_with_torchs_own(rank, world):
    ddp = DistributedDataParallel(model(), bucket_cap_mb=1e-5)
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=2.0**-6)
    ddp.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, ddp, zero, warm_up_iterations=2))
    seen = []
    with Join([ddp, zero], divide_by_initial_world_size=False):
        for iteration in range(1 + rank):
            ddp.zero_grad()
            ddp(torch.full((1, 2), float(1 + rank + iteration))).sum().backward()
            seen.append(ddp.module[0].weight.grad[0, 0].item())
    return seen


def test_torchs_own_hook_divides_by_the_active_ranks_in_the_warm_up_too():
    assert run_on_ranks(warm_up_with_torchs_own, 2) == [[1.5], [1.5, 3.0]]


class Crossed(nn.Module):
    """Layers that are used in another order than they are registered in, and not in the reverse of it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(4)])

    def forward(self, x):
        for place in (2, 0, 3, 1):
            x = self.layers[place](x)
        return x


def owners_after(rank, world, warm_up, shard):
    ddp = DistributedDataParallel(Crossed(), bucket_cap_mb=1e-5)
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=2.0**-6)
    ddp.register_comm_hook(None, hook_with_zero_step(averaged, ddp, zero, shard, warm_up_iterations=warm_up))
    train(ddp, warm_up + 2, rank)
    return zero.overlap.info.assigned_ranks_per_bucket


@pytest.mark.parametrize("shard", [False, True])
def test_the_owners_are_the_same_whether_or_not_the_hook_has_warmed_up(shard):
    at_once, later = (run_on_ranks(owners_after, 2, warm_up, shard) for warm_up in (0, 2))
    assert at_once == later
    if not shard:
        assert later == [[{0}, {1}, {0}, {1}]] * 2


def test_a_warm_up_is_as_long_as_one_likes_but_not_negative():
    with pytest.raises(ValueError, match="warm_up_iterations"):
        hook_with_zero_step(averaged, None, None, warm_up_iterations=-1)
