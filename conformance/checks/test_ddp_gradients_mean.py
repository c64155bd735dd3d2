"""After backward every rank holds the mean of the ranks' gradients: groups, dtypes, sharing, sparsity, accumulation."""

import itertools
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import takes
from conformance.fixtures.training import (
    EVERY_WAY,
    Job,
    assert_as_alone,
    ddp,
    gradient,
    gradients,
    numbers,
    private,
    scalar_means,
    train_each,
    whole,
)
from conformance.ranks import caught
from conformance.subjects import DETECTION, Unsupported

TINY_MIB = 1e-4


@check("DDP-049", worlds=WORLDS, beyond=False)
def test_gradients_are_the_mean_over_the_group_under_every_option(ranks):
    caps = ({}, {"bucket_cap_mb": TINY_MIB}, {"bucket_cap_mb": 2 * TINY_MIB})
    ways = ({}, {"find_unused_parameters": True}, {"static_graph": True})
    views = ({}, {"gradient_as_bucket_view": True})
    options = [{**cap, **way, **view} for cap, way, view in itertools.product(caps, ways, views)]
    jobs = [Job(five_layers, models.divisible, (3,) * ranks.world, ddp=option, join=None) for option in options]
    for job, trained in zip(jobs, zip(*ranks(train_each, jobs), strict=True), strict=True):
        assert_as_alone(job, trained)


def five_layers():
    return models.Sum(5)


def train_randomly(ctx):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)]
    model = ddp(ctx, nn.Sequential(*layers), bucket_cap_mb=5 * TINY_MIB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + ctx.rank)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
    return gradients(model), numbers(model.module.named_parameters())


@check("DDP-049", worlds=MANY)
def test_gradients_and_weights_of_a_random_model_are_bitwise_equal_across_ranks(ranks):
    first, *others = ranks(train_randomly)
    assert any(abs(value) > 0 for values in first[0].values() for value in values)
    for rank, mine in enumerate(others, start=1):
        assert mine == first, f"rank {rank} differs from rank 0"


class Aligned(nn.Module):
    """Vectors whose gradients are alike, and in one memory, on ranks that add them up as they are."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Parameter(torch.ones(8))
        self.first, self.second, self.third = (nn.Parameter(torch.ones(4)) for _ in range(3))

    def forward(self, factor, apart):
        second = 2 * self.second[None] if apart else self.second[None]
        joined = torch.cat([self.first[None] + second, self.third[None]], dim=1)
        return factor * ((2 * self.wide[None] if apart else self.wide[None]) + joined)


class Behind(nn.Module):
    """Two vectors; the gradient of one is the end of the other's on ranks that add them up as they are."""

    def __init__(self):
        super().__init__()
        self.wide, self.last = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(4))

    def forward(self, factor, apart):
        last = 2 * self.last[None] if apart else self.last[None]
        return factor * (self.wide[None] + torch.cat([torch.zeros_like(last), last], dim=1))


def share_memory_on_one_rank(ctx, module, option):
    model, told = ddp(ctx, module(), **option), []
    for iteration in range(3):
        model.zero_grad(set_to_none=iteration != 1)
        model(torch.tensor(12.0 * (1 + ctx.rank)).to(ctx.device), ctx.rank != iteration % ctx.world).sum().backward()
        told.append(gradients(model))
    return told


OPTIONS = {str(option): option for option in (
    {}, {"find_unused_parameters": True}, {"bucket_cap_mb": TINY_MIB}, {"gradient_as_bucket_view": True})}  # fmt: skip


def means_where_memory_is_shared(world, iteration):
    """What each element is to get in an iteration: once, and if it counts double on all ranks but one."""
    once = [12.0 * (1 + rank) / world for rank in range(world)]
    return sum(once), 2 * sum(once) - once[iteration % world]


@check("DDP-049", worlds=MANY, scenarios=OPTIONS)
def test_gradients_that_lie_in_one_memory_on_one_rank_are_averaged_apart(ranks, scenario):
    for rank, told in enumerate(ranks(share_memory_on_one_rank, Aligned, scenario)):
        for iteration, seen in enumerate(told):
            total, double = means_where_memory_is_shared(ranks.world, iteration)
            expected = {"first": [total] * 4, "second": [double] * 4, "third": [total] * 4, "wide": [double] * 8}
            assert seen == expected, f"rank {rank}, iteration {iteration}: {seen}, and not {expected}"


@check("DDP-049", worlds=MANY, scenarios=OPTIONS)
def test_gradients_that_lie_in_one_memory_and_begin_apart_are_averaged_apart(ranks, scenario):
    for rank, told in enumerate(ranks(share_memory_on_one_rank, Behind, scenario)):
        for iteration, seen in enumerate(told):
            total, double = means_where_memory_is_shared(ranks.world, iteration)
            expected = {"wide": [total] * 8, "last": [double] * 4}
            assert seen == expected, f"rank {rank}, iteration {iteration}: {seen}, and not {expected}"


def reduce_samples(ctx, samples):
    """Gradients of a mean and of a summed loss over this rank's own two samples."""
    told = []
    for loss in (torch.mean, torch.sum):
        model = ddp(ctx, nn.Linear(3, 1))
        loss(model(samples[2 * ctx.rank : 2 * ctx.rank + 2])).backward()
        told.append(gradients(model))
    return told


@check("DDP-050", worlds=WORLDS, beyond=False)
def test_ranks_with_small_batches_equal_one_process_with_the_big_one(ranks):
    world = ranks.world
    samples = 24 * models.integers(2 * world, 3)
    alone = []
    for loss in (torch.mean, torch.sum):
        model = nn.Linear(3, 1)
        loss(model(samples)).backward()
        alone.append(gradients(model))
    summed = {name: [value / world for value in values] for name, values in alone[1].items()}
    for by_mean, by_sum in ranks(reduce_samples, samples):
        assert by_mean["weight"] == alone[0]["weight"]
        assert abs(by_mean["bias"][0] - 1) < 1e-6  # thirds and sixths of one round
        assert by_sum == {"weight": summed["weight"], "bias": [2.0]}


def average_in_groups(ctx, groups):
    made = [dist.new_group(members) for members in groups]  # every rank takes part in making every group
    mine = next(index for index, members in enumerate(groups) if ctx.rank in members)
    told = []
    for options in EVERY_WAY:
        model = ddp(ctx, models.Sum(4), process_group=made[mine], bucket_cap_mb=TINY_MIB, **options)
        for _ in range(3):
            model.zero_grad()
            model(models.divisible(ctx.rank, 0)).sum().backward()
            told.append(gradients(model))
    return told


@check("DDP-051", worlds=(3, 4), beyond=False)
def test_the_divisor_is_the_size_of_the_subgroup(ranks):
    groups = [[1, 2], [0]] if ranks.world == 3 else [[0, 2], [3, 1]]
    seen = ranks(average_in_groups, groups)
    for members in groups:
        alone = models.Sum(4)
        for rank in members:
            (alone(models.divisible(rank, 0)).sum() / len(members)).backward()
        for rank in members:
            assert seen[rank] == [gradients(alone)] * 3 * len(EVERY_WAY), f"rank {rank} of group {members}"


def wait_in_one_of_two_groups(ctx):
    """Two models on groups that share rank 1, which trains the one of rank 2 first; that rank is slow, and not lost."""
    os.environ[DETECTION] = "0.5"
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    told = []
    for group, members, slow in ((second, (1, 2), 2), (first, (0, 1), None)):
        if ctx.rank not in members:
            continue
        model = ddp(ctx, models.Sum(1), process_group=group)
        for iteration in range(2):
            model.zero_grad()
            loss = model(models.divisible(ctx.rank, iteration)).sum()
            if ctx.rank == slow and iteration:
                time.sleep(1.2)
            loss.backward()
        told.append(gradients(model))
    return told


@check("DDP-051", worlds=(3,), beyond=False, deadline_s=15)
def test_a_rank_that_waits_for_a_slow_one_of_another_group_is_waited_for(ranks):
    seen = ranks(wait_in_one_of_two_groups)
    for rank, members in ((0, [(0, 1)]), (1, [(1, 2), (0, 1)]), (2, [(1, 2)])):
        for told, pair in zip(seen[rank], members, strict=True):
            alone = models.Sum(1)
            for each in pair:
                (alone(models.divisible(each, 1)).sum() / 2).backward()
            assert told == gradients(alone), f"rank {rank} of {pair}"


def average_types(ctx):
    told = []
    for options in [{**way, **cap} for way in EVERY_WAY for cap in ({}, {"bucket_cap_mb": TINY_MIB})]:
        model = ddp(ctx, models.ManyTypes(), **options)
        for _ in range(3):
            model.zero_grad()
            model(models.three(ctx.rank, 0)).sum().backward()
        told.append([(str(p.grad.dtype), whole(p.grad).tolist()) for p in model.module.each])
    return told


@check("DDP-052", worlds=MANY, beyond=False)
def test_each_dtype_is_averaged_in_itself(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    expected = [(str(kind), [mean, 2 * mean, 3 * mean]) for kind in models.ManyTypes.TYPES * 2]
    for told in ranks(average_types):
        assert told == [expected] * 2 * len(EVERY_WAY)


def average_shared(ctx):
    told = []
    for options in EVERY_WAY:
        layer, other = models.scalar(), models.scalar()
        model = ddp(ctx, nn.Sequential(layer, other, layer), bucket_cap_mb=1e-6, **options)
        for _ in range(3):
            model.zero_grad()
            model(12 * models.place(ctx.rank, 0)).sum().backward()
            held = [whole(each.weight.grad).item() for each in (layer, other)]
            told.append((*held, len(list(model.parameters()))))
    return told


@check("DDP-056", worlds=MANY, beyond=False)
def test_a_shared_parameter_is_averaged_once_with_all_its_contributions(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    assert ranks(average_shared) == [[(2 * mean, mean, 2)] * 3 * len(EVERY_WAY)] * ranks.world


def look_up(ctx):
    told, plain = [], set()
    for options in EVERY_WAY:
        model = ddp(ctx, models.TwoTables(), **options)
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            model(torch.tensor([ctx.rank, 5])).backward()
            held = [model.module.table.weight.grad, model.module.bag.weight.grad]
            told.append([(grad.is_sparse, grad.to_dense().tolist()) for grad in held])
            plain.add(whole(model.module.a.weight.grad).item())
    return told, plain


@check("DDP-057", worlds=MANY, beyond=False)
def test_sparse_gradients_are_averaged_and_stay_sparse(ranks):
    world = ranks.world
    dense = [[12.0 / world] * 2 for _ in range(world)] + [[0.0] * 2 for _ in range(5 - world)] + [[12.0] * 2]
    for told, plain in ranks(look_up):
        assert told == [[(True, dense)] * 2] * 3 * len(EVERY_WAY)
        assert plain == {12 * (sum(range(world)) + 5 * world) / world}


def train_frozen(ctx, options):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    nn.init.ones_(module[1].weight)
    module[0].bias.requires_grad_(False)
    model = ddp(ctx, module, bucket_cap_mb=TINY_MIB, **options)
    before = module[0].bias.tolist()
    for _ in range(3):
        model.zero_grad()
        model(torch.full((1, 2), 12.0 * (ctx.rank + 1))).sum().backward()
    return module[0].bias.grad is None, before == module[0].bias.tolist(), whole(module[0].weight.grad).tolist()


def train_frozen_in_every_way(ctx):
    return [train_frozen(ctx, options) for options in EVERY_WAY]


@check("DDP-058", worlds=WORLDS, beyond=False)
def test_frozen_parameters_stay_untouched_beside_averaged_ones(ranks):
    mean = 12 * sum(range(1, ranks.world + 1)) / ranks.world
    expected = (True, True, [[2 * mean] * 2] * 2)
    assert ranks(train_frozen_in_every_way) == [[expected] * len(EVERY_WAY)] * ranks.world


FINE = 144.0  # so that an average of averages of averages is still without rounding


def accumulate_averages(ctx):
    told = []
    for view in (False, True):
        model = ddp(ctx, models.scalar(), gradient_as_bucket_view=view)
        seen = []
        for iteration in range(3):
            model(FINE * models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(whole(model.module.weight.grad).item())
        told.append(seen)
    return told


@check("DDP-059", worlds=WORLDS, beyond=False)
def test_without_zeroing_the_averages_of_iterations_add_up(ranks):
    data = [[FINE * models.divisible_scalar(rank, i).item() for rank in range(ranks.world)] for i in range(3)]
    means = [sum(row) / ranks.world for row in data]
    sums = [means[0], means[0] + means[1], sum(means)]
    assert ranks(accumulate_averages) == [[sums] * 2] * ranks.world


class Normed(nn.Module):
    """A scalar layer after a normalisation in training mode, whose output the weight's gradient does not depend on."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1, affine=False)
        self.a = models.scalar()

    def forward(self, x):
        return self.a(x) + 0 * self.norm(x)


def forward_twice(ctx):
    told = []
    for kind, as_view in ((models.scalar, False), (models.scalar, True), (Normed, False), (Normed, True)):
        model = ddp(ctx, kind(), gradient_as_bucket_view=as_view)
        for _ in range(3):
            model.zero_grad()
            x = torch.tensor([[12.0 * (ctx.rank + 1)], [24.0]])
            (model(x) + model(2 * x)).sum().backward()
        told.append(gradients(model))
    return [next(iter(each.values())) for each in told]


@check("DDP-060", worlds=MANY, beyond=False)
def test_several_forwards_before_one_backward_give_the_averaged_sum(ranks):
    mean = 3 * sum(12.0 * (rank + 1) + 24.0 for rank in range(ranks.world)) / ranks.world
    assert ranks(forward_twice) == [[[mean]] * 4] * ranks.world


# -- half precision: two gradients of this size overflow float16, their mean does not

LARGE = 40000.0
ROUNDING = 16 * 2.0**-11


class Tables(nn.Module):
    """A scalar layer times a row of a sparse table, in half precision; each has a gradient of ``LARGE``."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = models.scalar(1.0), nn.Embedding(2, 1, sparse=True)
        nn.init.ones_(self.table.weight)
        self.half()

    def forward(self, x):
        return self.layer(x) * self.table(torch.ones(1, dtype=torch.int64))


def train_in_half_precision(ctx, model):
    wrapped = ddp(ctx, model().half())
    for _ in range(2):
        wrapped.zero_grad()
        try:
            wrapped(torch.full((1, 1), LARGE, dtype=torch.float16)).sum().backward()
        except NotImplementedError as error:
            raise Unsupported(f"{ctx.subject.name} cannot add up such gradients: {error}") from error
    named = wrapped.module.named_parameters()
    return {name: parameter.grad.to_dense().flatten()[-1].item() for name, parameter in named}


@check("DDP-049", worlds=MANY, scenarios={"dense": models.scalar, "sparse": Tables})
def test_sums_of_half_precision_do_not_overflow(ranks, scenario):
    for rank, seen in enumerate(ranks(train_in_half_precision, scenario)):
        for name, value in seen.items():
            told = f"rank {rank}: {name}: got {value:g}, expected {LARGE:g}, ratio {value / LARGE:.3g}"
            assert abs(value / LARGE - 1) <= ROUNDING, told


# -- gradients in another dtype than their parameters

FINE = 2.0**-12  # lost where 1 + FINE is rounded to bfloat16


class Kept(nn.Module):
    """A scalar layer in bfloat16 that keeps its gradient in float32."""

    def __init__(self, kept=torch.float32):
        super().__init__()
        self.layer = models.scalar().to(torch.bfloat16)
        if not hasattr(self.layer.weight, "grad_dtype"):
            raise Unsupported("the parameters of this torch have no grad_dtype")
        self.layer.weight.grad_dtype = kept

    def forward(self, x):
        return self.layer(x)


class FineSlope(torch.autograd.Function):
    """``x * weight``, of which the weight gets a gradient in float32, whatever its own dtype is."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        return x.float() * weight.float()

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return None, slope * x.float()


class KeptLater(Kept):
    """From a moment on it keeps its gradient in whatever dtype that has; which is float32."""

    def __init__(self):
        super().__init__(torch.bfloat16)

    def keep_any(self):
        self.layer.weight.grad_dtype = None

    def forward(self, x):
        return FineSlope.apply(x, self.layer.weight)


def accumulate_finely(ctx, as_view, later, by_parameter):
    """Two local gradients of 1 and FINE, whose sum is averaged; or the error that says why not."""
    model = None

    def run():
        nonlocal model
        model = ddp(ctx, KeptLater() if later else Kept(), gradient_as_bucket_view=as_view)
        if later:
            model.module.keep_any()
        if by_parameter:
            private(model, "_register_accum_grad_hook")()
        for value in (1.0, FINE, 0.0):
            with model.no_sync() if value else nullcontext():
                model(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()

    error = caught(run)
    return error, None if error else gradients(model), None if error else model.module.layer.weight.grad.dtype


@check("DDP-049", worlds=(1, 2), scenarios={
    "copies": (False, False, False), "views": (True, False, False), "parameter by parameter": (False, False, True),
    "any dtype, copies": (False, True, False), "any dtype, views": (True, True, False),
})  # fmt: skip
def test_gradients_that_are_kept_in_a_wider_dtype_are_averaged_in_it_or_refused(ranks, scenario):
    later = scenario[1]
    for rank, (error, seen, dtype) in enumerate(ranks(accumulate_finely, *scenario)):
        if error is not None:
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            if not later:  # nobody can know beforehand in which dtype those will be
                ranks.at_limit("gradients that are kept in a wider dtype are refused")
            continue
        assert (seen, dtype) == ({"layer.weight": [1.0 + FINE]}, torch.float32), f"rank {rank}"


class KeptWide(nn.Module):
    """A layer, a delayed one and a sparse table, all of which keep doubles as gradients of their float weights."""

    def __init__(self):
        super().__init__()
        self.a, self.late = models.scalar(), models.scalar()
        self.table = nn.Embedding(2, 1, sparse=True)
        for parameter in self.parameters():
            if not hasattr(parameter, "grad_dtype"):
                raise Unsupported("the parameters of this torch have no grad_dtype")
            parameter.grad_dtype = torch.float64

    def forward(self, x, looks):
        out = self.a(x) + self.late(x)
        return out + x * self.table(torch.zeros(1, dtype=torch.long, device=x.device)) if looks else out


WIDE = 2.0**24 + 1  # a whole number that a float32 cannot hold: half of what the first two ranks have together


def average_widely(ctx, delays):
    """Each parameter's gradient in four iterations, before the last two of which the model is moved to where it is."""
    if delays:
        takes(ctx, "delay_all_reduce_named_params", "param_to_hook_all_reduce")
    told = []

    def run():
        module = KeptWide().to(ctx.device)
        late = {"delay_all_reduce_named_params": [("late.weight", module.late.weight)],
                "param_to_hook_all_reduce": module.a.weight}  # fmt: skip
        model = ddp(ctx, module, find_unused_parameters=True, **(late if delays else {}))
        x = torch.full((1, 1), 2.0 * (WIDE - 1) if ctx.rank == 0 else 2.0, device=ctx.device)
        for iteration in range(4):
            if iteration == 2:
                model.to(ctx.device)
            model.zero_grad()
            model(x, looks=ctx.rank == 0 or iteration % 2 == 0).sum().backward()
            told.append([p.grad.to_dense().flatten()[0].item() for p in module.parameters()])

    return caught(run), told


@check("DDP-049", worlds=(2,), beyond=False)
def test_gradients_that_are_kept_in_doubles_lose_no_digit_on_any_way_or_are_refused(ranks):
    """Who averages them in buckets refuses no other way."""
    refused = False
    for delays in (False, True):
        for rank, (error, told) in enumerate(ranks(average_widely, delays)):
            if error is not None:
                refused = refused or not delays
                assert error.is_a(RuntimeError), f"rank {rank}: {error}"
                assert refused, f"rank {rank}: {error}"
                ranks.at_limit("gradients that are kept in doubles are refused")
                continue
            assert told == [[WIDE, WIDE, WIDE], [WIDE, WIDE, WIDE - 1]] * 2, f"rank {rank}"


class KeptAs(nn.Module):
    """A scalar layer in float32 that keeps its gradient in another dtype."""

    def __init__(self, kept):
        super().__init__()
        self.layer = models.scalar()
        if not hasattr(self.layer.weight, "grad_dtype"):
            raise Unsupported("the parameters of this torch have no grad_dtype")
        self.layer.weight.grad_dtype = kept

    def forward(self, x):
        return self.layer(x)


def average_as_kept(ctx, kept, as_view):
    """Averages, and their dtypes, in three iterations; or the error that says why not."""
    told = []

    def run():
        model = ddp(ctx, KeptAs(kept).to(ctx.device), gradient_as_bucket_view=as_view)
        for iteration in range(3):
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device)).sum().backward()
            told.append((gradient(model.module.layer.weight), model.module.layer.weight.grad.dtype))

    return caught(run), told


@check("DDP-049", worlds=(1, 2), beyond=False)
def test_gradients_that_are_kept_in_a_narrower_dtype_are_averaged_in_it_or_refused(ranks):
    """Who averages them in a wider one averages them in a narrower one, too."""
    means = scalar_means((3,) * ranks.world)
    for as_view in (False, True):
        refused = False
        for kept in (torch.float64, torch.bfloat16):
            for rank, (error, told) in enumerate(ranks(average_as_kept, kept, as_view)):
                about = f"rank {rank}, {kept}, {as_view=}"
                if error is not None:
                    refused = refused or kept is torch.float64
                    assert error.is_a(RuntimeError), f"{about}: {error}"
                    assert refused, f"{about}: {error}"
                    ranks.at_limit("gradients that are kept in another dtype are refused")
                    continue
                assert told == [(mean, kept) for mean in means], about


# -- DDP-049: a wrapper that nobody keeps


def drop_before_backward(ctx, options):
    """The wrapper is dropped, in an iteration that is synchronised, in one that is not, and behind its backward.

    By iteration, what the backward raises and the gradient after it; before it, the same gradient is asked for by
    itself, which is left alone. Behind a backward a second one goes through the same graph.
    """
    seen = []
    for synchronised, behind in ((True, False), (False, False), (True, True)):
        module = models.scalar().to(ctx.device)
        model = ddp(ctx, module, **options)
        with nullcontext() if synchronised else model.no_sync():
            loss = model(models.place(ctx.rank, 0).to(ctx.device)).sum()
        if behind:
            loss.backward(retain_graph=True)
            module.zero_grad()
        del model
        asked = caught(torch.autograd.grad, loss, [module.weight], retain_graph=True)
        seen.append((asked, caught(loss.backward), None if module.weight.grad is None else gradient(module.weight)))
    return seen


@check("DDP-049", worlds=MANY, beyond=False)
def test_gradients_of_a_model_that_is_dropped_before_its_backward_are_averaged_or_refused(ranks):
    mean = sum(models.place(rank, 0).item() for rank in range(ranks.world)) / ranks.world
    told = [ranks(drop_before_backward, options) for options in ({}, {"find_unused_parameters": True})]
    for rank, ((asked, refused, averaged), *others) in enumerate(told[0] + told[1]):
        rank %= ranks.world
        assert asked is None, f"rank {rank}: {asked}"
        if refused is None:
            assert averaged == mean, f"rank {rank}"
        else:
            assert refused.is_a(RuntimeError), f"rank {rank}: {refused}"
        assert [each[1:] for each in others] == [(None, models.place(rank, 0).item())] * 2, f"rank {rank}"


# -- DDP-049: a module that calls backward by itself


class LosingInside(torch.nn.Module):
    """Goes backward through its loss within its forward, and returns the number."""

    def __init__(self):
        super().__init__()
        self.layer = models.scalar()

    def forward(self, x):
        loss = self.layer(x).sum()
        loss.backward()
        return loss.detach()


def go_backward_inside(ctx):
    """In an iteration that is not synchronised and in two that are: what it raises, and the gradient after it."""
    model, seen = ddp(ctx, LosingInside().to(ctx.device)), []
    for synchronised in (False, True, True):
        model.zero_grad()
        with nullcontext() if synchronised else model.no_sync():
            error = caught(model, models.place(ctx.rank, 0).to(ctx.device))
        seen.append((error, None if error else gradient(model.module.layer.weight)))
    return seen


@check("DDP-049", worlds=MANY, beyond=False)
def test_gradients_of_a_backward_inside_the_forward_are_averaged_or_refused(ranks):
    mean = sum(models.place(rank, 0).item() for rank in range(ranks.world)) / ranks.world
    for rank, (unsynchronised, *synchronised) in enumerate(ranks(go_backward_inside)):
        assert unsynchronised == (None, models.place(rank, 0).item()), f"rank {rank}"
        for error, averaged in synchronised:
            refused = error is not None and error.is_a(RuntimeError)
            assert refused or (error is None and averaged == mean), f"rank {rank}: {error}, gradient {averaged}"
