"""Who owns what in an overlapped step: whole buckets in turn or even pieces, each parameter once, nothing piling up."""

import gc
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import check
from conformance.fixtures import models, overlapping
from conformance.fixtures.observing import assert_refused, started
from conformance.fixtures.overlapping import (
    CAP_MIB,
    Overlap,
    iteration,
    merged,
    names_in,
    optimizer_of,
    pair_of,
    published,
)
from conformance.fixtures.training import ddp, private
from conformance.ranks import caught

READY = 4  # by then every implementation steps
LATE = 3  # by then DDP's buckets have settled
ITERATIONS = 12
DEADLINE_S = 5.0
SEQUENTIAL, INTERLEAVED = Overlap(hook=overlapping.settled), Overlap(True, hook=overlapping.settled)
HOOKS = {"sequential": SEQUENTIAL, "interleaved": INTERLEAVED}


class Equal(nn.Module):
    """Equal square layers without bias, one after the other, in the order in which they are registered or backwards."""

    def __init__(self, layers=4, backwards=False):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(layers)])
        self.backwards = backwards
        for index, layer in enumerate(self.layers):
            nn.init.constant_(layer.weight, 0.25 * (index + 1))

    def forward(self, x):
        for layer in reversed(self.layers) if self.backwards else self.layers:
            x = layer(x)
        return x


class EqualBackwards(Equal):
    def __init__(self):
        super().__init__(backwards=True)


class BesideFrozen(Equal):
    """Beside the layers a larger one that is frozen: the optimizer has it, and no bucket."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 64, bias=False).requires_grad_(False)


def layers_mib(count):
    """A cap that ``count`` layers of ``Equal`` fill."""
    return count * 64 / 2**20


def owned(ctx, how, late=0):
    """The buckets of the last iteration, and the parameters whose optimizer state this rank keeps.

    In the first ``late`` iterations another hook averages, without any step.
    """
    buckets, number = [], 0

    def hook(state, bucket):
        buckets.append(names_in(pair, bucket))
        return overlapping.settled(state, bucket)

    def outer(made):
        return lambda state, bucket: (overlapping.settled if number < late else made)(state, bucket)

    pair = pair_of(ctx, replace(how, hook=hook), outer=outer)
    for number in range(late + READY):
        buckets.clear()
        iteration(pair, number, overlapping.squares)
    return list(buckets), overlapping.stateful(pair)


def owners(results):
    """The buckets with their owners, by parameter."""
    buckets = results[0][0]
    of = {name: rank for rank, (_, mine) in enumerate(results) for name in mine}
    assert sum(len(mine) for _, mine in results) == len(of), "two ranks keep the state of one parameter"
    assert set(of) == {name for names in buckets for name in names}
    return [[of[name] for name in names] for names in buckets]


# -- HOOK-038: whole buckets


def owned_in_each(ctx, ways, late=()):
    return [owned(ctx, how) for how in ways] + [owned(ctx, how, LATE) for how in late]


def owners_in_each(ranks, ways, late=()):
    return [owners(results) for results in zip(*ranks(owned_in_each, ways, late), strict=True)]


@check("HOOK-038", deadline_s=DEADLINE_S)
def test_without_sharding_each_bucket_has_one_owner_in_turn(ranks):
    ways = [
        Overlap(interleaved, model=model, ddp={"bucket_cap_mb": cap})
        for model in (Equal, EqualBackwards) for cap in (CAP_MIB, layers_mib(2)) for interleaved in (False, True)
    ]  # fmt: skip
    late = [Overlap(interleaved, model=EqualBackwards) for interleaved in (False, True)]
    for how, found in zip(ways + late, owners_in_each(ranks, ways, late), strict=True):
        assert len(found) > 1, how
        assert found == [[index % ranks.world] * len(names) for index, names in enumerate(found)], how


@check("HOOK-038", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_buckets_that_are_never_rebuilt_have_one_owner_each_in_turn_too(ranks):
    """Under a search for unused parameters the buckets stay as they began: cut elsewhere than one would expect."""
    options = {"bucket_cap_mb": layers_mib(3), "find_unused_parameters": True}
    ways = [Overlap(interleaved, model=Equal, ddp=options) for interleaved in (False, True)]
    for how, found in zip(ways, owners_in_each(ranks, ways), strict=True):
        assert len(found) > 1, how
        assert found == [[index % ranks.world] * len(names) for index, names in enumerate(found)], how


def without_the_second(module):
    return [each for name, each in module.named_parameters() if ".1." not in name]


@check("HOOK-038", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_buckets_of_which_the_optimizer_has_nothing_count_too(ranks):
    ways = [Overlap(interleaved, model=Equal, listed=without_the_second) for interleaved in (False, True)]
    for how, results in zip(ways, zip(*ranks(owned_in_each, ways), strict=True), strict=True):
        of = {name: rank for rank, (_, mine) in enumerate(results) for name in mine}
        assert len(of) == 3, how
        for index, names in enumerate(results[0][0]):
            owned = [name for name in names if name in of]
            assert [of[name] for name in owned] == [index % ranks.world] * len(owned), how


# -- HOOK-039, HOOK-040: shards


def loads(found, world):
    """Elements that each rank owns (all parameters of ``Equal`` have sixteen)."""
    flat = [rank for bucket in found for rank in bucket]
    return [16 * flat.count(rank) for rank in range(world)]


def in_pieces(bucket):
    """The owners of a bucket with neighbours put together."""
    return [rank for place, rank in enumerate(bucket) if place == 0 or bucket[place - 1] != rank]


# layers a bucket, and how many the buckets then have; the second: fewer pieces of a bucket than ranks
CUTS = ((3, [3, 1]), (2, [2, 2]))


@check("HOOK-039", worlds=(1, 3), deadline_s=DEADLINE_S)
def test_sharding_cuts_buckets_into_pieces_for_an_even_load(ranks):
    ways = [Overlap(shard=True, model=Equal, ddp={"bucket_cap_mb": layers_mib(layers)}) for layers, _ in CUTS]
    for (_, buckets), found in zip(CUTS, owners_in_each(ranks, ways), strict=True):
        assert [len(bucket) for bucket in found] == buckets
        assert {rank for bucket in found for rank in bucket} == set(range(ranks.world))
        assert max(loads(found, ranks.world)) - min(loads(found, ranks.world)) <= 16
        for bucket in found:
            assert len(in_pieces(bucket)) == len(set(bucket)), "one rank has two pieces of a bucket"


@check("HOOK-039", worlds=(2,), deadline_s=DEADLINE_S)
def test_a_piece_stays_below_its_share_and_does_not_reach_it(ranks):
    """Two ranks, so a share is two layers of four: no piece has two, and both ranks own one of each bucket."""
    ways = [Overlap(shard=True, model=model, ddp={"bucket_cap_mb": layers_mib(2)}) for model in (Equal, BesideFrozen)]
    for found in owners_in_each(ranks, ways):
        assert [sorted(bucket) for bucket in found] == [[0, 1], [0, 1]]


class Uneven(nn.Module):
    """Layers of several widths side by side, used in the order in which they are registered or backwards."""

    def __init__(self, backwards=False):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width) for width in (1, 8, 2, 4, 3)])
        self.backwards = backwards
        for index, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, float(index))

    def forward(self, x):
        numbered = list(enumerate(self.layers))
        return torch.cat([(n + 1) * layer(x) for n, layer in (numbered[::-1] if self.backwards else numbered)], dim=1)


class UnevenBackwards(Uneven):
    def __init__(self):
        super().__init__(backwards=True)


def promised_owners(buckets, world):
    """Smallest bucket first, pieces below total/world, each to the least loaded rank without one of that bucket."""
    sizes = {name: parameter.numel() for name, parameter in Uneven().named_parameters()}
    total, loads, found = sum(sizes.values()), [0] * world, [[] for _ in buckets]
    for index in sorted(range(len(buckets)), key=lambda index: sum(sizes[name] for name in buckets[index])):
        pieces = [[]]
        for name in buckets[index]:
            if pieces[-1] and sum(sizes[one] for one in pieces[-1]) + sizes[name] >= total / world:
                pieces.append([])
            pieces[-1].append(name)
        for piece in pieces:
            owner = min(set(range(world)) - set(found[index]), key=lambda rank: (loads[rank], rank))
            loads[owner] += sum(sizes[name] for name in piece)
            found[index] += [owner] * len(piece)
    return found


@check("HOOK-039", worlds=(3,), deadline_s=DEADLINE_S)
def test_the_pieces_of_uneven_buckets_go_to_the_least_loaded_ranks(ranks):
    ways = [
        Overlap(interleaved, shard=True, model=model, ddp={"bucket_cap_mb": 4 * elements / 2**20})
        for model in (Uneven, UnevenBackwards) for elements, interleaved in ((40, False), (20, True))
    ]  # fmt: skip
    for how, results in zip(ways, zip(*ranks(owned_in_each, ways), strict=True), strict=True):
        buckets = results[0][0]
        assert len(buckets) > 1, how
        assert owners(results) == promised_owners(buckets, ranks.world), how


@check("HOOK-039", worlds=(3,), deadline_s=DEADLINE_S)
def test_the_smallest_bucket_is_given_away_first(ranks):
    """So its owner already has a load when the large bucket's three pieces are given away, and gets the last one."""
    large, small = owners(ranks(owned, Overlap(shard=True, model=Equal, ddp={"bucket_cap_mb": layers_mib(3)})))
    assert (len(large), len(small)) == (3, 1)
    assert in_pieces(large)[-1] == small[0]


@check("HOOK-040", worlds=(2, 3), deadline_s=DEADLINE_S)
def test_a_bucket_may_need_more_pieces_than_there_are_ranks(ranks):
    many = 4 if ranks.world == 3 else 3
    how = Overlap(shard=True, model=Three if many == 3 else Equal, ddp={"bucket_cap_mb": 25})
    found = owners(ranks(owned, how))
    assert len(found) == 1
    assert sorted(loads(found, ranks.world)) == ([16, 32] if many == 3 else [16, 16, 32])


def send_pieces(ctx, how):
    """The sources of an iteration's parameters, and the parameters whose state this rank keeps."""
    pair = pair_of(ctx, how)
    for number in range(READY):
        iteration(pair, number, overlapping.squares)
    events = started(ctx, lambda: iteration(pair, READY, overlapping.squares))
    messages = [(event.source, torch.Size(event.shape).numel()) for event in published(events)]
    return [source for source, _ in merged(messages)], sorted(overlapping.stateful(pair))


@check("HOOK-025", "HOOK-026", "HOOK-028", worlds=(3,), scenarios=HOOKS, deadline_s=DEADLINE_S, beyond=False)
def test_the_owners_of_one_bucket_send_their_pieces_in_ascending_order(ranks, scenario):
    how = replace(scenario, shard=True, model=Equal, ddp={"bucket_cap_mb": layers_mib(3)})  # three owners of bucket 0
    results = ranks(send_pieces, how, trace=True)
    assert sorted(name for _, owned in results for name in owned) == [f"layers.{place}.weight" for place in range(4)]
    for sources, _ in results:
        assert sources[:3] == [0, 1, 2]
        assert sources == results[0][0]


class Three(Equal):
    def __init__(self):
        super().__init__(layers=3)


# -- HOOK-024: parameter groups


def train_two_groups(ctx, interleaved):
    """Two groups with settings of their own, which change on the way; where they are refused, why."""
    group = overlapping.group_of(ctx)
    model = ddp(ctx, models.Sum().to(ctx.device), process_group=group, bucket_cap_mb=CAP_MIB)
    pair = overlapping.Pair(model, None, group, dist.get_rank(group))
    seen = []

    def attempt():
        params = list(pair.model.parameters())
        groups = [{"params": params[::2]}, {"params": params[1::2], "lr": 0.5}]
        pair.zero = optimizer_of(ctx, groups, "momentum", group)
        made = overlapping.factory_of(ctx, interleaved)(ctx.subject.default_hooks.allreduce_hook, model, pair.zero)
        model.register_comm_hook(group, made)
        for number in range(READY + 2):
            change_rates(pair.zero, number)
            seen.append(iteration(pair, number))

    return caught(attempt), seen


def change_rates(optimizer, number):
    """Later the groups change places, and one of them decays."""
    if number == READY:
        optimizer.param_groups[0].update(lr=0.5, weight_decay=0.25)
        optimizer.param_groups[1].update(lr=0.125)


class AloneInTwoGroups(overlapping.Alone):
    def __init__(self, how, world):
        super().__init__(how, world)
        params = list(self.model.parameters())
        groups = [{"params": params[::2]}, {"params": params[1::2], "lr": 0.5}]
        kind, settings = overlapping.OPTIMIZERS[how.optimizer]
        self.optimizer = kind(groups, **settings)


@check("HOOK-024", worlds=(1, 2), deadline_s=DEADLINE_S)
def test_several_parameter_groups_are_refused_or_each_stepped_with_its_settings(ranks):
    for interleaved in (False, True):
        results = ranks(train_two_groups, interleaved)
        errors = [error for error, _ in results]
        if any(errors):
            assert_refused(errors, Exception, "group")
            ranks.at_limit("several parameter groups are refused")
            return
        alone = AloneInTwoGroups(Overlap(), ranks.world)
        for number, seen in enumerate(zip(*[run for _, run in results], strict=True)):
            change_rates(alone.optimizer, number)
            alone.follow(seen)
        assert True in alone.updates


def step_with_two_groups(ctx):
    """Give the local optimizer a second group, against everything that was prepared for one."""
    step = private(ctx.subject.ddp_zero_hook, "_perform_local_step")
    buckets = []

    def hook(state, bucket):
        buckets.append(bucket)
        return overlapping.settled(state, bucket)

    pair = overlapping.warmed(ctx, replace(SEQUENTIAL, hook=hook, ddp={"bucket_cap_mb": 25}))
    if ctx.rank:
        return None
    pair.zero.optim.param_groups.append({"params": []})
    return caught(step, buckets[-1], pair.zero, ctx.rank)


@check("HOOK-024", worlds=(1, 2), deadline_s=DEADLINE_S)
def test_a_local_optimizer_with_two_groups_is_refused(ranks):
    error, *_ = ranks(step_with_two_groups)
    assert_refused([error], AssertionError)


# -- HOOK-037: nothing piles up


def count_what_is_left(ctx, how):
    """After each iteration: live futures and tensors, and the lengths of what the optimizer notes for one iteration."""
    pair = pair_of(ctx, how)
    rows = []
    for number in range(ITERATIONS):
        iteration(pair, number)
        info = private(pair.zero, "_overlap_info")
        noted = ("bucket_indices_seen", "bucket_index_to_future", "bucket_index_to_bucket")
        gc.collect()
        alive = sum(isinstance(one, (torch.futures.Future, torch.Tensor)) for one in gc.get_objects())
        rows.append((alive, [len(getattr(info, name, ())) for name in noted]))
    return rows


@check("HOOK-037", worlds=(1, 2, 3), scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_nothing_of_an_iteration_is_kept_for_the_next(ranks, scenario):
    for rows in ranks(count_what_is_left, scenario):
        assert [noted for _, noted in rows] == [[0, 0, 0]] * len(rows)
        settled = [alive for alive, _ in rows[READY + 1 :]]
        assert len(set(settled)) == 1, f"live tensors and futures after each iteration: {settled}"
