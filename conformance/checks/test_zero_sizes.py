"""A sharded optimizer over parameters of all sizes and layouts, and what is left of its state afterwards."""

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.sharding import Reference, give, sharded

# -- ZERO-008, ZERO-012

MEBIBYTE = 1 << 18  # in elements of four bytes: what is that large may travel in another way


def of_all_kinds(ctx):
    """Parameters that are not just a short row of numbers, with small integer values."""
    made = [
        models.integers(MEBIBYTE + 3, seed=1),
        models.integers(4, 3, seed=2).t(),
        torch.zeros(0, 3),
        torch.tensor(2.0),
        models.integers(2, 3, 2, 2, seed=3).contiguous(memory_format=torch.channels_last),
        models.integers(2, MEBIBYTE // 2, seed=5).t(),
        models.integers(5, seed=6),
    ]
    return [nn.Parameter(value.to(ctx.device)) for value in made]


def step_all_kinds(ctx, views):
    gaps = []
    for name in ("SGD with momentum and decay", "Adagrad"):
        parameters = of_all_kinds(ctx)
        # views give each of its elements a place; no optimizer can step it where it is. It lies in memory of twelve
        # numbers, since torch sends what lies there as if it were not expanded
        parameters.append(nn.Parameter(models.integers(3, 4, seed=7).to(ctx.device)[:1].expand(3, 4)))
        reference = Reference(parameters, name)
        zero = sharded(ctx, parameters, name, parameters_as_bucket_view=views)
        for iteration in range(2):
            give(parameters, iteration)
            give(reference.parameters, iteration)
            if not views:
                parameters[-1].grad = reference.parameters[-1].grad = None
            zero.step()
            reference.optimizer.step()
            gaps.append(reference.gap(parameters))
    return gaps


@check("ZERO-008", "ZERO-012", worlds=MANY)
def test_parameters_of_every_size_and_layout_are_stepped_and_reach_all_ranks(ranks):
    for views, told in ranks.each(step_all_kinds, (False, True)):
        assert told == [[None] * 4] * ranks.world, f"{views=}"


# -- ZERO-009


def look_before_and_after(ctx):
    """How many states the optimizer shows before and after somebody asked for all of them."""
    parameters = of_all_kinds(ctx)[1:]
    zero = sharded(ctx, parameters, "Adam")
    give(parameters, 0)
    zero.step()
    before = len(zero.state)
    zero.consolidate_state_dict(to=ctx.world - 1)
    if ctx.rank == ctx.world - 1:
        zero.state_dict()
    return before, len(zero.state)


@check("ZERO-009", worlds=MANY)
def test_asking_for_the_whole_state_leaves_a_rank_with_its_shard(ranks):
    for before, after in ranks(look_before_and_after):
        assert before == after
