"""Averages add up where nobody zeroes gradients, also those of parameters that only some ranks use."""

import torch

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, wrapped
from conformance.fixtures.training import gradients, numbers

CHANGING = [("ab", "ab"), ("a", "b"), ("abc", "c"), ("b", "b"), ("ac", "ab")]  # parts used by even and by odd ranks
CONSTANT = [("ac", "bc")] * 4


def accumulate(ctx, uses, options):
    """The gradients after each iteration; every backward is synchronised, and nothing is ever zeroed."""
    model = wrapped(ctx, models.Parts(), bucket_cap_mb=TINY_MIB, **options)
    seen = []
    for iteration, used in enumerate(uses):
        model.module.use = used[ctx.rank % 2]
        model(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append(gradients(model))
    return seen


def accumulated_alone(world, uses):
    model, held, found = models.Parts(), {}, []
    for iteration, used in enumerate(uses):
        for rank in range(world):
            model.use = used[rank % 2]
            for name, gradient in oracle.local_gradients(model, models.divisible(rank, iteration)).items():
                held[name] = held.get(name, torch.zeros_like(gradient)) + gradient / world
        found.append(numbers((name, held.get(name)) for name, _ in model.named_parameters()))
    return found


@check("DDP-059", "DDP-099", worlds=(2, 4), beyond=False, scenarios={
    "searched": (CHANGING, {"find_unused_parameters": True}),
    "searched, views": (CHANGING, {"find_unused_parameters": True, "gradient_as_bucket_view": True}),
    "a static graph": (CONSTANT, {"static_graph": True}),
    "a static graph, views": (CONSTANT, {"static_graph": True, "gradient_as_bucket_view": True}),
})  # fmt: skip
def test_averages_add_up_also_where_a_rank_leaves_parameters_out(ranks, scenario):
    uses, options = scenario
    expected = accumulated_alone(ranks.world, uses)
    for rank, seen in enumerate(ranks(accumulate, uses, options)):
        for iteration, found in enumerate(seen):
            assert found == expected[iteration], f"rank {rank}, iteration {iteration}, parts {uses[iteration]}"
