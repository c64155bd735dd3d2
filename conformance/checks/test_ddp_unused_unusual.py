"""Unused parameters in loops that are less simple: several forwards before a backward, tables that nobody looks up."""

from concurrent.futures import ThreadPoolExecutor
from operator import call

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, mean_of_all, mine, wrapped
from conformance.fixtures.training import gradients, numbers
from conformance.ranks import caught

# -- several forwards before one backward

# by iteration: what the forwards of the ranks run, one after the other; on even ranks, and on odd ones
FORWARDS = [
    (("ab", "bc"), ("bc", "a")),
    (("a", "c"), ("c", "b")),
    (("abc", "b"), ("a", "a")),
    (("a", "a"), ("a", "c", "c")),
    (("c", "ab", "b"), ("c",)),
    (("ab", "c"), ("bc", "a")),
]


def forwards_of(rank, iteration, alike):
    """The parts that this rank's forwards of one iteration run."""
    return FORWARDS[iteration][0 if alike else rank % 2]


def total_loss(model, rank, iteration, alike, device=None, run=call):
    """The sum of the outputs of all forwards of one iteration, each on data of its own."""
    losses = []
    for turn, used in enumerate(forwards_of(rank, iteration, alike)):
        getattr(model, "module", model).use = used
        data = models.divisible(rank, 10 * iteration + turn).to(device)
        losses.append(run(lambda data=data: model(data).sum()))
    return torch.stack(losses).sum()


def on_a_new_thread(forward):
    """What it returns. autograd numbers the nodes of each thread from zero, and goes to the highest numbers first."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(forward).result()


def forward_several_times(ctx, alike, options, run):
    model = wrapped(ctx, models.Parts(), find_unused_parameters=True, bucket_cap_mb=TINY_MIB, **options)
    seen = []
    for iteration in range(len(FORWARDS)):
        model.zero_grad(set_to_none=True)
        total_loss(model, ctx.rank, iteration, alike, ctx.device, run).backward()
        seen.append(gradients(model))
    return seen


def averages_of_several_forwards(world, alike):
    model, found = models.Parts(), []
    for iteration in range(len(FORWARDS)):
        model.zero_grad(set_to_none=True)
        for rank in range(world):
            total_loss(model, rank, iteration, alike).backward()
        sums = {name: parameter.grad for name, parameter in model.named_parameters()}
        found.append(numbers((name, None if each is None else each / world) for name, each in sums.items()))
    return found


@check("DDP-099", scenarios={
    "the same forwards on all ranks": (True, {}, call),
    "other forwards on other ranks": (False, {}, call),
    "other forwards, views": (False, {"gradient_as_bucket_view": True}, call),
    "other forwards, on other threads": (False, {}, on_a_new_thread),
})  # fmt: skip
def test_what_any_of_several_forwards_before_a_backward_uses_is_averaged(ranks, scenario):
    alike, options, run = scenario
    expected = averages_of_several_forwards(ranks.world, alike)
    for rank, seen in enumerate(ranks(forward_several_times, alike, options, run)):
        for iteration, found in enumerate(seen):
            assert found == expected[iteration], f"rank {rank}, iteration {iteration}, {FORWARDS[iteration]}"


# -- sparse gradients


class Tables(nn.Module):
    """Two sparse tables beside a dense layer; each forward looks up rows of those in ``use``."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(6, 2, sparse=True) for name in "st"})
        self.dense = models.scalar()
        self.use = "st"

    def forward(self, rows):
        looked_up = [self.tables[name](rows).sum() * (1 + place) for place, name in enumerate("st") if name in self.use]
        return 12 * (sum(looked_up) + self.dense(rows.float().view(-1, 1)).sum())


# by iteration: the tables of even ranks, and those of odd ones
LOOKED_UP = [("st", "st"), ("s", "s"), ("", ""), ("s", "t"), ("t", "t"), ("", "s"), ("st", "st")]


def look_up_now_and_then(ctx, options):
    model = wrapped(ctx, Tables(), find_unused_parameters=True, **options)
    told = []
    for iteration, used in enumerate(LOOKED_UP):
        model.zero_grad(set_to_none=True)
        model.module.use = used[ctx.rank % 2]
        model(models.rows(ctx.rank, iteration).to(ctx.device)).backward()
        held = [table.weight.grad for table in model.module.tables.values()]
        told.append((densely(model.module), [None if grad is None else grad.is_sparse for grad in held]))
    return told, keep_rows(ctx, model)


def keep_rows(ctx, model):
    """The gradients of the tables that each rank has made its own, before and after an iteration without tables."""
    model.zero_grad(set_to_none=True)
    tables = model.module.tables
    tables["s"].weight.grad = torch.sparse_coo_tensor([[ctx.rank]], [[1.0, 2.0]], (6, 2), device=ctx.device)
    if ctx.rank % 2:
        tables["t"].weight.grad = tables["s"].weight.grad * 3
    before = densely(tables)
    model.module.use = ""
    model(models.rows(ctx.rank, 0).to(ctx.device)).backward()
    return before, densely(tables)


def densely(model):
    held = ((name, parameter.grad) for name, parameter in model.named_parameters())
    return numbers((name, None if grad is None else grad.to_dense()) for name, grad in held)


def averages_of_tables(world):
    model, expected = Tables(), []
    for iteration, used in enumerate(LOOKED_UP):
        total = {}
        for rank in range(world):
            model.use = used[rank % 2]
            for name, gradient in oracle.local_gradients(model, models.rows(rank, iteration)).items():
                total[name] = total.get(name, 0) + gradient.to_dense() / world
        expected.append(numbers((name, total.get(name)) for name, _ in model.named_parameters()))
    return expected


@check("DDP-100", worlds=WORLDS, beyond=False, scenarios={
    "several buckets": {"bucket_cap_mb": TINY_MIB},
    "one bucket": {},
})  # fmt: skip
def test_a_table_that_nobody_looks_up_has_no_gradient_and_others_stay_sparse(ranks, scenario):
    expected = averages_of_tables(ranks.world)
    for rank, (told, (before, after)) in enumerate(ranks(look_up_now_and_then, scenario)):
        for iteration, (found, sparse) in enumerate(told):
            assert found == expected[iteration], f"rank {rank}, iteration {iteration}, tables {LOOKED_UP[iteration]}"
            assert False not in sparse, f"rank {rank}, iteration {iteration}: a gradient is dense"
        assert after == before, f"rank {rank}: rows of tables that nobody looks up"


# -- DDP-101: operations of the user's own in the graph that is searched


class Doubling(torch.autograd.Function):
    """Keeps something of its own under a name that a node of autograd may have, too."""

    @staticmethod
    def forward(ctx, x):
        ctx.variable = [x.shape]
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope


class Doubled(models.Branches):
    """``Branches`` with an operation of the user's own behind them."""

    def forward(self, x, with_b=False):
        return Doubling.apply(super().forward(x, with_b))


def search_behind_an_own_operation(ctx):
    model = wrapped(ctx, Doubled(), find_unused_parameters=True)
    model(mine(ctx)).sum().backward()
    return gradients(model)


@check("DDP-101", "DDP-100", worlds=WORLDS, beyond=False)
def test_what_lies_behind_an_operation_of_the_users_own_is_found(ranks):
    expected = {"a.weight": [2 * mean_of_all(ranks.world)], "b.weight": None}
    assert ranks(search_behind_an_own_operation) == [expected] * ranks.world


# -- DDP-101: a loss that the module keeps to itself


class Keeping(models.Branches):
    """Returns one output and keeps another, of all layers, for the loss."""

    def forward(self, x):
        self.kept = self.a(x) + self.b(x)
        return self.a(x) + self.b(x)


def train_on_what_is_kept(ctx):
    model = wrapped(ctx, Keeping(), find_unused_parameters=True)
    seen = []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        model(mine(ctx, 1 + iteration))
        model.module.kept.sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-101", worlds=WORLDS, beyond=False)
def test_a_loss_that_the_module_keeps_to_itself_is_averaged_though_no_output_is_in_it(ranks):
    means = [[mean_of_all(ranks.world, times)] for times in (1, 2, 3)]
    expected = [{"a.weight": mean, "b.weight": mean} for mean in means]
    assert ranks(train_on_what_is_kept) == [expected] * ranks.world


# -- DDP-099, DDP-077, DDP-105: a function of the user's own that adds to the gradient itself


class Fused(torch.autograd.Function):
    """A product whose backward adds to the weight's gradient and passes None on, as fused kernels do."""

    @staticmethod
    def forward(ctx, x, weight, in_place):
        ctx.save_for_backward(x)
        ctx.weight, ctx.in_place = weight, in_place
        return x * weight

    @staticmethod
    def backward(ctx, slope):
        weight, add = ctx.weight, (slope * ctx.saved_tensors[0]).sum().view_as(ctx.weight)
        held = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = held.add_(add) if ctx.in_place else held + add
        return slope * weight.detach(), None, None


class FusedBranches(models.Branches):
    """``Branches`` that are multiplied so."""

    in_place = False

    def forward(self, x, with_b=False):
        out = Fused.apply(x, self.a.weight, self.in_place)
        return out + Fused.apply(x, self.b.weight, self.in_place) if with_b else out


def train_fused(ctx, accumulated, options):
    """Rank 0 alone uses the second branch: in the last iteration, or before it while gradients accumulate."""
    model, seen = wrapped(ctx, FusedBranches(), **options), []
    x = mine(ctx).requires_grad_()
    for in_place in (False, False, True):
        model.zero_grad(set_to_none=not in_place)
        model.module.in_place = in_place
        if accumulated:
            with model.no_sync():
                model(x, with_b=ctx.rank == 0).sum().backward()
        model(x, with_b=ctx.rank == 0 and not accumulated).sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-099", worlds=(2, 3), beyond=False)
def test_what_a_function_adds_to_gradients_by_itself_is_averaged(ranks):
    mean, first = mean_of_all(ranks.world), 12.0 / ranks.world
    expected = [{"a.weight": [mean], "b.weight": [first]}] * 3
    assert ranks(train_fused, False, {"find_unused_parameters": True}) == [expected] * ranks.world


@check("DDP-077", worlds=(2, 3), beyond=False)
def test_what_a_function_has_added_while_gradients_accumulated_is_averaged(ranks):
    mean, first = mean_of_all(ranks.world), 12.0 / ranks.world
    expected = [{"a.weight": [2 * mean], "b.weight": [first]}] * 3
    assert ranks(train_fused, True, {"find_unused_parameters": True}) == [expected] * ranks.world


# -- DDP-059: a function of the user's own that passes no gradient on


class Stopping(torch.autograd.Function):
    """A product through which nothing goes backward."""

    @staticmethod
    def forward(_ctx, x, weight):
        return x * weight

    @staticmethod
    def backward(_ctx, _slope):
        return None, None


class StoppingBranches(models.Branches):
    """Its second branch is trained or only passed, as it is told."""

    def forward(self, x, stop):
        return self.a(x) + (Stopping.apply(x, self.b.weight) if stop else self.b(x))


def accumulate_beside_nothing(ctx):
    """Gradients are there from before when a backward brings none to the second weight."""
    seen = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = wrapped(ctx, StoppingBranches(), **options)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 24.0)
        for iteration in range(5):
            if iteration == 3:
                model.zero_grad()
            model(mine(ctx), stop=iteration in (0, 1, 4)).sum().backward()
            seen.append(gradients(model))
    return seen


@check("DDP-059", worlds=(1, *MANY), beyond=False)
def test_what_a_function_passes_no_gradient_to_keeps_the_average_that_was_there(ranks):
    mean, sums = mean_of_all(ranks.world), ((24, 1, 0), (24, 2, 0), (24, 3, 1), (0, 1, 1), (0, 2, 1))
    expected = [{"a.weight": [more + mean * a], "b.weight": [more + mean * b]} for more, a, b in sums]
    assert ranks(accumulate_beside_nothing) == [expected * 3] * ranks.world


# -- DDP-049: a backward that the forward calls by itself


class Inside(models.Branches):
    """Trains its second weight inside of the forward, or both."""

    def forward(self, x, both):
        (self.a(x) + self.b(x) if both else self.b(x)).sum().backward()
        return self.a(x).detach() if both else self.a(x)


def train_inside(ctx, both):
    """The error, and the gradients of the iterations before it."""
    model, seen = wrapped(ctx, Inside(), find_unused_parameters=not both), []

    def train():
        for _ in range(3):
            model.zero_grad()
            out = model(mine(ctx), both=both)
            if not both:
                out.sum().backward()
            seen.append(gradients(model))

    return caught(train), seen


@check("DDP-101", worlds=(1, 2, 3), beyond=False)
def test_a_loss_that_a_forward_differentiates_by_itself_is_averaged_with_that_of_its_outputs(ranks):
    expected = {"a.weight": [mean_of_all(ranks.world)], "b.weight": [mean_of_all(ranks.world)]}
    for rank, (error, seen) in enumerate(ranks(train_inside, False)):
        assert error is None, f"rank {rank}: {error}"
        assert seen == [expected] * 3, f"rank {rank}"


@check("DDP-064", worlds=(2, 3), beyond=False)
def test_where_a_forward_differentiates_all_that_there_is_gradients_are_averages_or_an_error_comes(ranks):
    expected = {"a.weight": [mean_of_all(ranks.world)], "b.weight": [mean_of_all(ranks.world)]}
    for rank, (error, seen) in enumerate(ranks(train_inside, True)):
        assert error is None or error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert error is not None or seen == [expected] * 3, f"rank {rank} has local gradients, and nobody says so"


# -- DDP-099, DDP-105: a rank that passes a whole model by


class Passing(nn.Module):
    """A layer that is passed by where it is not used: what comes in goes out as it is, or as another tensor."""

    def __init__(self, as_it_is):
        super().__init__()
        self.a, self.as_it_is = models.scalar(), as_it_is
        nn.init.constant_(self.a.weight, 3.0)

    def forward(self, x, use):
        return self.a(x) if use else x if self.as_it_is else 1 * x


def pass_by(ctx, as_it_is, options):
    """Rank 0 alone uses a model, behind which all train another one in the same backward."""
    before, model, told = wrapped(ctx, models.scalar()), wrapped(ctx, Passing(as_it_is), **options), []
    for iteration in range(4):
        before.zero_grad()
        model.zero_grad()
        model(before(models.divisible_scalar(ctx.rank, iteration).to(ctx.device)), ctx.rank == 0).sum().backward()
        told.append((gradients(before), gradients(model)))
    return told


@check("DDP-099", "DDP-105", worlds=(2, 3), beyond=False, scenarios={
    "searched": {"find_unused_parameters": True}, "static": {"static_graph": True},
})  # fmt: skip
def test_a_model_that_a_rank_passes_by_is_reduced_before_the_one_that_comes_before_it(ranks, scenario):
    expected, world = [], ranks.world
    for iteration in range(4):
        before, model = models.scalar(), Passing(True)
        for rank in range(world):
            (model(before(models.divisible_scalar(rank, iteration)), rank == 0).sum() / world).backward()
        expected.append((gradients(before), gradients(model)))
    for as_it_is, results in ranks.each(pass_by, (True, False), scenario):
        for rank, told in enumerate(results):
            assert told == expected, f"rank {rank}, {as_it_is=}"
