"""A sharded optimizer on uneven inputs where a loop is less plain: again, with sparse gradients, closures, tensors."""

import contextlib
import copy
import itertools

import torch
from torch import nn

from conformance.api import oracle
from conformance.api import schedules as scenario
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.joinables import walker
from conformance.fixtures.observing import TINY_MIB, assert_refused, assert_told
from conformance.fixtures.sharding import (
    OPTIMIZERS,
    AddingUp,
    Alone,
    Reference,
    Skipping,
    SkippingInTensors,
    Spilling,
    first_gap,
    give,
    in_groups_of_one,
    sharded,
    some_parameters,
    whole,
)
from conformance.fixtures.training import scalar_means
from conformance.ranks import caught
from conformance.subjects import DETECTION


def step_twice_over(ctx, schedule):
    """Two contexts; between them everybody trains with a rate that holds for that time only. Gaps after each part."""
    params = some_parameters(ctx)
    reference = Reference(params, "SGD with momentum and decay")
    zero = sharded(ctx, params, "SGD with momentum and decay")
    gaps = []

    def step(optimizer, targets, iteration):
        give(targets, iteration)
        optimizer.step()

    for part, rate in enumerate((0.5, 0.125, 0.5)):
        together = part == 1
        if together or schedule[ctx.rank]:  # whoever has no inputs does not get to set the rate
            zero.param_groups[0]["lr"] = rate
        reference.optimizer.param_groups[0]["lr"] = rate
        if together:
            step(zero, params, part)
            step(reference.optimizer, reference.parameters, part)
        else:
            with ctx.subject.Join([zero]):
                for iteration in range(schedule[ctx.rank]):
                    step(zero, params, 10 * part + iteration)
            for iteration in range(max(schedule)):
                step(reference.optimizer, reference.parameters, 10 * part + iteration)
        gaps.append(reference.gap(params))
    return gaps


@check("ZERO-020", worlds=MANY, deadline_s=10)
def test_in_a_second_context_who_has_no_inputs_hears_of_settings_that_are_back(ranks):
    schedules = [scenario.without_inputs(ranks.world, empty) for empty in (0, ranks.world - 1)]
    for schedule, told in ranks.each(step_twice_over, schedules):
        assert told == [[None] * 3] * ranks.world, f"schedule {schedule}"


def idle_in_a_context(ctx, jobs):
    """One parameter, which rank 0 owns; a context and two steps of everybody: gaps, and what the groups show."""
    found = []
    for schedule, views in jobs:
        params = some_parameters(ctx, 1)
        reference = Reference(params, "a user's own", fade=0.5)
        zero = sharded(ctx, params, "a user's own", fade=0.5, parameters_as_bucket_view=views)
        told = []

        def step(optimizer, targets, iteration, scale):
            give(targets, iteration)
            optimizer.step(scale=scale)

        with ctx.subject.Join([zero]):
            for iteration in range(schedule[ctx.rank]):
                step(zero, params, iteration, 0.5)
        for iteration in range(max(schedule)):
            step(reference.optimizer, reference.parameters, iteration, 0.5)
        for iteration in (20, 21):
            told.append((reference.gap(params), settings(zero) == settings(reference.optimizer)))
            step(zero, params, iteration, 1.0)
            step(reference.optimizer, reference.parameters, iteration, 1.0)
        found.append([*told, (reference.gap(params), settings(zero) == settings(reference.optimizer))])
    return found


def settings(optimizer):
    return [{key: group[key] for key in ("lr", "fade", "count")} for group in optimizer.param_groups]


@check("ZERO-020", worlds=MANY, deadline_s=8)
def test_a_rank_without_a_shard_counts_the_steps_that_it_shadows(ranks):
    rest = ranks.world - 1
    jobs = [((3, *[1] * rest), False), ((*[1] * rest, 3), True), ((0, *[2] * rest), False), ((2, *[0] * rest), True)]
    for rank, found in enumerate(ranks(idle_in_a_context, jobs)):
        for job, told in zip(jobs, found, strict=True):
            assert told == [(None, True)] * 3, f"rank {rank}, {job}"


class Looking(nn.Module):
    """A sparse table beside a dense layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 3, sparse=True)
        self.a = models.scalar()

    def forward(self, rows):
        return 12 * (self.table(rows).sum() + self.a(rows.float().view(-1, 1)).sum())


def train_tables(ctx, schedule):
    """Where this rank differs from one process at the end."""
    model = models.drawn(Looking()).to(ctx.device)
    alone = copy.deepcopy(model)
    ddp = ctx.subject.DistributedDataParallel(model)
    zero, optimizer = sharded(ctx, model.parameters(), lr=0.25), torch.optim.SGD(alone.parameters(), lr=0.25)
    with ctx.subject.Join([ddp, zero]):
        for iteration in range(schedule[ctx.rank]):
            zero.zero_grad()
            ddp(models.rows(ctx.rank, iteration).to(ctx.device)).backward()
            zero.step()
    for iteration in range(max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        found = [oracle.local_gradients(alone, models.rows(rank, iteration).to(ctx.device)) for rank in active]
        for name, parameter in alone.named_parameters():
            parameter.grad = (sum(each[name].to_dense() for each in found) / ctx.world).to(parameter.device)
        optimizer.step()
    distance = max((p - q).abs().max().item() for p, q in zip(model.parameters(), alone.parameters(), strict=True))
    return distance < 1e-4


@check("ZERO-022", worlds=MANY, deadline_s=10, beyond=False)
def test_sparse_gradients_reach_the_shards_of_ranks_that_have_joined(ranks):
    upwards = scenario.linear(ranks.world, 1)
    several = (upwards[::-1], (1, *[4] * (ranks.world - 1)))  # rank 0 owns the table
    for schedule, told in ranks.each(train_tables, several):
        assert told == [True] * ranks.world, f"schedule {schedule}"


class Bare(torch.optim.SGD):
    """Takes no closure."""

    def step(self):
        super().step()


class Twofold(torch.optim.SGD):
    """Makes a second step where it has a closure."""

    def step(self, closure=None):
        loss = None if closure is None else closure()
        super().step()
        if closure is not None:
            super().step()
        return loss


def train_with_optimizers_of_ones_own(ctx, schedule):
    """By class of the local optimizer, where uneven inputs leave other parameters than one process; no closures."""
    gaps = []
    for kind in (Bare, Twofold):
        model = models.Sum(3).to(ctx.device)
        alone = Alone(ctx, model, "SGD", schedule)
        alone.optimizer = kind(alone.model.parameters(), lr=0.125)
        ddp = ctx.subject.DistributedDataParallel(model)
        zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.125)
        with ctx.subject.Join([ddp, zero]):
            for iteration in range(schedule[ctx.rank]):
                zero.zero_grad()
                ddp(whole(ctx.rank, iteration).to(ctx.device)).sum().backward()
                zero.step()
        for iteration in range(max(schedule)):
            alone.step(iteration)
        gaps.append(alone.gap(model))
    return gaps


@check("ZERO-022", worlds=MANY, deadline_s=10)
def test_a_joined_rank_gives_its_optimizer_no_closure_where_live_ranks_give_none(ranks):
    several = (scenario.linear(ranks.world, 1), scenario.linear(ranks.world, 1)[::-1])
    for schedule, told in ranks.each(train_with_optimizers_of_ones_own, several):
        for rank, gaps in enumerate(told):
            assert gaps == [None, None], f"rank {rank}, schedule {schedule}"


def train_with_closure_and_keyword(ctx, schedule):
    """Steps that are given a closure and a keyword; whether the keyword came back, and the gap at the end."""
    model = models.Sum(3).to(ctx.device)
    alone = Alone(ctx, model, "a user's own", schedule)
    ddp, told = ctx.subject.DistributedDataParallel(model), []
    zero = sharded(ctx, model.parameters(), "a user's own")
    with ctx.subject.Join([ddp, zero]):
        for iteration in range(schedule[ctx.rank]):

            def closure(iteration=iteration):
                zero.zero_grad()
                loss = ddp(whole(ctx.rank, iteration).to(ctx.device)).sum()
                loss.backward()
                return loss.item()

            told.append(zero.step(closure, scale=0.5)[2])
    for iteration in range(max(schedule)):
        alone.take(iteration)
        alone.optimizer.step(scale=0.5)
    return set(told) <= {0.5}, alone.gap(model)


@check("ZERO-022", worlds=MANY, deadline_s=10)
def test_a_closure_and_a_keyword_go_together_on_uneven_inputs(ranks):
    upwards = scenario.linear(ranks.world, 1)
    for schedule, told in ranks.each(train_with_closure_and_keyword, (upwards, upwards[::-1])):
        assert told == [(True, None)] * ranks.world, f"schedule {schedule}"


# -- what a step of the user's optimizer is given


class Measured(torch.optim.SGD):
    """Goes the further the greater the loss is, which its closure says; without one as far as it always does."""

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad * (1 if loss is None else float(loss))
        super().step()
        return loss


class Asked(Measured):
    """The same with a closure that has to be there."""

    def step(self, closure):
        return super().step(closure)


class Favouring(torch.optim.SGD):
    """Goes twice as far with the parameters that a step names."""

    @torch.no_grad()
    def step(self, closure=None, *, favoured=()):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] * (1 + any(parameter is each for each in favoured)))


def step_on_what_is_given(ctx, schedule):
    """By class and kind of loss, the gap at the end of a context; in every second step none is given."""
    told = {}
    for kind, number in itertools.product((Measured, Asked, Favouring), (float, torch.tensor)):
        params = some_parameters(ctx)
        alone = copy.deepcopy(params)
        zero, reference = ctx.subject.ZeroRedundancyOptimizer(params, kind, lr=0.25), kind(alone, lr=0.25)

        def step(optimizer, targets, iteration, kind=kind, number=number):
            def closure():
                give(targets, iteration)
                return number(2.0 + iteration)

            give(targets, iteration)
            if kind is Favouring:
                optimizer.step(favoured=targets[iteration % 2 :: 2])
            else:
                optimizer.step(*[closure] * (kind is Asked or iteration % 2))

        with ctx.subject.Join([zero]):
            for iteration in range(schedule[ctx.rank]):
                step(zero, params, iteration)
        for iteration in range(max(schedule)):
            step(reference, alone, iteration)
        told[kind.__name__, number.__name__] = first_gap(params, alone)
    return {name: gap for name, gap in told.items() if gap}


@check("ZERO-022", worlds=MANY, deadline_s=10, beyond=False)
def test_joined_ranks_step_with_the_loss_and_the_parameters_that_live_ones_are_given(ranks):
    several = (scenario.linear(ranks.world, 1), scenario.one_long(ranks.world, 0, 1))
    for schedule, told in ranks.each(step_on_what_is_given, several):
        for rank, gaps in enumerate(told):
            assert gaps == {}, f"rank {rank}, schedule {schedule}: {gaps}"


def step_first(ctx, schedule, since, listed):
    """A loop that begins, since this iteration, with the step of the gradients before; the gap at the end."""
    model = models.Sum(3).to(ctx.device)
    alone = Alone(ctx, model, "SGD with momentum and decay", schedule)
    by_name = {
        "ddp": ctx.subject.DistributedDataParallel(model),
        "zero": sharded(ctx, model.parameters(), "SGD with momentum and decay"),
    }
    with ctx.subject.Join([by_name[name] for name in listed]):
        for iteration in range(schedule[ctx.rank]):
            if iteration >= since:
                by_name["zero"].step()
            by_name["zero"].zero_grad()
            by_name["ddp"](whole(ctx.rank, iteration).to(ctx.device)).sum().backward()
    for iteration in range(max(schedule)):
        if iteration >= since:
            alone.optimizer.step()
        alone.take(iteration)
    return alone.gap(model)


@check("ZERO-022", worlds=MANY, deadline_s=10)
def test_a_loop_that_begins_with_the_step_trains_as_one_process_does(ranks):
    upwards = scenario.linear(ranks.world, 2)
    several = itertools.product((upwards, upwards[::-1]), (0, 1))
    for (schedule, since), gaps in ranks.each(step_first, several, ("zero", "ddp"), spread=True):
        assert gaps == [None] * ranks.world, f"schedule {schedule}, since iteration {since}"


@check("JOIN-040", worlds=MANY, deadline_s=10)
def test_a_loop_that_begins_with_the_step_of_what_is_listed_last_trains_as_one_process_does(ranks):
    upwards = scenario.linear(ranks.world, 2)
    assert ranks(step_first, upwards, 0, ("ddp", "zero")) == [None] * ranks.world


def keep_hold_of_a_rate(ctx, schedule):
    """A learning rate in a tensor that the user holds, and changes in place inside a context and after it: the gaps."""
    params = some_parameters(ctx)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]
    rates = [torch.tensor(0.5) for _ in range(2)]
    zero = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=rates[0])
    ordinary = torch.optim.SGD(copies, lr=rates[1])
    gaps = []
    with ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):
            rates[0].fill_(0.5 / (iteration + 1))
            give(params, iteration)
            zero.step()
    for iteration in range(max(schedule)):
        rates[1].fill_(0.5 / (iteration + 1))
        give(copies, iteration)
        ordinary.step()
    gaps.append(first_gap(params, copies))
    for rate, optimizer, targets in zip(rates, (zero, ordinary), (params, copies), strict=True):
        rate.fill_(0.0625)
        give(targets, 20)
        optimizer.step()
    return [*gaps, first_gap(params, copies)]


@check("ZERO-020", worlds=MANY, deadline_s=10)
def test_a_rate_in_a_tensor_stays_the_users_on_ranks_that_have_joined(ranks):
    upwards = scenario.linear(ranks.world, 1)
    for schedule, told in ranks.each(keep_hold_of_a_rate, (upwards, upwards[::-1])):
        assert told == [[None] * 2] * ranks.world, f"schedule {schedule}"


def freeze_later(ctx, name):
    """Parameters that are frozen in turn and keep the gradients that they have: the gaps, by iteration."""
    params = some_parameters(ctx)
    reference, zero, gaps = Reference(params, name), sharded(ctx, params, name), []
    for iteration in range(6):
        for targets, optimizer in ((params, zero), (reference.parameters, reference.optimizer)):
            if iteration == 0:
                give(targets, iteration)
            else:
                targets[iteration - 1].requires_grad_(False)
            optimizer.step()
        gaps.append(reference.gap(params))
    return gaps


@check("ZERO-013", worlds=MANY, deadline_s=10, scenarios={name: name for name in OPTIMIZERS})
def test_what_is_frozen_later_is_stepped_as_by_the_ordinary_optimizer(ranks, scenario):
    assert ranks(freeze_later, scenario) == [[None] * 6] * ranks.world


def fail_at_a_step(ctx, schedule, catches, rule=None):
    """Rank 1 fails in its third step, and goes on if it ``catches`` that; the error that ends the block here.

    ``rule``: a setting; one that cannot be sent to joined ranks makes the second step fail.
    """
    params = some_parameters(ctx)
    zero = ctx.subject.ZeroRedundancyOptimizer(params, Spilling, fails_at=3 if ctx.rank == 1 else 0)
    zero.param_groups[0]["rule"] = rule and (lambda: rule)

    def train():
        with ctx.subject.Join([zero]):
            for iteration in range(schedule[ctx.rank]):
                give(params, iteration)
                with contextlib.suppress(*[LookupError, TypeError] * catches):
                    zero.step()

    return caught(train)


@check("JOIN-024", worlds=(3,), deadline_s=10, beyond=False)
def test_a_rank_that_fails_in_the_body_at_its_own_step_is_reported_to_live_and_joined_ranks(ranks):
    for schedule, catches in itertools.product(((4, 4, 4), (1, 4, 4), (1, 4, 1)), (False, True)):
        # by the rank that has failed, and not by its silence
        for rank, error in enumerate(ranks(fail_at_a_step, schedule, catches, env={DETECTION: "60"})):
            if rank == 1 and not catches:
                assert error is not None
                assert error.is_a(LookupError), error
            else:
                assert_told(error, 1)
    for error in ranks(fail_at_a_step, (1, 4, 1), True, "a rule", env={DETECTION: "60"}):
        assert_told(error, 1)


def fail_in_one_block(ctx):
    """A step that fails on all ranks ends a block, and another block follows: the error, and the gap at the end."""
    params = some_parameters(ctx)
    zero = ctx.subject.ZeroRedundancyOptimizer(params, Spilling, fails_at=2)
    reference = Reference(params, "SGD", lr=0.25)

    def train(first, count):
        with ctx.subject.Join([zero]):
            for iteration in range(first, first + count):
                give(params, iteration)
                zero.step()

    error = caught(train, 0, 3)
    train(10, 1 + ctx.rank)
    reference.train((0, *range(10, 10 + ctx.world)))
    return error, reference.gap(params)


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_a_step_that_failed_everywhere_in_one_block_is_forgotten_in_the_next(ranks):
    errors, gaps = zip(*ranks(fail_in_one_block), strict=True)
    assert_refused(errors, LookupError)
    assert list(gaps) == [None] * ranks.world


def leave_one_out_later(ctx, early):
    """One rank has one input, the others three, of which only the first uses ``b``; the gradients in the end."""
    module = models.Branches().to(ctx.device)
    ddp = ctx.subject.DistributedDataParallel(module, find_unused_parameters=True)
    zero = sharded(ctx, module.parameters(), "SGD with momentum and decay")
    with ctx.subject.Join([ddp, zero]):
        for iteration in range(1 if ctx.rank == early else 3):
            zero.zero_grad(set_to_none=True)
            x = models.divisible_scalar(ctx.rank, iteration).to(ctx.device)
            ddp(x, with_b=iteration == 0).sum().backward()
            zero.step()
    return [None if parameter.grad is None else parameter.grad.item() for parameter in module.parameters()]


@check("DDPJ-010", worlds=MANY, deadline_s=10, beyond=False)
def test_a_joined_owner_keeps_its_gradient_of_what_nobody_uses_any_more(ranks):
    (mean,) = scalar_means((1,) * ranks.world)
    for early, told in ranks.each(leave_one_out_later, range(2)):  # one of them owns what is left out
        held = told[early]
        assert held == [mean, mean], f"rank {early}, which ran out"


EPOCHS = ((3, 1, 2), (0, 2, 3))


def spill(*_):
    raise LookupError("spilled the tea")


def train_a_pair(ctx):
    """Two models, each with a sharded optimizer, and a joinable that communicates take turns; the gaps.

    By iteration, and after each context. Before the first one rank 0 alone has made forwards that nobody
    differentiates. In each iteration the highest rank fails in a forward that is not to be synchronised.
    """
    names = ("SGD with momentum and decay", "Adam")
    pair = [models.Sum(2).to(ctx.device) for _ in names]
    alone = [Alone(ctx, model, name, ()) for model, name in zip(pair, names, strict=True)]
    ddps = [ctx.subject.DistributedDataParallel(model, bucket_cap_mb=TINY_MIB) for model in pair]
    zeros = [sharded(ctx, model.parameters(), name) for model, name in zip(pair, names, strict=True)]
    beside, gaps, first = walker(ctx), [], 0
    for ddp in ddps if ctx.rank == 0 else ():
        ddp(whole(0, 0).to(ctx.device))
    for schedule in EPOCHS:
        with ctx.subject.Join([ddps[0], zeros[0], beside, zeros[1], ddps[1]]):
            for number in range(first, first + schedule[ctx.rank]):
                x = whole(ctx.rank, number).to(ctx.device)
                for ddp, zero in zip(ddps, zeros, strict=True):
                    zero.zero_grad()
                    ddp(x).sum().backward()
                    zero.step()
                beside.step(1.0)
                with ddps[1].no_sync(), pair[1].register_forward_pre_hook(spill if ctx.rank == 2 else lambda *_: None):
                    caught(ddps[1], x)
                gaps += follow(pair, alone, schedule, first, [number])
        gaps += follow(pair, alone, schedule, first, range(first + schedule[ctx.rank], first + max(schedule)))
        first += 10
    return [gap for gap in gaps if gap], beside.places


def follow(pair, alone, schedule, first, numbers):
    """One process goes through these iterations, too; where the models then differ."""
    for each in alone:
        each.schedule = tuple(first + count for count in schedule)
        for number in numbers:
            each.step(number)
    return [each.gap(model) for model, each in zip(pair, alone, strict=True)]


@check("ZERO-022", worlds=(3,), deadline_s=10, beyond=False)
def test_two_models_each_with_a_sharded_optimizer_train_as_one_process_does_in_one_context_after_the_other(ranks):
    places = [0.0]
    for schedule in EPOCHS:
        for iteration in range(max(schedule)):
            places.append(places[-1] * 0.5 + len(oracle.active_ranks(schedule, iteration)))
    for rank, told in enumerate(ranks(train_a_pair)):
        assert told == ([], places), f"rank {rank}, schedule {EPOCHS}"


def skip_what_others_own(ctx, kind, closed, schedules):
    """After a context of each schedule: where the weights differ from those of one process.

    ``closed``: each step is given a closure, which sets another rate.
    """
    params = some_parameters(ctx)
    alone = copy.deepcopy(params)
    zero = ctx.subject.ZeroRedundancyOptimizer(in_groups_of_one(params), kind)
    reference, gaps = kind(in_groups_of_one(alone)), []

    def step(optimizer, targets, iteration):
        def closure():
            give(targets, iteration)
            for group in optimizer.param_groups:
                group["lr"] = 0.5 / (1 + iteration % 2)

        closure() if not closed else None
        optimizer.step(*[closure] * closed)

    for part, schedule in enumerate(schedules):
        with ctx.subject.Join([zero]):
            for iteration in range(schedule[ctx.rank]):
                step(zero, params, 10 * part + iteration)
        for iteration in range(max(schedule)):
            step(reference, alone, 10 * part + iteration)
        gaps.append(first_gap(params, alone))
    return gaps


@check("ZERO-022", worlds=MANY, deadline_s=10, beyond=False)
def test_joined_ranks_count_on_in_groups_of_which_live_ranks_own_nothing(ranks):
    """Whoever is live, as of each group some other rank has everything."""
    world = ranks.world
    schedules = [tuple(3 if rank == live else 1 for rank in range(world)) for live in range(world)]
    several = ((Skipping, False), (AddingUp, False), (SkippingInTensors, True))
    for (kind, closed), told in ranks.each(skip_what_others_own, several, schedules, spread=True):
        for rank, gaps in enumerate(told):
            assert gaps == [None] * world, f"rank {rank}, {kind.__name__}, {closed=}: {gaps}"
