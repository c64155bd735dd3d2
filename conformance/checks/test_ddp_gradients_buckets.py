"""Buckets as a communication hook sees them: filled from the last registered parameters, rebuilt once by arrival."""

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import takes
from conformance.fixtures.training import ddp, gradients, private
from conformance.ranks import caught

WIDTH = 4
ROOM_FOR_TWO_MIB = 2 * WIDTH * WIDTH * 4 / 2**20  # two layers without bias in float32


def future_of(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


class Lane(nn.Module):
    """Four square layers, registered as 0, 1, 2, 3 and applied in an order of one's own."""

    def __init__(self, order=(0, 1, 2, 3), layers=4):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])
        self.order = order
        for layer in self.layers:
            nn.init.eye_(layer.weight)

    def forward(self, x):
        for index in self.order:
            x = self.layers[index](x)
        return x


def watch_buckets(ctx, iterations, order, options, later=None, layers=4, sizes=(ROOM_FOR_TWO_MIB,)):
    """Per iteration, the buckets as the hook got them: (index, is_last, elements, layers in them).

    ``later`` is the order in which the layers are applied from the third iteration on; ``sizes`` are those of the
    buckets, by rank.
    """
    lane = Lane(order[ctx.rank % len(order)], layers)
    model = ddp(ctx, lane, bucket_cap_mb=sizes[ctx.rank % len(sizes)], **options)
    numbering = {id(layer.weight): index for index, layer in enumerate(model.module.layers)}
    calls = []

    def hook(_state, bucket):
        layers = [numbering[id(parameter)] for parameter in bucket.parameters()]
        calls.append((bucket.index(), bucket.is_last(), bucket.buffer().numel(), layers))
        buffer = bucket.buffer()
        dist.all_reduce(buffer)
        return future_of(buffer.div_(ctx.world))

    model.register_comm_hook(None, hook)
    told = []
    for iteration in range(iterations):
        calls.clear()
        if later is not None and iteration >= 2:
            model.module.order = later
        model.zero_grad()
        model(models.divisible(ctx.rank, iteration)).sum().backward()
        told.append((list(calls), gradients(model)))
    return told


def shapes(calls):
    return [(index, last, size, sorted(layers)) for index, last, size, layers in calls]


IN_ORDER = ((0, 1, 2, 3),)
BACKWARDS = ((3, 2, 1, 0),)
BY_RANK = ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2))


@check("DDP-053", worlds=WORLDS)
def test_the_first_bucket_holds_the_parameters_registered_last(ranks):
    size = 2 * WIDTH * WIDTH
    for told in ranks(watch_buckets, 2, IN_ORDER, {}):
        calls, _ = told[1]
        assert shapes(calls) == [(0, False, size, [2, 3]), (1, True, size, [0, 1])]
    for told in ranks(watch_buckets, 2, IN_ORDER, {"find_unused_parameters": True}):
        calls, _ = told[0]
        assert [layers for _, _, _, layers in shapes(calls)] == [[2, 3], [0, 1]]


@check("DDP-053", worlds=(1, 2))
def test_a_bucket_is_full_when_it_holds_its_size_to_the_byte(ranks):
    layer = WIDTH * WIDTH * 4
    for size, held in ((layer - 1, 1), (layer, 1), (layer + 1, 2)):
        for told in ranks(watch_buckets, 2, IN_ORDER, {}, None, 4, (size / 2**20,)):
            calls, _ = told[1]
            assert [len(layers) for _, _, _, layers in calls] == [held] * (4 // held), f"{size} bytes"


@check("DDP-053", "DDP-055", worlds=WORLDS)
def test_buckets_that_stay_are_filled_in_the_order_of_registration(ranks):
    for told in ranks(watch_buckets, 3, ((0, 1, 2),), {"find_unused_parameters": True}):
        for calls, _ in told:
            assert [layers for _, _, _, layers in shapes(calls)] == [[2, 3], [0, 1]]
    for told in ranks(watch_buckets, 3, ((0, 1, 2),), {"find_unused_parameters": True}, None, 3):
        for calls, _ in told:
            assert [layers for _, _, _, layers in shapes(calls)] == [[2], [0, 1]]


def watch_buckets_in_a_context(ctx, schedule):
    """By iteration here, the layers in each bucket of a model whose gradients arrive as they are registered."""
    model, told = ddp(ctx, Lane(*BACKWARDS), bucket_cap_mb=ROOM_FOR_TWO_MIB), []
    numbering = {id(layer.weight): index for index, layer in enumerate(model.module.layers)}

    def hook(_state, bucket):
        told[-1].append(sorted(numbering[id(parameter)] for parameter in bucket.parameters()))
        dist.all_reduce(bucket.buffer())
        return future_of(bucket.buffer())

    model.register_comm_hook(None, hook)
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            told.append([])
            model(models.divisible(ctx.rank, iteration)).sum().backward()
        told.append([])  # of the iterations of others
    return told[:-1]


@check("DDP-054", "DDPJ-031", worlds=MANY, beyond=False)
def test_buckets_follow_the_arrivals_on_ranks_that_have_had_inputs(ranks):
    several = ((0, *[3] * (ranks.world - 1)), (*[3] * (ranks.world - 1), 0))
    for schedule, results in ranks.each(watch_buckets_in_a_context, several):
        for rank, told in enumerate(results):
            rebuilt = [[[0, 1], [2, 3]]] * 2 if schedule[rank] else []
            assert told[1:] == rebuilt, f"rank {rank}, schedule {schedule}"


@check("DDP-054", "DDP-049", worlds=MANY)
def test_ranks_that_differ_in_bucket_sizes_take_those_of_rank_0(ranks):
    small, right, large = ROOM_FOR_TWO_MIB / 2, ROOM_FOR_TWO_MIB, 2 * ROOM_FOR_TWO_MIB
    all_or_one = [(right, small, large)] + [(right, small, right)] * (ranks.world > 2)
    for sizes in all_or_one:
        for told in ranks(watch_buckets, 3, IN_ORDER, {}, None, 4, sizes):
            assert [layers for _, _, _, layers in shapes(told[2][0])] == [[2, 3], [0, 1]], sizes
            for iteration, (_, found) in enumerate(told):
                assert found == averaged_alone(ranks.world, iteration, IN_ORDER), sizes


ROOM_FOR_ONE_MIB = ROOM_FOR_TWO_MIB / 2


def watch_listed_sizes(ctx, sizes):
    """How many layers each bucket holds in the last iterations; and so once the model is one of doubles.

    None then where no bucket follows the cast.
    """
    takes(ctx, "bucket_cap_mb_list")
    told = []
    for options in ({}, {"static_graph": True}):
        model = ddp(ctx, Lane(layers=6, order=range(6)), bucket_cap_mb_list=sizes, **options)
        calls = []

        def hook(_state, bucket, calls=calls):
            calls.append(len(bucket.parameters()))
            dist.all_reduce(bucket.buffer())
            return future_of(bucket.buffer().div_(ctx.world))

        model.register_comm_hook(None, lambda state, bucket, hook=hook: hook(state, bucket))
        def train(dtype, model=model, calls=calls):
            model.to(dtype)
            for iteration in range(4):
                calls.clear()
                model.zero_grad()
                model(models.divisible(ctx.rank, iteration).to(dtype)).sum().backward()

        train(torch.float32)
        told.append(list(calls))
        error = caught(train, torch.float64)
        told.append(list(calls) if error is None and calls else None)
    return told


@check("DDP-004", "DDP-054", worlds=(1, 2))
def test_listed_sizes_hold_for_the_first_buckets_and_the_last_of_them_for_all_others(ranks):
    of_doubles = [1] * 6
    for sizes, expected, twice in (
        ([1, 2], [1, 2, 2, 1], of_doubles), ([2, 1], [2, 1, 1, 1, 1], of_doubles), ([3], [3, 3], [2, 2, 2]),
        ([1, 3, 1], [1, 3, 1, 1], [1, 2, 1, 1, 1]),
    ):  # fmt: skip
        for told in ranks(watch_listed_sizes, [size * ROOM_FOR_ONE_MIB for size in sizes]):
            assert told[::2] == [expected] * 2, sizes
            assert all(cast in (twice, None) for cast in told[1::2]), sizes


class OfTwoKinds(nn.Module):
    """Parameters of as many elements each, every second one a double; the doubles come first in backward."""

    def __init__(self):
        super().__init__()
        kinds = (torch.float32, torch.float64) * 4
        self.rows = nn.ParameterList(nn.Parameter(torch.ones(WIDTH * WIDTH, dtype=kind)) for kind in kinds)

    def forward(self, times):
        return sum(times * (1 + place) * row.sum().double() for place, row in enumerate(self.rows))


def watch_listed_sizes_of_two_kinds(ctx):
    takes(ctx, "bucket_cap_mb_list")
    model = ddp(ctx, OfTwoKinds().to(ctx.device), bucket_cap_mb_list=[ROOM_FOR_ONE_MIB, 2 * ROOM_FOR_ONE_MIB])
    held = []

    def hook(_state, bucket):
        held.append((str(bucket.buffer().dtype), len(bucket.parameters())))
        dist.all_reduce(bucket.buffer())
        return future_of(bucket.buffer().div_(ctx.world))

    model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
    for _ in range(3):
        held.clear()
        model.zero_grad()
        model(1.0 + ctx.rank).backward()
    return sorted(held), [row.grad.unique().tolist() for row in model.module.rows]


@check("DDP-004", "DDP-054", worlds=(2,))
def test_listed_sizes_begin_anew_for_each_dtype(ranks):
    """A double is as large as the second size: alone in its bucket, first or not."""
    singles, doubles = [("torch.float32", held) for held in (1, 1, 2)], [("torch.float64", 1)] * 4
    for held, means in ranks(watch_listed_sizes_of_two_kinds):
        assert held == [*singles, *doubles]
        assert means == [[1.5 * (1 + place)] for place in range(8)]


@check("DDP-054", worlds=WORLDS)
def test_one_bucket_at_first_then_rebuilt_once_in_the_order_of_arrival(ranks):
    size = 2 * WIDTH * WIDTH
    for told in ranks(watch_buckets, 4, BACKWARDS, {}):
        assert shapes(told[0][0]) == [(0, True, 2 * size, [0, 1, 2, 3])]
        for calls, _ in told[1:]:
            assert shapes(calls) == [(0, False, size, [0, 1]), (1, True, size, [2, 3])]


@check("DDP-054", "DDP-108", worlds=(1, 2))
def test_a_static_graph_follows_the_order_of_arrival_though_unused_parameters_are_asked_for_too(ranks):
    size = 2 * WIDTH * WIDTH
    for told in ranks(watch_buckets, 4, BACKWARDS, {"static_graph": True, "find_unused_parameters": True}):
        for calls, _ in told[2:]:
            assert shapes(calls) == [(0, False, size, [0, 1]), (1, True, size, [2, 3])]


@check("DDP-054", worlds=WORLDS)
def test_another_order_of_arrival_later_on_changes_no_bucket(ranks):
    size = 2 * WIDTH * WIDTH
    for later in (IN_ORDER[0], (0, 1, 3, 2)):  # the second bucket is full first; by turns itself and the first in order
        for told in ranks(watch_buckets, 5, BACKWARDS, {}, later):
            for iteration, (calls, found) in enumerate(told):
                if iteration:
                    assert shapes(calls) == [(0, False, size, [0, 1]), (1, True, size, [2, 3])]
                orders = BACKWARDS if iteration < 2 else (later,)
                assert found == averaged_alone(ranks.world, iteration, orders), f"{later}, iteration {iteration}"


@check("DDP-054", "DDP-049", worlds=MANY, beyond=False)
def test_ranks_that_differ_in_arrival_rebuild_alike_and_average_right(ranks):
    told = ranks(watch_buckets, 3, BY_RANK, {})
    for iteration in range(3):
        buckets = [mine[iteration][0] for mine in told]
        assert buckets == [buckets[0]] * ranks.world, f"iteration {iteration}"
        alone = averaged_alone(ranks.world, iteration)
        for rank, mine in enumerate(told):
            assert mine[iteration][1] == alone, f"rank {rank}, iteration {iteration}"
    assert len(told[0][2][0]) == 2


def averaged_alone(world, iteration, orders=BY_RANK):
    model = Lane()
    for rank in range(world):
        model.order = orders[rank % len(orders)]
        model(models.divisible(rank, iteration)).sum().backward()
    return {name: [value / world for value in values] for name, values in gradients(model).items()}


def watch_flag(ctx, options, twice=False):
    """``twice``: the first iteration consists of two forwards and then of their backwards, one after the other."""
    model = ddp(ctx, Lane(), bucket_cap_mb=ROOM_FOR_TWO_MIB, **options)
    flags = []
    for iteration in range(4):
        out = model(models.divisible(ctx.rank, iteration))
        flags.append(bool(private(model, "_has_rebuilt_buckets")))
        more = [model(models.divisible(ctx.rank, iteration))] if twice and iteration == 0 else []
        for each in (out, *more):
            each.sum().backward()
    return flags


@check("DDP-054", worlds=(1, 2))
def test_the_object_notes_when_its_buckets_were_rebuilt(ranks):
    for twice in (False, True):
        assert ranks(watch_flag, {}, twice) == [[False, True, True, True]] * ranks.world, f"{twice=}"
    for flags in ranks(watch_flag, {"static_graph": True}):  # whose first iteration is reduced late, and may not count
        assert flags in ([False, False, True, True], [False, True, True, True])


@check("DDP-055", "DDP-053", worlds=(1, 2))
def test_buckets_of_a_static_graph_follow_the_order_of_arrival(ranks):
    size = 2 * WIDTH * WIDTH
    for told in ranks(watch_buckets, 4, BACKWARDS, {"static_graph": True}):
        for calls, _ in told[2:]:
            assert shapes(calls) == [(0, False, size, [0, 1]), (1, True, size, [2, 3])]


@check("DDP-055", worlds=(1, 2))
def test_looking_for_unused_parameters_may_keep_the_first_buckets(ranks):
    size = 2 * WIDTH * WIDTH
    first = [(0, False, size, [2, 3]), (1, True, size, [0, 1])]
    arrived = [(0, False, size, [0, 1]), (1, True, size, [2, 3])]
    for told in ranks(watch_buckets, 3, BACKWARDS, {"find_unused_parameters": True}):
        assert shapes(told[0][0]) == first
        assert shapes(told[2][0]) in (first, arrived)
        if shapes(told[2][0]) == first:
            ranks.at_limit("with find_unused_parameters buckets are never rebuilt to the order of arrival")
