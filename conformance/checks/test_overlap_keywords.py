"""The overlapped step with clipped gradients, with owners' reductions of every kind, and between several hosts."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from conformance.api.checking import check
from conformance.api.oracle import active_ranks
from conformance.fixtures import models, overlapping, sharding
from conformance.fixtures.machines import HOSTS, far_apart
from conformance.fixtures.overlapping import Overlap, iteration, pair_of
from conformance.fixtures.training import ddp, numbers
from conformance.ranks import caught

DEADLINE_S = 12.0
COUNT = 4
MAX_NORM = 3.0
ONE_BUCKET_MIB = 25

# -- HOOK-018: clipping by a common norm


class Doubles(models.SumBackwards):
    """Of double precision, so that a norm that is taken in another shows."""

    def __init__(self):
        super().__init__()
        self.double()

    def forward(self, x):
        return super().forward(x.double())


class WithNothing(models.SumBackwards):
    """Beside the layers a parameter without elements, whose greatest one is not asked for."""

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.ones(0))

    def forward(self, x):
        return super().forward(x) + self.nothing.sum()


def train_each_clipped(ctx, ways):
    """For each way, by iteration: parameters, gradients, and the norm that is told."""
    group = overlapping.group_of(ctx)
    told = []
    for how in ways:
        pair, found = pair_of(ctx, how, group), []
        for number in range(COUNT):
            seen = iteration(pair, number)
            found.append((seen.parameters, seen.gradients, pair.zero.overlap.info.total_norm.item()))
        told.append(found)
    return told


def clipped_alone(how, world, settings):
    alone = overlapping.Alone(how, world)
    expected = []
    for number in range(COUNT):
        overlapping.give(alone.model, overlapping.averaged(alone.model, number, range(world), world))
        norm = nn.utils.clip_grad_norm_([each for each in alone.model.parameters() if each.numel()], **settings)
        held = numbers((name, parameter.grad) for name, parameter in alone.model.named_parameters())
        alone.optimizer.step()
        expected.append((numbers(alone.model.named_parameters()), held, norm.item()))
    return expected


@check("HOOK-018", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_gradients_that_are_clipped_together_are_stepped_as_by_one_process(ranks):
    norms = ({"max_norm": MAX_NORM}, {"max_norm": MAX_NORM, "norm_type": float("inf")}, {"max_norm": 1e9})
    ways = [
        Overlap(shard=place % 2 == 0, model=models.SumBackwards, keywords={**settings, "reduce_scatter": scatter})
        for scatter in (False, True) for place, settings in enumerate(norms)
    ]  # fmt: skip
    ways.append(Overlap(model=Doubles, hook=overlapping.in_doubles, keywords={**norms[0], "reduce_scatter": False}))
    ways.append(Overlap(model=WithNothing, hook=overlapping.in_doubles, keywords={**norms[1], "reduce_scatter": False}))
    told = ranks(train_each_clipped, ways)
    for place, how in enumerate(ways):
        settings = {name: value for name, value in how.keywords.items() if name != "reduce_scatter"}
        close = 1e-12 if how.model is Doubles else 1e-5
        expected = clipped_alone(how, ranks.world, settings)
        for rank, runs in enumerate(told):
            for number, (found, right) in enumerate(zip(runs[place], expected, strict=True)):
                assert found[2] == pytest.approx(right[2], rel=close), (rank, number, how)
                for name, values in right[0].items():
                    assert found[0][name] == pytest.approx(values, rel=close, abs=close), (rank, number, name, how)
                if not how.keywords["reduce_scatter"]:
                    for name, values in right[1].items():
                        assert found[1][name] == pytest.approx(values, rel=close, abs=close), (rank, number, name, how)


class Looking(nn.Module):
    """A table before a dense layer."""

    def __init__(self, sparse):
        super().__init__()
        self.table, self.layer = nn.Embedding(6, 4, sparse=sparse), nn.Linear(4, 4)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 1.0)

    def forward(self, rows):
        return self.layer(self.table(rows)).sum()


def clip_tables(ctx):
    """By iteration: the parameters and the norm that is told, where a table's gradients are sparse; then where the
    optimizer has the dense layer alone."""
    told, group = [], overlapping.group_of(ctx)
    for layer in (None, "layer"):
        model = ddp(ctx, Looking(sparse=True).to(ctx.device), process_group=group, bucket_cap_mb=1e-6)
        zero = overlapping.optimizer_of(ctx, chosen(model.module, layer), "sgd", group)
        model.register_comm_hook(group, overlapping.hook_of(ctx, model, zero, max_norm=MAX_NORM))
        for number in range(3):
            model.zero_grad()
            model(models.rows(ctx.rank, number).to(ctx.device)).backward()
            told.append((numbers(model.module.named_parameters()), zero.overlap.info.total_norm.item()))
    return told


def tables_alone(world, layer):
    """The same in one process, where gradients are dense."""
    alone, told = Looking(sparse=False), []
    kind, settings = overlapping.OPTIMIZERS["sgd"]
    optimizer = kind(chosen(alone, layer), **settings)
    for number in range(3):
        alone.zero_grad()
        for rank in range(world):
            (alone(models.rows(rank, number)) / world).backward()
        norm = nn.utils.clip_grad_norm_(chosen(alone, layer), MAX_NORM).item()
        optimizer.step()
        told.append((numbers(alone.named_parameters()), norm))
    return told


@check("HOOK-018", worlds=(1, 2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_sparse_gradients_are_clipped_with_the_others(ranks):
    right = [*tables_alone(ranks.world, None), *tables_alone(ranks.world, "layer")]
    for rank, told in enumerate(ranks(clip_tables)):
        for number, ((found, norm), (expected, its_norm)) in enumerate(zip(told, right, strict=True)):
            assert norm == pytest.approx(its_norm, rel=1e-5), f"rank {rank}, iteration {number}"
            for name, values in expected.items():
                assert found[name] == pytest.approx(values, rel=1e-5), f"rank {rank}, iteration {number}, {name}"


class UsedOnce(nn.Module):
    """Two layers, of which the second is used when asked; no gradient depends on a weight."""

    def __init__(self):
        super().__init__()
        self.always, self.once = nn.Linear(4, 4), nn.Linear(4, 4)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 1.0)

    def forward(self, x, both):
        return self.always(x) + self.once(x) if both else self.always(x)


#: bucket views, the optimizer's layer, and the size of buckets with the iteration in which the second layer is used
KEPT = tuple(itertools.product((False, True), (None, "always", "once"), ((ONE_BUCKET_MIB, 0), (1e-6, 2))))


def chosen(model, layer):
    return list((model if layer is None else getattr(model, layer)).parameters())


def clear_what_is_used(model, number):
    """The second layer's first gradient stays and belongs to the norm; twice as much of it is due to be clipped. In
    the fourth iteration it goes, and moves nothing."""
    (model.always if number < 3 else model).zero_grad()
    for parameter in model.once.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(2)


def clip_what_is_kept(ctx, ways=KEPT, schedule=None):
    """What all parameters and gradients are; the optimizer has the whole model, or one layer of it.

    With a schedule in a context: some ranks run out.
    """
    told = []
    for views, layer, (cap_mib, used) in ways:
        group = overlapping.group_of(ctx)
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": views, "bucket_cap_mb": cap_mib}
        model = ddp(ctx, UsedOnce().to(ctx.device), process_group=group, **options)
        zero = overlapping.optimizer_of(ctx, chosen(model.module, layer), "momentum", group)
        model.register_comm_hook(group, overlapping.hook_of(ctx, model, zero, max_norm=MAX_NORM))
        with nullcontext() if schedule is None else ctx.subject.Join([model, zero]):
            for number in range(4 if schedule is None else schedule[ctx.rank]):
                clear_what_is_used(model.module, number)
                model(overlapping.batch(ctx.rank, number), number == used).sum().backward()
                held = numbers((name, parameter.grad) for name, parameter in model.module.named_parameters())
                told.append((numbers(model.module.named_parameters()), held))
    return told


def kept_alone(world, layer, used, schedule=None):
    alone = UsedOnce()
    kind, settings = overlapping.OPTIMIZERS["momentum"]
    optimizer = kind(chosen(alone, layer), **settings)
    schedule = schedule or [4] * world
    for number in range(max(schedule)):
        clear_what_is_used(alone, number)
        for rank in active_ranks(schedule, number):
            (alone(overlapping.batch(rank, number), number == used).sum() / world).backward()
        nn.utils.clip_grad_norm_(chosen(alone, layer), MAX_NORM)
        optimizer.step()
        held = numbers((name, parameter.grad) for name, parameter in alone.named_parameters())
        yield numbers(alone.named_parameters()), held


@check("HOOK-018", worlds=(1, 2), deadline_s=DEADLINE_S, beyond=False)
def test_a_gradient_that_nobody_renewed_is_clipped_with_the_others(ranks):
    expected = [right for _, layer, (_, used) in KEPT for right in kept_alone(ranks.world, layer, used)]
    for rank, told in enumerate(ranks(clip_what_is_kept)):
        assert_kept(rank, told, expected)


def assert_kept(rank, told, expected):
    for number, (found, right) in enumerate(zip(told, expected, strict=True)):
        for place, kind in enumerate(("weight", "gradient")):
            for name, values in right[place].items():
                right_one = None if values is None else pytest.approx(values, rel=1e-5)
                assert found[place][name] == right_one, (rank, number, kind, name)


@check("HOOK-018", "HOOK-047", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_a_gradient_that_nobody_renewed_is_clipped_also_where_ranks_have_run_out(ranks):
    ways = [way for way in KEPT if way[2] == (ONE_BUCKET_MIB, 0)]
    schedule = (1, *[3] * (ranks.world - 1))
    alone = [list(kept_alone(ranks.world, layer, used, schedule)) for _, layer, (_, used) in ways]
    for rank, told in enumerate(ranks(clip_what_is_kept, ways, schedule)):
        assert_kept(rank, told, [right for each in alone for right in each[: schedule[rank]]])


# -- HOOK-018: reductions to owners, of other kinds


class Small(nn.Module):
    """Two layers of one dtype; no gradient depends on a weight."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, dtype=dtype), nn.Linear(4, 4, bias=False, dtype=dtype)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 1.0)

    def forward(self, x):
        return self.a(x.to(self.a.weight.dtype)) + self.b(x.to(self.a.weight.dtype))


def reduce_some(ctx, dtype, interleaved, cap):
    """An optimizer over a part of the model; what all parameters are and what gradients those have that it lacks."""
    group = overlapping.group_of(ctx)
    model = ddp(ctx, Small(dtype).to(ctx.device), process_group=group, bucket_cap_mb=cap)
    own = list(model.module.a.parameters())
    zero = overlapping.optimizer_of(ctx, own, "momentum", group)
    model.register_comm_hook(group, overlapping.hook_of(ctx, model, zero, interleaved, reduce_scatter=True))
    seen = []
    for number in range(4):
        model.zero_grad(set_to_none=True)
        (factor(dtype) * model(overlapping.batch(ctx.rank, number)).float().sum()).backward()
        held = [each.detach().flatten().tolist() for each in own]
        seen.append((held, model.module.b.weight.grad.flatten().tolist(), model.module.b.weight.flatten().tolist()))
    return seen


def factor(dtype):
    """In float16 such that gradients are finite on each rank, and their sum is not."""
    return 30720.0 if dtype is torch.float16 else 12.0


def some_alone(dtype, world):
    alone = Small(dtype)
    kind, settings = overlapping.OPTIMIZERS["momentum"]
    optimizer = kind(alone.a.parameters(), **settings)
    for number in range(4):
        alone.zero_grad()
        for rank in range(world):
            (factor(dtype) * alone(overlapping.batch(rank, number)).float().sum() / world).backward()
        optimizer.step()
        held = [each.detach().flatten().tolist() for each in alone.a.parameters()]
        yield held, alone.b.weight.grad.flatten().tolist(), alone.b.weight.flatten().tolist()


# of dtype, schedule and cap; with the small cap a bucket holds nothing but a parameter that the optimizer lacks
SOME = [
    *itertools.product((torch.float32, torch.bfloat16, torch.float16), (False, True), (ONE_BUCKET_MIB,)),
    *[(dtype, dtype is torch.float32, overlapping.CAP_MIB) for dtype in (torch.float32, torch.float16)],
]


def reduce_some_in_every_way(ctx, far):
    if far:
        far_apart(ctx)
    return [reduce_some(ctx, *way) for way in SOME]


@check(
    "HOOK-018", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False,
    scenarios={"one host": 1, "two hosts": 2, "hosts": 3},  # two have a connection for each direction
    at=lambda hosts: (2, 3) if hosts == 1 else (hosts,),
)  # fmt: skip
def test_gradients_are_reduced_to_their_owners_in_half_precision_and_beside_others_that_have_none(ranks, scenario):
    for rank, told in enumerate(ranks(reduce_some_in_every_way, scenario > 1)):
        for (dtype, *way), seen in zip(SOME, told, strict=True):
            for number, (found, right) in enumerate(zip(seen, some_alone(dtype, ranks.world), strict=True)):
                assert found == right, f"rank {rank}, iteration {number}, {dtype}, interleaved and cap {way}"


class Even(models.Sum):
    """Equal weights only; on two ranks the owners of one bucket's pieces take turns: 0, 1, 0, 1."""

    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.bias = None


def reduce_pieces(ctx, ways):
    group = overlapping.group_of(ctx)
    return [overlapping.iterations(pair_of(ctx, how, group), COUNT) for how in ways]


@check("HOOK-018", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_several_pieces_of_one_bucket_are_reduced_to_their_owner_and_nothing_between_them(ranks):
    ways = [
        Overlap(interleaved, True, model=Even, ddp={"bucket_cap_mb": 25}, keywords={"reduce_scatter": True})
        for interleaved in (False, True)
    ]  # fmt: skip
    told = ranks(reduce_pieces, ways)
    for place, how in enumerate(ways):
        alone = overlapping.Alone(how, ranks.world)
        for number in range(COUNT):
            alone.step(overlapping.averaged(alone.model, number, range(ranks.world), ranks.world))
            for rank, runs in enumerate(told):
                assert runs[place][number].parameters == numbers(alone.model.named_parameters()), (rank, number, how)


# -- ZERO-008, HOOK-019: between several hosts, where owners may send in another way


def train_far_apart(ctx, ways):
    """All ranks; and the two last by themselves, whose places in their group are not their places in the world."""
    far_apart(ctx)
    group, two = overlapping.group_of(ctx), overlapping.group_of(ctx, [ctx.world - 2, ctx.world - 1])
    told = [[overlapping.iterations(pair_of(ctx, how, group), COUNT) for how in ways]]
    if ctx.rank >= ctx.world - 2:
        told.append([overlapping.iterations(pair_of(ctx, how, two), COUNT) for how in ways])
    return told


@check("HOOK-018", "HOOK-019", worlds=(3, 4), deadline_s=DEADLINE_S, beyond=False)
def test_between_hosts_the_overlapped_step_is_that_of_one_process(ranks):
    ways = [Overlap(interleaved, not interleaved, model=models.SumBackwards) for interleaved in (False, True)]
    told = ranks(train_far_apart, ways)
    for runs in ([all_of[0] for all_of in told], [two_of[1] for two_of in told[-2:]]):
        for place, how in enumerate(ways):
            overlapping.assert_as_alone([each[place] for each in runs], how)


def step_what_a_graph_has_saved(ctx, far):
    """An iteration changes what graphs have saved: by hook, the parameters by which one could still go back."""
    if far:
        far_apart(ctx)
    told = []
    for interleaved in (False, True):
        pair = pair_of(ctx, Overlap(interleaved, model=models.SumBackwards, keywords={"warm_up_iterations": 0}))
        squares = {name: (each, (each * each).sum()) for name, each in pair.model.named_parameters()}
        iteration(pair, 0)
        told.append([name for name, (each, square) in squares.items() if not caught(torch.autograd.grad, square, each)])
    return told


def worlds_of(far):
    """Two hosts send as one does."""
    return (3,) if far else (2, 3)


@check("HOOK-018", worlds=(2, 3), deadline_s=DEADLINE_S, scenarios=HOSTS, at=worlds_of)
def test_a_graph_that_has_saved_parameters_of_before_an_overlapped_step_is_an_error_on_every_rank(ranks, scenario):
    assert ranks(step_what_a_graph_has_saved, scenario) == [[[], []]] * ranks.world


def step_far_apart(ctx, kinds):
    far_apart(ctx)
    told = []
    for dtype, views, count in kinds:
        chosen = sharding.some_parameters(ctx, count) if count else shifted(ctx)
        parameters = [nn.Parameter(p.detach().to(dtype)) for p in chosen]
        zero = sharding.sharded(ctx, parameters, parameters_as_bucket_view=views)
        right = sharding.Reference(parameters)
        for number in range(3):
            for ours, theirs in zip(parameters, right.parameters, strict=True):
                ours.grad = models.integers(*ours.shape, seed=50 * number).to(dtype)
                theirs.grad = ours.grad.clone()
            zero.step(), right.optimizer.step()
            told.append(right.gap(parameters))
    return told


def shifted(ctx):
    """Rank 0 owns five elements and all others six: nobody has more than an equal share, yet parts are no shares."""
    sizes = [5, *[4] * (ctx.world - 1), *[2] * (ctx.world - 1)]
    return [models.integers(size, seed=place).to(ctx.device) for place, size in enumerate(sizes)]


KINDS = [
    *itertools.product((torch.float32, torch.complex64), (False, True), (1, 6, None)),
    (torch.complex128, False, 6), (torch.float64, True, 6),
]  # fmt: skip


@check("ZERO-008", "ZERO-012", worlds=(3, 4), deadline_s=DEADLINE_S, beyond=False)
def test_between_hosts_every_rank_holds_what_the_ordinary_optimizer_leaves(ranks):
    assert ranks(step_far_apart, KINDS) == [[None] * 3 * len(KINDS)] * ranks.world
