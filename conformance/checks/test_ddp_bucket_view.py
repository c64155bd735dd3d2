"""Gradients that live in communication buckets, and copies made bucket by bucket: other memory, the same numbers."""

import time

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, assert_refused, mean_of_all, mine, takes, wrapped
from conformance.fixtures.training import gradient, gradients, numbers, whole
from conformance.ranks import caught

LATE_S = 0.03
MODES = {"views": {"gradient_as_bucket_view": True}, "copies": {}}


def data(rank, iteration):
    """Gradients whose average can be averaged once more among 3 ranks, as happens where they are never zeroed."""
    return 3 * models.divisible(rank, iteration)


def batch(ctx, iteration):
    return data(ctx.rank, iteration).to(ctx.device)


def averages(world, count, accumulated=False):
    """One process's gradients of ``models.Sum`` for each iteration; added up over the iterations if wanted."""
    module = models.Sum()
    seen, total = [], {}
    for iteration in range(count):
        found = oracle.averaged_gradients(module, [data(rank, iteration) for rank in range(world)], world)
        total = {name: total.get(name, 0) + gradient for name, gradient in found.items()} if accumulated else found
        seen.append(numbers(total.items()))
    return seen


# -- DDP-117: the same values, in shared memory


def train(ctx, zero, options):
    """After each iteration: the gradients, and in how many pieces of memory they lie."""
    model = wrapped(ctx, models.Sum(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    for iteration in range(4):
        if zero is not None:
            optimizer.zero_grad(set_to_none=zero)
        model(batch(ctx, iteration)).sum().backward()
        pieces = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
        seen.append((gradients(model), len(pieces)))
        optimizer.step()
    return seen


def train_in_buckets(ctx, zero):
    several = train(ctx, zero, {"gradient_as_bucket_view": True, "bucket_cap_mb": TINY_MIB})
    return several, train(ctx, zero, {"gradient_as_bucket_view": True}), train(ctx, zero, {"bucket_cap_mb": TINY_MIB})


@check("DDP-117", scenarios={"zeroed as None": True, "zeroed in place": False, "never zeroed": None})
def test_gradients_in_buckets_have_the_same_values_and_share_memory(ranks, scenario):
    expected = averages(ranks.world, 4, accumulated=scenario is None)
    for rank, told in enumerate(ranks(train_in_buckets, scenario)):
        for kind, seen in zip(("several buckets", "one bucket", "copies"), told, strict=True):
            assert [found for found, _ in seen] == expected, f"rank {rank}, {kind}"
        _, one, _ = told
        assert [pieces for _, pieces in one] == [1] * 4, f"rank {rank}: pieces of memory after each iteration"


def zero_by_halves(ctx):
    """Between the iterations every second gradient is dropped, and the others are zeroed where they lie."""
    told = []
    for cap in (None, TINY_MIB, 2 * TINY_MIB):
        model = wrapped(ctx, models.Sum(), gradient_as_bucket_view=True, bucket_cap_mb=cap)
        for iteration in range(4):
            for place, parameter in enumerate(model.parameters()):
                if place % 2:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.zero_()
            model(batch(ctx, iteration)).sum().backward()
            told.append(gradients(model))
    return told


@check("DDP-117")
def test_gradients_may_be_dropped_from_buckets_one_by_one(ranks):
    assert ranks(zero_by_halves) == [averages(ranks.world, 4) * 3] * ranks.world


def accumulate(ctx, options):
    """Two iterations without synchronisation, then one with it, twice over; gradients are zeroed in place."""
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, **options)
    seen = []
    for turn in range(2):
        model.zero_grad(set_to_none=False)
        with model.no_sync():
            for iteration in range(2):
                model(batch(ctx, 3 * turn + iteration)).sum().backward()
        model(batch(ctx, 3 * turn + 2)).sum().backward()
        seen.append(gradients(model))
    return seen


def accumulate_both_ways(ctx):
    return [accumulate(ctx, options) for options in MODES.values()]


@check("DDP-117")
def test_gradients_that_add_up_in_buckets_have_the_same_values(ranks):
    single = averages(ranks.world, 6)
    expected = [
        {name: [sum(column) for column in zip(*(each[name] for each in single[at : at + 3]), strict=True)]
         for name in single[0]} for at in (0, 3)
    ]  # fmt: skip
    assert ranks(accumulate_both_ways) == [[expected, expected]] * ranks.world


class Beside(nn.Module):
    """Two scalar layers side by side, one of which another model has, too; that which runs first comes last."""

    def __init__(self, shared, own_first):
        super().__init__()
        self.own, self.shared, self.own_first = models.scalar(), shared, own_first

    def forward(self, x):
        first, then = (self.own, self.shared) if self.own_first else (self.shared, self.own)
        return first(x) + then(x)


def share_a_layer(ctx, forwards, order, apart):
    """Two models with a layer in common, of whose losses one backward is made; gradients, or the refusal.

    ``apart``: before that, each has so many iterations by itself. ``forwards``: which one's forward comes first.
    """
    shared = models.scalar().to(ctx.device)
    models_of_both = [Beside(shared, own_first=place == forwards[0]) for place in (0, 1)]
    pair = [wrapped(ctx, each, gradient_as_bucket_view=True) for each in models_of_both]
    seen = []
    for _ in range(apart):
        for model in pair:
            model.zero_grad(set_to_none=False)
            model(mine(ctx)).sum().backward()

    def train():
        for iteration in range(3):
            for model in pair:
                model.zero_grad(set_to_none=iteration == 0 and not apart)
            losses = {place: pair[place](mine(ctx)).sum() for place in forwards}
            loss = sum(losses[place] for place in order)
            if ctx.rank == ctx.world - 1 and iteration + apart:  # others have sent one bucket, and go on
                loss.register_hook(lambda _: time.sleep(LATE_S))
            loss.backward()
            seen.append([gradient(each.weight) for each in (shared, *(model.module.own for model in pair))])

    return caught(train), seen


#: by name: in which order the losses are added, and how many iterations come before
ORDERS = {
    "one way round": ((0, 1), 0), "the other": ((1, 0), 0),
    "one way round, later": ((0, 1), 2), "the other, later": ((1, 0), 2),
}  # fmt: skip


@check("DDP-117", worlds=(1, 2, 3), beyond=False, scenarios=ORDERS)
def test_a_layer_of_two_models_is_averaged_in_the_buckets_of_both_or_refused(ranks, scenario):
    mean = mean_of_all(ranks.world)
    for _, told in ranks.each(share_a_layer, ((0, 1), (1, 0)), *scenario):
        for rank, (error, seen) in enumerate(told):
            if error is not None:
                assert error.is_a(RuntimeError), f"rank {rank}: {error}"
                assert "bucket" in error.text.lower(), f"rank {rank}: {error}"
                ranks.at_limit("a layer in the buckets of two models is refused")
            assert seen == [[2 * mean, mean, mean]] * len(seen), f"rank {rank}"


def thaw_a_layer_in_common(ctx):
    """Two models with a layer in common that is frozen when they are wrapped; which has the first forward changes."""
    shared = models.scalar().to(ctx.device).requires_grad_(False)
    pair = [wrapped(ctx, Beside(shared, own_first=False), gradient_as_bucket_view=True) for _ in range(2)]
    shared.requires_grad_(True)
    seen = []

    def train():
        for iteration in range(6):
            for model in pair:
                model.zero_grad(set_to_none=False)
            forwards = pair if iteration % 3 else pair[::-1]
            loss = sum(model(mine(ctx)).sum() for model in forwards)
            if ctx.rank == ctx.world - 1:  # others have sent one bucket, and go on
                loss.register_hook(lambda _: time.sleep(LATE_S))
            loss.backward()
            seen.append([gradient(each.weight) for each in (shared, *(model.module.own for model in pair))])

    return caught(train), seen


@check("DDP-049", worlds=(1, 2, 3), beyond=False)
def test_a_layer_of_two_models_that_was_frozen_when_they_were_wrapped_is_averaged_in_both_or_refused(ranks):
    mean = mean_of_all(ranks.world)
    for rank, (error, seen) in enumerate(ranks(thaw_a_layer_in_common)):
        if error is not None:
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            assert "param" in error.text, f"rank {rank}: {error}"
            ranks.at_limit("a layer of two models that was frozen when they were wrapped is refused once it is trained")
        for iteration, found in enumerate(seen):
            assert found == [2 * mean, mean, mean], f"rank {rank}, iteration {iteration}"


# -- DDP-118: detach_


def detach_gradients(ctx):
    model = wrapped(ctx, models.Sum(), gradient_as_bucket_view=True)
    model(batch(ctx, 0)).sum().backward()
    weight = model.module.layers[0].weight
    error = caught(weight.grad.detach_)
    model.zero_grad(set_to_none=True)  # what to do instead
    model(batch(ctx, 0)).sum().backward()
    return error, gradients(model)


@check("DDP-118", worlds=(1, 2, 3))
def test_a_gradient_in_a_bucket_cannot_be_detached_in_place(ranks):
    told = ranks(detach_gradients)
    assert_refused([error for error, _ in told], RuntimeError)
    assert [found for _, found in told] == averages(ranks.world, 1) * ranks.world


# -- DDP-120: copies bucket by bucket


def identity(_state, bucket):
    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def compare_settings(ctx, schedule):
    takes(ctx, "batched_grad_copy")
    return [train_in_all_ways(ctx, batched, schedule) for batched in (True, False)]


def train_in_all_ways(ctx, batched, schedule):
    told = {}
    for name, mode in MODES.items():
        for hooked in (False, True):
            model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, batched_grad_copy=batched, **mode)
            if hooked:
                model.register_comm_hook(None, identity)
            told[f"{name}, hook: {hooked}"] = [step(ctx, model, iteration) for iteration in range(3)]
        model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, batched_grad_copy=batched, **mode)
        with model.join(divide_by_initial_world_size=False):
            joined = [step(ctx, model, iteration) for iteration in range(schedule[ctx.rank])]
        told[f"{name}, joined"] = joined
    return told


def step(ctx, model, iteration):
    model.zero_grad()
    model(batch(ctx, iteration)).sum().backward()
    return gradients(model)


@check("DDP-120", beyond=False)  # from five active ranks on averages are rounded
def test_copying_bucket_by_bucket_gives_the_same_bits(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    for rank, (batched, single) in enumerate(ranks(compare_settings, schedule)):
        assert batched == single, f"rank {rank}"
        for name in MODES:
            assert batched[f"{name}, hook: False"] == averages(ranks.world, 3), f"rank {rank}"
            assert len(batched[f"{name}, joined"]) == schedule[rank]


def train_generic(ctx):
    """Gradients that the division has to round, with both settings."""
    takes(ctx, "batched_grad_copy")
    told = []
    for batched in (True, False):
        model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, batched_grad_copy=batched)
        generator = torch.Generator().manual_seed(ctx.rank)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(7, 4, generator=generator).to(ctx.device)).sum().backward()
        told.append(torch.cat([whole(parameter.grad).flatten() for parameter in model.parameters()]).cpu())
    return told


@check("DDP-120")
def test_copying_bucket_by_bucket_rounds_alike(ranks):
    for batched, single in ranks(train_generic):
        if ranks.world in (1, 2, 4, 8):
            assert batched.tolist() == single.tolist(), "dividing by a power of two does not round"
        else:  # a division and a multiplication by the reciprocal may part in the last bit
            torch.testing.assert_close(batched, single, rtol=1e-6, atol=0)
