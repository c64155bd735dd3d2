"""What an overlapped step moves, read off the ledger: with each sum sent to its owner only, two thirds of the bytes."""

import pytest
import torch

from conformance.observing import started

from .overlap_training import Net, batch, build, clear_gradients, loss_of

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
@pytest.mark.parametrize("interleaved", [False, True], ids=["contiguous", "interleaved"])
@pytest.mark.parametrize("shard", [False, True], ids=["whole buckets", "sharded"])
def test_sums_for_their_owners_only_move_two_thirds_of_the_bytes(gloo_cluster, world, interleaved, shard):
    options = {"interleaved": interleaved, "shard": shard}
    share = (world - 1) / world
    for reduce_scatter, parts in {False: 3, True: 2}.items():  # an all-reduce is two parts, a broadcast one
        how = ({**options, "reduce_scatter": reduce_scatter},)
        ends = gloo_cluster.run(bytes_of_a_step, how, world=world, subject="impl", ledger=True).values()
        for moved, whole in ends:
            assert moved == pytest.approx(parts * share * whole)  # and nothing besides
