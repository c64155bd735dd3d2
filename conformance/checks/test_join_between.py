"""Messages between two ranks, beside the collectives of contexts: they put nobody out of step."""

import torch
import torch.distributed as dist

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.training import ddp, gradient
from conformance.ranks import caught


def raise_inside(model):
    with model.join():
        raise KeyError("on every rank")


def send_between_contexts(ctx):
    """Rank 0 sends to rank 1 alone; then all leave a context alike, and train in the next."""
    model = ddp(ctx, models.scalar())
    with model.join():
        model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    message = torch.ones(1, device=ctx.device)
    for _ in range(3):
        if ctx.rank == 0:
            dist.send(message, 1)
        elif ctx.rank == 1:
            dist.recv(message, 0)
    left = caught(raise_inside, model)
    assert left is not None
    assert left.is_a(KeyError)
    seen = []
    with model.join():
        for iteration in range(1 + ctx.rank):
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradient(model.module.weight))
    return seen


def inputs(count, world):
    """What the rank with so many inputs contributes, iteration by iteration."""
    return [models.divisible_scalar(count - 1, at).item() if at < count else 0.0 for at in range(world)]


@check("DDPJ-034", worlds=(3,))
def test_messages_between_two_ranks_keep_nobody_from_the_next_context(ranks):
    schedule = tuple(range(1, 1 + ranks.world))
    sums = [sum(data) for data in zip(*(inputs(each, ranks.world) for each in schedule), strict=True)]
    assert ranks(send_between_contexts) == [[total / ranks.world for total in sums[:count]] for count in schedule]
