"""What an overlapped step moves by its collective trace: two thirds of the bytes where sums go to owners only."""

import pytest
import torch
from torch import nn

from conformance.fixtures.observing import started

from .overlap_training import Net, batch, build, clear_gradients, loss_of

pytestmark = pytest.mark.slow

SETTLED = 4  # by then the buckets follow the order of arrival


def sent(event, world):
    """Bytes that a bandwidth-optimal algorithm sends from each rank, on average: the usual measure of bus bandwidth."""
    size = torch.Size(event.shape).numel() * getattr(torch, event.dtype).itemsize
    share = (world - 1) / world
    return size * share * (2 if event.op == "all_reduce" else 1)


def bytes_of_a_step(ctx, options):
    model = Net()
    ddp, zero = build(ctx, model, "momentum", options)

    def iteration(number):
        clear_gradients(ddp, options)
        loss_of(ddp(batch(ctx.rank, number), True)).backward()
        zero.step()

    for number in range(SETTLED):
        iteration(number)
    events = started(ctx, lambda: iteration(SETTLED))
    whole = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return sum(sent(event, ctx.world) for event in events), whole


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("interleaved", [False, True], ids=["sequential", "interleaved"])
@pytest.mark.parametrize("shard", [False, True], ids=["whole buckets", "sharded"])
def test_sums_for_their_owners_only_move_two_thirds_of_the_bytes(gloo_cluster, world, interleaved, shard):
    options = {"interleaved": interleaved, "shard": shard}
    share = (world - 1) / world
    for reduce_scatter, parts in {False: 3, True: 2}.items():  # an all-reduce is two parts, a broadcast one
        how = ({**options, "reduce_scatter": reduce_scatter},)
        ends = gloo_cluster.run(bytes_of_a_step, how, world=world, subject="impl", trace=True).values()
        for moved, whole in ends:
            assert moved == pytest.approx(parts * share * whole)  # and nothing besides


class UsedBackwards(nn.Module):
    """Layers used in the reverse order of registration: DDP settles on other buckets than those expected."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128, bias=False) for _ in range(4)])

    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x)
        return x


STATE = 2 * 4 * 128 * 128  # bytes of what Adam remembers of a layer


def bytes_of_states_on_the_move(ctx):
    subject = ctx.subject
    ddp = subject.DistributedDataParallel(UsedBackwards(), bucket_cap_mb=0.01)
    zero = subject.ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, overlap_with_ddp=True)
    ddp.register_comm_hook(None, subject.hook_with_zero_step(subject.default_hooks.allreduce_hook, ddp, zero))

    def iteration():
        ddp(torch.ones(1, 128)).sum().backward()
        return zero.shard.plan.owners

    before = iteration()
    after = []
    events = started(ctx, lambda: after.extend(iteration()))
    leaving = sum(old == ctx.rank != new for old, new in zip(before, after, strict=True))
    return leaving, sum(torch.Size(event.shape).numel() for event in events if event.dtype == "uint8")


@pytest.mark.parametrize(("world", "leaving"), [(2, [2, 2]), (3, [0, 1, 1])])
def test_a_state_goes_from_its_old_owner_to_its_new_one_and_to_nobody_else(gloo_cluster, world, leaving):
    found = gloo_cluster.run(bytes_of_states_on_the_move, world=world, subject="impl", trace=True).values()
    assert [count for count, _ in found] == leaving
    for count, sent in found:
        assert count * STATE <= sent < count * STATE + 8192  # and how it is packed
