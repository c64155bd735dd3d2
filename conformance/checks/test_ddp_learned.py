"""What a model learns from its first backwards: kept where it may differ, forgotten where it holds no more."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, mean_of_all, mine, wrapped
from conformance.fixtures.training import gradient, private

# -- DDP-164: another group, and then another use of the parameters


def use_others_after_a_move(ctx, use):
    """Iterations in the world, as many in a new group that use other parameters, and as many in the world again."""
    model = wrapped(ctx, models.Branches(), static_graph=True, bucket_cap_mb=TINY_MIB)
    told = []
    for turn, with_b in enumerate(use):
        if turn:
            private(model, "_update_process_group")(dist.new_group(list(range(ctx.world))))
        for iteration in range(4):
            model.zero_grad(set_to_none=True)
            model(mine(ctx, iteration + 1), with_b=with_b).sum().backward()
            left = model.module.b.weight.grad
            told.append((gradient(model.module.a.weight), None if left is None else left.item()))
    return told


@check("DDP-164", worlds=MANY, beyond=False)
def test_in_a_new_group_a_static_graph_may_be_another_one(ranks):
    use = (False, True, False)
    means = [mean_of_all(ranks.world, iteration + 1) for iteration in range(4)]
    expected = [(mean, mean if with_b else None) for with_b in use for mean in means]
    assert ranks(use_others_after_a_move, use) == [expected] * ranks.world


# -- DDP-047, DDP-072: just before the buckets follow the order of arrival


def go_alone_before_the_rebuild(ctx):
    """After each iteration the last rank alone evaluates and accumulates under no_sync, while the others wait."""
    seen = []
    for turn, options in enumerate(({}, {"static_graph": True})):
        model = wrapped(ctx, models.Branches(), bucket_cap_mb=TINY_MIB, **options)
        for iteration in range(4):
            model.zero_grad(set_to_none=True)
            if ctx.rank == ctx.world - 1 and iteration:
                with torch.no_grad():
                    model(mine(ctx), with_b=True)
                with model.no_sync():
                    model(mine(ctx), with_b=True).sum().backward()
            ctx.meet(f"{turn}.{iteration}")
            model(mine(ctx, iteration + 1), with_b=True).sum().backward()
            seen.append((gradient(model.module.a.weight), gradient(model.module.b.weight)))
    return seen


@check("DDP-072", worlds=MANY, deadline_s=6, beyond=False)
def test_one_rank_may_evaluate_and_accumulate_alone_at_any_time(ranks):
    means = [mean_of_all(ranks.world, iteration + 1) for iteration in range(4)]
    more = [0.0, *[12.0] * 3]  # the last rank's own is its rank plus one times twelve
    expected = [(mean + extra, mean + extra) for mean, extra in zip(means, more, strict=True)] * 2
    assert ranks(go_alone_before_the_rebuild) == [expected] * ranks.world


# -- DDP-068: layers that arrive twice


class Twice(nn.Module):
    """Layers that are checkpointed twice each, so that their gradients accumulate twice in a backward."""

    def __init__(self):
        super().__init__()
        self.a, self.b = models.scalar(), models.scalar()

    def forward(self, x):
        return sum(checkpoint(layer, x, use_reentrant=True) for layer in (self.a, self.b, self.a, self.b, self.a))


def arrive_twice(ctx):
    seen = []
    for options in ({"bucket_cap_mb": TINY_MIB}, {"bucket_cap_mb": 1e-6}, {}, {"gradient_as_bucket_view": True}):
        model = wrapped(ctx, Twice(), static_graph=True, **options)
        for iteration in range(5):
            model.zero_grad(set_to_none=True)
            model(mine(ctx, iteration + 1).requires_grad_()).sum().backward()
            seen.append((gradient(model.module.a.weight), gradient(model.module.b.weight)))
    return seen


@check("DDP-068", "DDP-106", worlds=(1, *MANY), beyond=False)
def test_in_a_static_graph_layers_may_be_checkpointed_as_often_as_one_likes(ranks):
    means = [mean_of_all(ranks.world, iteration + 1) for iteration in range(5)]
    assert ranks(arrive_twice) == [[(3 * mean, 2 * mean) for mean in means] * 4] * ranks.world


# -- DDP-049: cast, to what it is already, while a weight is frozen for a moment


def cast_while_frozen(ctx):
    """After each iteration the weight is frozen, the whole model is cast or moved to where it is, and it is thawed."""
    seen = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        model = wrapped(ctx, models.Branches(), **options)
        for iteration in range(5):
            model.zero_grad(set_to_none=True)
            model(mine(ctx, iteration + 1), with_b=True).sum().backward()
            seen.append((gradient(model.module.a.weight), gradient(model.module.b.weight)))
            model.module.b.weight.requires_grad_(False)
            model.float().to(ctx.device)
            model.module.b.weight.requires_grad_(True)
    return seen


@check("DDP-049", worlds=(1, *MANY), beyond=False)
def test_a_weight_that_is_frozen_while_the_model_is_cast_is_averaged_when_it_is_thawed(ranks):
    means = [mean_of_all(ranks.world, iteration + 1) for iteration in range(5)]
    assert ranks(cast_while_frozen) == [[(mean, mean) for mean in means] * 3] * ranks.world


# -- DDP-049, DDP-060, DDP-062: iterations of other kinds once the buckets have settled


class Side(nn.Module):
    """Scalar layers side by side, each with a factor of its own; a forward hands out what it is told to."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([models.scalar() for _ in range(4)])

    def forward(self, x, order=(0, 1, 2, 3), put=sum):
        return put([(1 + place) * self.layers[place](x) for place in order])


def penalise(model, place):
    (12 * getattr(model, "module", model).layers[place].weight.sum()).backward()


def goes_plainly(model, x):
    model(x).sum().backward()


def adds_two_forwards_and_a_penalty(model, x):
    (model(x) + model(2 * x)).sum().backward()
    penalise(model, 1)


def goes_backward_from_each_output(model, x):
    one, other = model(x, put=lambda parts: (parts[0] + parts[2], parts[1] + parts[3]))
    one.sum().backward()
    with torch.no_grad():
        model(x)
    other.sum().backward()


def hides_its_output(model, x):
    model(x, put=lambda parts: models.Opaque(sum(parts))).value.sum().backward()


def takes_another_order(model, x):
    model(x, order=(2, 0, 3, 1)).sum().backward()


def penalises_where_no_forward_goes(model, x):
    output = model(x, order=(0, 1, 3))
    penalise(model, 2)
    output.sum().backward()


LATER = (
    adds_two_forwards_and_a_penalty, goes_backward_from_each_output, hides_its_output, takes_another_order,
    penalises_where_no_forward_goes,
)  # fmt: skip
SETTLED = 3


def go_on_otherwise(ctx):
    """Plain iterations, then one of another kind, then plain ones again; with several buckets, in either memory."""
    told = []
    for later, as_view in itertools.product(LATER, (False, True)):
        model, seen = wrapped(ctx, Side(), bucket_cap_mb=8 / 2**20, gradient_as_bucket_view=as_view), []
        for iteration in range(SETTLED + 3):
            model.zero_grad(set_to_none=iteration % 2 == 0)
            (later if iteration == SETTLED else goes_plainly)(model, mine(ctx, iteration + 1))
            seen.append([gradient(layer.weight) for layer in model.module.layers])
        told.append(seen)
    return told


@check("DDP-049", "DDP-060", "DDP-062", worlds=MANY, beyond=False)
def test_iterations_of_another_kind_are_averaged_too_once_the_buckets_have_settled(ranks):
    for rank, told in enumerate(ranks(go_on_otherwise)):
        for (later, as_view), seen in zip(itertools.product(LATER, (False, True)), told, strict=True):
            for iteration, found in enumerate(seen):
                alone = Side()
                for one in range(ranks.world):
                    x = torch.full((1, 1), 12.0 * (one + 1) * (iteration + 1))
                    (later if iteration == SETTLED else goes_plainly)(alone, x)
                means = [gradient(layer.weight) / ranks.world for layer in alone.layers]
                assert found == means, f"rank {rank}, {later.__name__}, {as_view=}, iteration {iteration}"
