"""The overlapped step where a loop is less plain: counters of an optimizer's own, failed backwards, sparse tables."""

import collections
import itertools
import operator
import typing
from dataclasses import replace
from fractions import Fraction

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as torchs_hooks

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models, overlapping
from conformance.fixtures.errors import complains_of_backward
from conformance.fixtures.machines import HOSTS, far_apart
from conformance.fixtures.observing import assert_refused, assert_told
from conformance.fixtures.overlapping import (
    Overlap,
    Pair,
    assert_as_alone,
    factory_of,
    group_of,
    iteration,
    iterations,
    pair_of,
)
from conformance.fixtures.sharding import Decaying, Restarting, Slowing, Spilling
from conformance.fixtures.training import ddp, gradients, numbers, parameters, private
from conformance.ranks import caught
from conformance.subjects import Unsupported

DEADLINE_S = 5.0
READY = 4  # by then every implementation steps
SEQUENTIAL, INTERLEAVED = Overlap(), Overlap(True, hook=overlapping.settled)
HOOKS = {"sequential": SEQUENTIAL, "interleaved": INTERLEAVED}


# -- HOOK-018: one step is one step for everything that an optimizer counts


class Fading(torch.optim.SGD):
    """Counts its steps in attributes of its own, and learns less with each of them; others hold its parameters."""

    def __init__(self, params, lr=0.5):
        super().__init__(params, lr=lr)
        self.steps, self.scale = 0, 4.0
        self.ratio, self.seen, self.ordered = Fraction(0), frozenset(), collections.OrderedDict(steps=0)
        self.known = [parameter for group in self.param_groups for parameter in group["params"]]

    def step(self, closure=None):
        self.steps += 1
        self.scale *= 0.5
        self.ratio += 1
        self.seen |= {len(self.seen)}
        self.ordered["steps"] += 1
        counts = {self.steps, self.ratio, len(self.seen), self.ordered["steps"]}
        for group in self.param_groups:
            strangers = set(map(id, group["params"])) - set(map(id, self.known))
            group["lr"] = 0.5**self.steps * self.scale if len(counts) == 1 and not strangers else 1.0
        return super().step(closure)


def pair_with(ctx, how, kind, model, **settings):
    group = group_of(ctx)
    wrapped = ddp(ctx, model.to(ctx.device), bucket_cap_mb=overlapping.CAP_MIB, process_group=group)
    options = {"process_group": group, "overlap_with_ddp": True, **settings}
    try:
        zero = ctx.subject.ZeroRedundancyOptimizer(wrapped.parameters(), kind, **options)
    except ValueError as error:
        raise Unsupported(f"{ctx.subject.name} overlaps with optimizers of its own choice only: {error}") from error
    reduce = how.hook or ctx.subject.default_hooks.allreduce_hook
    wrapped.register_comm_hook(group, factory_of(ctx, how.interleaved)(reduce, wrapped, zero, how.shard))
    return Pair(wrapped, zero, group, ctx.rank)


def train_fading(ctx, how, layers):
    """The parameters after each iteration, and the learning rate that the optimizer shows; late on another group."""
    pair, found = pair_with(ctx, how, Fading, models.SumBackwards(layers)), []
    for number in range(overlapping.ITERATIONS):
        if number == overlapping.ITERATIONS - 2:
            private(pair.ddp, "_update_process_group")(overlapping.group_of(ctx))
        found.append((iteration(pair, number).parameters, pair.zero.param_groups[0]["lr"]))
    return found


def fading_alone(world, layers, waited):
    model = models.SumBackwards(layers)
    optimizer = Fading(model.parameters())
    found = []
    for number in range(overlapping.ITERATIONS):
        if number >= waited:
            overlapping.give(model, overlapping.averaged(model, number, range(world), world))
            optimizer.step()
        found.append((overlapping.parameters(model), optimizer.param_groups[0]["lr"]))
    return found


@check("HOOK-018", worlds=(1, 2, 4), scenarios=HOOKS, deadline_s=DEADLINE_S, beyond=False)
def test_what_an_optimizer_counts_by_itself_counts_iterations(ranks, scenario):
    several = [(replace(scenario, shard=shard), layers) for shard, layers in ((False, 4), (True, 4), (False, 1))]
    for (how, layers), runs in ranks.each(train_fading, several, spread=True):  # with few buckets some own nothing
        before = overlapping.parameters(models.SumBackwards(layers))
        waited = sum(seen == before for seen, _ in runs[0][:2])
        assert runs == [fading_alone(ranks.world, layers, waited)] * ranks.world, f"shard_buckets={how.shard}"


class Shrinking(torch.optim.SGD):
    """Puts another state in the place of its own in each step, in which all momentum is half of what it was."""

    def step(self, closure=None):
        halves = {parameter: {"momentum_buffer": each["momentum_buffer"] / 2} for parameter, each in self.state.items()}
        self.state = collections.defaultdict(dict, halves)
        return super().step(closure)


class Dropping(torch.optim.SGD):
    """Puts another state in the place of its own in each step, without those of negative gradients."""

    def step(self, closure=None):
        super().step(closure)
        kept = {one: state for one, state in self.state.items() if one.grad is None or one.grad.sum() >= 0}
        self.state = collections.defaultdict(dict, kept)


KINDS = {
    "begins anew": (Restarting, {"lr": 0.25, "momentum": 0.5}),
    "drops some": (Dropping, {"lr": 0.25, "momentum": 0.5}),
    "halves its momentum": (Shrinking, {"lr": 0.25, "momentum": 0.5}),
    "saves a number": (Slowing, {}),
}


def train_a_kind(ctx, kind, settings, model=models.SumBackwards):
    """For either hook the parameters after each iteration."""
    told = []
    for how in (SEQUENTIAL, INTERLEAVED):
        pair = pair_with(ctx, how, kind, model(), **settings)
        told.append([iteration(pair, number).parameters for number in range(READY + 2)])
    return told


def a_kind_alone(kind, settings, world, waited, model=models.SumBackwards):
    model = model()
    optimizer, found = kind(model.parameters(), **settings), []
    for number in range(READY + 2):
        if number >= waited:
            overlapping.give(model, overlapping.averaged(model, number, range(world), world))
            optimizer.step()
        found.append(parameters(model))
    return found


@check(
    "HOOK-018", worlds=(1, 2, 3), scenarios=KINDS, deadline_s=DEADLINE_S, beyond=False,
)  # fmt: skip
def test_optimizers_that_replace_their_states_or_save_more_are_stepped_as_by_one_process(ranks, scenario):
    before = parameters(models.SumBackwards())
    for rank, told in enumerate(ranks(train_a_kind, *scenario)):
        for how, seen in zip(HOOKS, told, strict=True):
            waited = sum(held == before for held in seen[:2])
            assert seen == a_kind_alone(*scenario, ranks.world, waited), f"rank {rank}, {how}"


def save_a_number(ctx):
    """For either hook what each rank saves of an optimizer of which one rank owns all, and how often it was stepped."""
    told = []
    for how in (SEQUENTIAL, INTERLEAVED):
        pair = pair_with(ctx, how, Slowing, models.SumBackwards(1))
        seen = [parameters(pair.model), *(iteration(pair, number).parameters for number in range(READY))]
        for to in range(ctx.world):
            pair.zero.consolidate_state_dict(to)
            if to == ctx.rank:
                saved = pair.zero.state_dict().get("taken")
        told.append((saved, sum(map(operator.ne, seen[1:], seen))))
    return told


@check("HOOK-018", worlds=MANY, deadline_s=DEADLINE_S, beyond=False)
def test_ranks_that_own_nothing_save_what_an_optimizer_counts_by_itself(ranks):
    for rank, told in enumerate(ranks(save_a_number)):
        for how, (saved, steps) in zip(HOOKS, told, strict=True):
            assert saved == steps > 0, f"rank {rank}, {how}: {saved} of {steps}"


def all_but_one_frozen():
    model = models.SumBackwards()
    *others, _ = model.parameters()
    for parameter in others:
        parameter.requires_grad_(False)
    return model


@check("HOOK-018", worlds=(1, 2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_what_an_optimizer_moves_without_a_gradient_reaches_all_ranks_with_overlap_too(ranks):
    decaying, before = (Decaying, {"lr": 0.25}), parameters(all_but_one_frozen())
    for rank, told in enumerate(ranks(train_a_kind, *decaying, all_but_one_frozen)):
        for how, seen in zip(HOOKS, told, strict=True):
            waited = sum(held == before for held in seen[:2])
            assert seen == a_kind_alone(*decaying, ranks.world, waited, all_but_one_frozen), f"rank {rank}, {how}"


# -- DDPJ-010: a joined rank's own gradients


def train_unevenly(ctx, schedule, both, how):
    """Gradients when this rank ran out, cleared then where the optimizer is not listed, and after the block."""
    pair = pair_of(ctx, how)
    last = iterations(pair, READY)[-1].gradients
    with ctx.subject.Join([pair.ddp, pair.zero] if both else [pair.ddp]):
        for number in range(schedule[ctx.rank]):
            last = iteration(pair, READY + number).gradients
        if not both:
            pair.ddp.zero_grad(set_to_none=True)
            last = dict.fromkeys(last)
    return last, gradients(pair.model)


@check("DDPJ-010", worlds=MANY, scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_a_joined_rank_keeps_its_last_gradients_while_it_steps_for_others(ranks, scenario):
    schedules = (0, *[3] * (ranks.world - 1)), tuple(range(ranks.world, 0, -1))
    several = itertools.product(schedules, (False, True))
    for (schedule, both), told in ranks.each(train_unevenly, several, scenario, spread=True):
        for rank, (before, after) in enumerate(told):
            assert after == before, f"rank {rank}, schedule {schedule}, optimizer listed: {both}"


# -- DDPJ-014: hooks of torch's own library, which divide by their group's size


def train_late_iterations(ctx, how, schedule):
    """Even iterations until everybody steps, then uneven ones in a context that divides by the active ranks.

    The second rank calls ``step``, too, which does nothing for an optimizer that is stepped in backward.
    """
    pair = pair_of(ctx, how)
    iterations(pair, READY)
    before = parameters(pair.model)
    with ctx.subject.Join([pair.ddp, pair.zero], divide_by_initial_world_size=False):
        for number in range(schedule[ctx.rank]):
            iteration(pair, READY + number)
            if ctx.rank == 1:
                pair.zero.step()
    return before, parameters(pair.model)


def late_alone(how, before, schedule):
    model = how.model()
    model.load_state_dict({name: torch.tensor(values).view_as(model.state_dict()[name]) for name, values in before})
    kind, settings = overlapping.OPTIMIZERS[how.optimizer]
    optimizer = kind(model.parameters(), **settings)
    for number in range(max(schedule)):
        active = oracle.active_ranks(schedule, number)
        overlapping.give(model, overlapping.averaged(model, READY + number, active, len(active)))
        optimizer.step()
    return parameters(model)


@check("DDPJ-014", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_a_wrapped_hook_of_torchs_own_library_divides_by_the_active_ranks_when_asked(ranks):
    how = Overlap(optimizer="sgd", hook=torchs_hooks.allreduce_hook)
    schedule = (1, *range(ranks.world + 1, 2, -1))
    for before, after in ranks(train_late_iterations, how, schedule):
        assert after == late_alone(how, before.items(), schedule)


def warm_up_unevenly(ctx, how, schedule):
    """The gradients of each iteration of a warm-up in a context that divides by the active ranks."""
    pair = pair_of(ctx, how)
    with ctx.subject.Join([pair.ddp, pair.zero], divide_by_initial_world_size=False):
        return [iteration(pair, number).gradients for number in range(schedule[ctx.rank])]


@check("DDPJ-014", "HOOK-010", worlds=MANY, deadline_s=DEADLINE_S, beyond=False)
def test_in_a_warm_up_a_hook_of_torchs_own_library_divides_by_the_active_ranks_when_asked(ranks):
    how = Overlap(hook=torchs_hooks.allreduce_hook, keywords={"warm_up_iterations": 9})
    schedule, model, expected = tuple(range(1, ranks.world + 1)), how.model(), []
    for number in range(ranks.world):
        active = oracle.active_ranks(schedule, number)
        expected.append(numbers(overlapping.averaged(model, number, active, len(active)).items()))
    for rank, seen in enumerate(ranks(warm_up_unevenly, how, schedule)):
        assert seen == expected[: schedule[rank]], f"rank {rank}"


# -- JOIN-024: a rank whose own step fails


def fail_half_way(ctx, how, in_step, far):
    """Rank 0 fails in its second iteration: in its step, or when the others have begun their backward already."""
    if far:
        far_apart(ctx)
    pair = pair_with(ctx, how, Spilling, models.Sum(), fails_at=0 if ctx.rank or not in_step else 2)

    def train():
        with ctx.subject.Join([pair.ddp, pair.zero]):
            iteration(pair, 0)
            output = pair.ddp(pair.batch(1))
            if ctx.rank == 0 and not in_step:
                ctx.store.wait([f"reducing/{rank}" for rank in range(1, ctx.world)])
                raise LookupError("spilled the tea")
            ctx.store.set(f"reducing/{ctx.rank}", "1")
            overlapping.loss(output).backward()

    return caught(train)


def two_where_far(far):
    """Two hosts send each other parameters in a way of their own."""
    return (2,) if far else (2, 3)


@check("JOIN-024", worlds=(2, 3), scenarios=HOSTS, at=two_where_far, deadline_s=DEADLINE_S, beyond=False)
def test_a_rank_that_fails_in_its_part_of_an_overlapped_step_is_reported_to_its_peers(ranks, scenario):
    for in_step in (True, False):
        for rank, error in enumerate(ranks(fail_half_way, SEQUENTIAL, in_step, scenario)):
            if rank:
                assert_told(error, 0)
            else:
                assert error is not None
                assert error.is_a(LookupError), error


# -- HOOK-037: a backward that fails half-way


class Failing(models.Sum):
    """Fails in the backward of its first layer, which comes last, when it is asked to."""

    fails = False

    def forward(self, x):
        x = x.clone().requires_grad_()
        outputs = [layer(x) for layer in self.layers]
        if self.fails:
            outputs[0].register_hook(fail)
        return torch.stack([(index + 1) * output for index, output in enumerate(outputs)]).sum(dim=0)


def fail(_gradient):
    raise KeyError("the backward of one iteration fails on every rank")


def fail_once(ctx, how):
    """Iterations around one whose backward fails before the last bucket; whether it did."""
    pair = pair_of(ctx, how)
    seen = iterations(pair, READY)
    pair.model.fails = True
    failed = caught(iteration, pair, READY) is not None
    pair.model.fails = False
    return failed, seen + iterations_after_a_failure(pair)


def iterations_after_a_failure(pair):
    """Three more; none where the first one's forward is refused."""
    try:
        return [iteration(pair, number) for number in range(READY, READY + 3)]
    except RuntimeError as refusal:
        if complains_of_backward(str(refusal)):
            return []
        raise


def note_refusals(ranks, runs):
    if any(len(run) == READY for run in runs):
        ranks.at_limit("after a backward that failed, the next forward is refused")


@check("HOOK-037", worlds=(1, 2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_after_a_backward_that_failed_training_goes_on_from_where_it_was(ranks):
    how = replace(SEQUENTIAL, model=Failing)
    results = ranks(fail_once, how)
    assert [failed for failed, _ in results] == [True] * ranks.world
    assert True in assert_as_alone([seen for _, seen in results], how)
    note_refusals(ranks, [seen for _, seen in results])


class Raising:
    """Averages the buckets, and fails at one of them when it is asked to."""

    fails_at = -1

    def __call__(self, group, bucket):
        if bucket.index() == self.fails_at:
            raise KeyError("the hook fails on every rank")
        return overlapping.settled(group, bucket)


def fail_in_the_hook(ctx, how):
    """A hook fails in an iteration at a rate of 0: whatever has been stepped by then, nothing has been learned."""
    hook = Raising()
    pair = pair_of(ctx, replace(how, hook=hook))

    def fails(now):
        hook.fails_at = 2 if now else -1

    return train_around(pair, fails)


def fail_in_the_optimizer(ctx, how):
    """The first part of a step fails; then the state is saved and loaded, which takes whole groups."""
    pair = pair_with(ctx, how, Spilling, models.Sum())

    def fails(now):
        optim = pair.zero.optim
        optim.fails_at = optim.steps + 1 if now else 0

    told = train_around(pair, fails)
    pair.zero.consolidate_state_dict()
    pair.zero.load_state_dict(pair.zero.state_dict())
    return told


def train_around(pair, fails):
    """Iterations before and after one that fails, the later ones at another rate, and which rate is shown then."""
    seen = iterations(pair, READY)
    pair.zero.param_groups[0]["lr"] = 0.0
    fails(True)
    error = caught(iteration, pair, READY)
    fails(False)
    pair.zero.param_groups[0]["lr"] = LATER_RATE
    seen += iterations_after_a_failure(pair)
    return error is not None, seen, pair.zero.param_groups[0]["lr"]


LATER_RATE = 0.125


def assert_went_on(results, how):
    alone = overlapping.Alone(how, len(results))
    for number, seen in enumerate(zip(*[run for _, run, _ in results], strict=True)):
        if number == READY:
            alone.optimizer.param_groups[0]["lr"] = LATER_RATE
        alone.follow(seen)
    assert [(failed, shown) for failed, _, shown in results] == [(True, LATER_RATE)] * len(results)


@check("HOOK-037", worlds=(1, 2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_after_a_hook_that_failed_every_bucket_is_stepped_and_sent_with_the_present_settings(ranks):
    for how in (replace(schedule, optimizer="sgd") for schedule in HOOKS.values()):
        results = ranks(fail_in_the_hook, how)
        assert_went_on(results, how)
        note_refusals(ranks, [seen for _, seen, _ in results])


class Turned(models.Sum):
    """Its weights lie column by column, so that what is sent of them arrives elsewhere and is copied."""

    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.weight.data = layer.weight.data.t().contiguous().t()


def fail_before_a_context(ctx, how):
    """The parameters at the beginning of a context that follows an iteration in which a hook has failed."""
    hook = Raising()
    pair = pair_of(ctx, replace(how, hook=hook))
    seen = iterations(pair, READY)
    hook.fails_at = 3
    failed = caught(iteration, pair, READY) is not None
    hook.fails_at = -1
    with ctx.subject.Join([pair.ddp, pair.zero]):
        found = parameters(pair.model)
        iterations_after_a_failure(pair)
    return failed, seen, found


@check("HOOK-037", worlds=MANY, deadline_s=DEADLINE_S, beyond=False)
def test_a_context_that_follows_a_hook_that_failed_begins_with_the_same_parameters_everywhere(ranks):
    one_by_one = {"bucket_cap_mb": 1e-6}
    for schedule in HOOKS.values():
        how = replace(schedule, optimizer="sgd", model=Turned, ddp=one_by_one)
        results = ranks(fail_before_a_context, how)
        alone = overlapping.Alone(how, ranks.world)
        for seen in zip(*[run for _, run, _ in results], strict=True):
            alone.follow(seen)
        before = parameters(alone.model)
        alone.step(overlapping.averaged(alone.model, READY, range(ranks.world), ranks.world))
        after = parameters(alone.model)
        for rank, (failed, _, found) in enumerate(results):
            assert failed
            assert found == results[0][2], f"rank {rank}"
            assert all(found[name] in (before[name], after[name]) for name in before), f"rank {rank}"


@check("HOOK-037", worlds=(1,), deadline_s=DEADLINE_S, beyond=False)
def test_after_a_step_that_failed_the_optimizer_has_its_groups_and_takes_the_present_settings(ranks):
    for how in (replace(schedule, optimizer="sgd") for schedule in HOOKS.values()):
        assert_went_on(ranks(fail_in_the_optimizer, how), how)


def fail_in_the_second_group(ctx, interleaved):
    """A setting of the biases fails the step on every rank, which owns some of both groups in the only bucket."""
    group = group_of(ctx)
    wrapped = ddp(ctx, models.Sum().to(ctx.device), process_group=group)
    members = list(wrapped.parameters())
    groups = [{"params": members[0::2]}, {"params": members[1::2]}]
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.5}
    zero = ctx.subject.ZeroRedundancyOptimizer(groups, torch.optim.SGD, **options)
    hook = factory_of(ctx, interleaved)(ctx.subject.default_hooks.allreduce_hook, wrapped, zero, True)
    wrapped.register_comm_hook(group, hook)
    pair = Pair(wrapped, zero, group, ctx.rank)
    iteration(pair, 0)
    zero.param_groups[1]["lr"] = None
    failed = caught(iteration, pair, 1) is not None
    zero.param_groups[1]["lr"] = 0.5
    pair.ddp(pair.batch(2))
    return failed, parameters(pair.model)


@check("HOOK-037", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_the_forward_after_a_step_that_failed_half_way_begins_with_what_had_been_stepped(ranks):
    assert ranks.subject.PeerFailed
    model = models.Sum()
    first, second = (overlapping.averaged(model, number, range(ranks.world), ranks.world) for number in (0, 1))
    halfway = {name: mean for name, mean in second.items() if name.endswith("weight")}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for average in (first, halfway):
        optimizer.zero_grad()
        overlapping.give(model, average)
        optimizer.step()
    for interleaved, results in ranks.each(fail_in_the_second_group, (False, True)):
        assert results == [(True, parameters(model))] * ranks.world, f"interleaved={interleaved}"


# -- HOOK-018: states of other types than their parameters


class Last(typing.NamedTuple):
    """What no optimizer that loads it could make anew of its items."""

    count: int
    gradient: torch.Tensor


class Finely(torch.optim.SGD):
    """Keeps its parameters in a finer dtype, a whole number and a word, and adds less than the parameters can show."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state.update(fine=parameter.detach().double(), count=torch.zeros((), dtype=torch.int64), word="fine")
                state["last"] = Last(0, torch.zeros_like(parameter))
            if (state["count"].dtype, state["word"], type(state["last"])) != (torch.int64, "fine", Last):
                raise AssertionError(f"a state of another type: {state}")
            state["count"] += 1
            state["last"] = Last(state["last"].count + 1, state["last"].gradient + parameter.grad)
            if state["last"].count != state["count"]:
                raise AssertionError(f"a state of another step: {state}")
            state["fine"].add_(2.0**-40 * state["count"].item()).sub_(parameter.grad.double(), alpha=0.25)
            parameter.copy_((state["fine"] * 2.0**40).remainder_(64))


def train_finely(ctx, how):
    """Parameters that show the last bits of what their states hold, after each iteration."""
    pair = pair_with(ctx, how, Finely, models.SumBackwards(), lr=0.25)
    return [iteration(pair, number).parameters for number in range(overlapping.ITERATIONS)]


def finely_alone(world):
    model = models.SumBackwards()
    optimizer = Finely(model.parameters(), lr=0.25)
    found = []
    for number in range(overlapping.ITERATIONS):
        overlapping.give(model, overlapping.averaged(model, number, range(world), world))
        optimizer.step()
        found.append(overlapping.parameters(model))
    return found


@check("HOOK-018", worlds=(2, 4), scenarios=HOOKS, deadline_s=DEADLINE_S, beyond=False)
def test_states_keep_their_types_when_the_buckets_turn_out_otherwise_than_expected(ranks, scenario):
    assert ranks(train_finely, scenario) == [finely_alone(ranks.world)] * ranks.world


# -- HOOK-018: sparse gradients


class Looking(nn.Module):
    """A sparse table before two dense layers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4, sparse=True)
        self.layers = models.Sum(2)
        nn.init.constant_(self.table.weight, 2.0)

    def forward(self, rows):
        return 12 * self.layers(self.table(rows))


def train_tables(ctx, how):
    pair = pair_with(ctx, how, torch.optim.SGD, Looking(), lr=2.0**-8)
    told = []
    for number in range(overlapping.ITERATIONS):
        pair.ddp.zero_grad(set_to_none=True)
        pair.ddp(models.rows(ctx.rank, number).to(ctx.device)).sum().backward()
        told.append([parameter.detach().clone().cpu() for parameter in pair.model.parameters()])
    return told


def tables_alone(world, waited):
    model, found = Looking(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-8)
    for number in range(overlapping.ITERATIONS):
        several = [oracle.local_gradients(model, models.rows(rank, number)) for rank in range(world)]
        if number >= waited:
            for name, parameter in model.named_parameters():
                parameter.grad = sum(each[name].to_dense() for each in several) / world
            optimizer.step()
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    return found


@check("HOOK-018", worlds=(1, 2, 3), scenarios=HOOKS, deadline_s=DEADLINE_S, beyond=False)
def test_sparse_tables_are_stepped_too(ranks, scenario):
    runs = ranks(train_tables, scenario)
    before = list(Looking().parameters())
    waited = sum(all(map(torch.equal, seen, before)) for seen in runs[0][:2])
    for rank, told in enumerate(runs):
        for number, (seen, right) in enumerate(zip(told, tables_alone(ranks.world, waited), strict=True)):
            assert all(map(torch.allclose, seen, right)), f"rank {rank}, iteration {number}"


# -- HOOK-018: memory in common


def tied():
    """A model of which a bias is a row of a weight."""
    model = models.Sum()
    tie(model)
    return model


def tie(model):
    model.layers[1].bias.data = model.layers[0].weight.data[0]


def tie_ahead(model):
    """What is stepped first shares memory with a weight that backward needs to go on."""
    model[3].bias.data = model[2].weight.data[0]


def train_with_one_memory(ctx, how, later, tie):
    """Why this is refused, and once more; what each iteration before leaves. Memory is shared from ``later`` on."""
    pairs, seen = [], []

    def train():
        pairs.append(pair_of(ctx, how))
        for number in range(READY + 2):
            if number == later:
                tie(pairs[0].model)
            seen.append(iteration(pairs[0], number))

    error = caught(train)
    return error, caught(iteration, pairs[0], len(seen)) if error and pairs else error, seen


@check("HOOK-018", worlds=(1, 2, 3, 4), scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_parameters_with_memory_in_common_are_stepped_as_by_one_process_or_refused(ranks, scenario):
    each = replace(scenario, ddp={"bucket_cap_mb": 1e-6})  # a bucket for each parameter
    ways = [(replace(scenario, model=tied), None, tie, 0.0), (each, 0, tie, 0.0), (each, READY, tie, 0.0)]
    ways.append((replace(each, model=overlapping.small), READY, tie_ahead, 1e-6))
    for how, later, tying, tolerance in ways:
        errors, errors_again, runs = zip(*ranks(train_with_one_memory, how, later, tying), strict=True)
        if any(errors):
            assert_refused(errors, Exception, "memory")
            assert_refused(errors_again, Exception, "memory")
        alone = overlapping.Alone(how, ranks.world)
        for number, seen in enumerate(zip(*runs, strict=True)):
            if number == later:
                tying(alone.model)
            alone.follow(seen, tolerance=tolerance)
