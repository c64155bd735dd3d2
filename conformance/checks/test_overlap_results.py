"""What the overlapped step computes: the ordinary optimizer's parameters, whenever a backward returns."""

import time
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models, overlapping
from conformance.fixtures.overlapping import ITERATIONS, Overlap, Seen, assert_as_alone, iterations, pair_of
from conformance.fixtures.sharding import WARM_UP, Overlapped
from conformance.fixtures.training import private

HOOKS = {"sequential": False, "interleaved": True}
# what the interleaved hook computes can also be seen where nothing is left to chance: over a hook that has averaged a
# bucket before it returns
WAYS = {"sequential": Overlap(), "interleaved": Overlap(True, hook=overlapping.settled)}
DEADLINE_S = 5.0


def several_ways(how):
    """Buckets of one layer each, whole and sharded, and one bucket for all; gradients inside buckets or not."""
    views = {"gradient_as_bucket_view": True}
    return [how, replace(how, shard=True, ddp=views), replace(how, ddp={"bucket_cap_mb": 25, **views})]


class UnevenLayers(nn.Module):
    """Layers of several sizes side by side; what each adds has a factor of its own, so no two have one gradient."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width) for width in (3, 4, 2, 3, 4)])
        for index, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, float(index))

    def forward(self, x):
        return torch.cat([(index + 1) * layer(x) for index, layer in enumerate(self.layers)], dim=1)


def train_each(ctx, ways):
    group = overlapping.group_of(ctx)
    return [iterations(pair_of(ctx, how, group)) for how in ways]


@check("HOOK-018", "HOOK-019", scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_after_every_backward_parameters_are_those_of_one_process(ranks, scenario):
    ways = several_ways(Overlap(scenario))
    for how, *runs in zip(ways, *ranks(train_each, ways), strict=True):
        assert True in assert_as_alone(runs, how)


def train_what_only_the_hook_keeps(ctx, how):
    return iterations(replace(pair_of(ctx, how), zero=None))


@check("HOOK-018", "HOOK-019", scenarios=WAYS, worlds=(2,), deadline_s=DEADLINE_S)
def test_an_optimizer_that_nobody_but_its_hook_keeps_is_stepped(ranks, scenario):
    assert True in assert_as_alone(ranks(train_what_only_the_hook_keeps, scenario), scenario)


@check("HOOK-018", worlds=MANY, deadline_s=DEADLINE_S)
def test_states_are_there_when_the_buckets_turn_out_otherwise_than_expected(ranks):
    how = Overlap(model=models.SumBackwards)
    assert True in assert_as_alone([run for [run] in ranks(train_each, [how])], how)


class Layouts(nn.Module):
    """A layer beside parameters that are not a row of numbers, or of none; no gradient depends on a weight."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.across = nn.Parameter(torch.arange(12.0).view(3, 4).t())
        self.single = nn.Parameter(torch.ones(()))
        self.nothing = nn.Parameter(torch.ones(0, 4))
        ramp = torch.arange(16.0).view(2, 4, 1, 2)
        self.last = nn.Parameter(ramp.contiguous(memory_format=torch.channels_last))
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        parts = self.layer(x).sum(), (x @ self.across).sum(), x.sum() * self.single, (self.nothing * x).sum()
        ramp = torch.arange(16.0).view(2, 4, 1, 2)
        return torch.stack([*parts, (self.last * ramp * x.view(1, 4, 1, 1)).sum()])


@check("HOOK-018", worlds=MANY, deadline_s=DEADLINE_S, scenarios=WAYS)
def test_parameters_of_every_layout_are_stepped_element_by_element(ranks, scenario):
    ways = [replace(way, model=Layouts) for way in several_ways(scenario)]
    for how, *runs in zip(ways, *ranks(train_each, ways), strict=True):
        assert True in assert_as_alone(runs, how)


def from_the_last(model):
    return list(model.parameters())[::-1]


def without_the_last_part():
    model = models.Parts()
    model.use = "ab"
    return model


@check("HOOK-018", worlds=MANY, deadline_s=DEADLINE_S, scenarios=WAYS)
def test_parameters_that_a_static_graph_leaves_out_stay_where_they_are(ranks, scenario):
    how = replace(scenario, model=without_the_last_part, optimizer="decay", ddp={"static_graph": True})
    ways = [how, replace(how, listed=from_the_last)]
    for way, *runs in zip(ways, *ranks(train_each, ways), strict=True):
        assert True in assert_as_alone(runs, way)
    kept_gradient_is_stepped(ranks, how)


def train_with_a_kept_gradient(ctx, how):
    """The user gives the parameters that no forward uses a gradient, alike on all ranks; what each iteration leaves."""
    pair, found = pair_of(ctx, how), []
    for number in range(ITERATIONS):
        pair.ddp.zero_grad(set_to_none=True)
        for parameter in pair.model.parts["c"].parameters():
            parameter.grad = torch.full_like(parameter, 8.0)
        overlapping.loss(pair.ddp(pair.batch(number))).backward()
        found.append(Seen(overlapping.gradients(pair.model), overlapping.parameters(pair.model)))
    return found


class AloneWithAKeptGradient(overlapping.Alone):
    def _average(self, number, micro):
        average = super()._average(number, micro)
        kept = {n: torch.full_like(p, 8.0) for n, p in self.model.named_parameters() if n.startswith("parts.c.")}
        return {**average, **kept}


def kept_gradient_is_stepped(ranks, how):
    alone = AloneWithAKeptGradient(how, ranks.world)
    for seen in zip(*ranks(train_with_a_kept_gradient, how), strict=True):
        alone.follow(seen)
    assert True in alone.updates


def train_with_a_slow_owner(ctx, how):
    """One rank after the other takes its time over every partial step, so that its parameters are sent late."""
    pair = overlapping.warmed(ctx, how)
    seen = iterations(pair, 1)  # the optimizer is there by now
    step = private(pair.zero, "optim").step
    slow = 0

    def slowly(*args, **kwargs):
        time.sleep(0.05 if ctx.rank == slow else 0)
        return step(*args, **kwargs)

    pair.zero.optim.step = slowly
    for number in range(1, 4):
        slow = number % ctx.world
        seen.append(overlapping.iteration(pair, number))
    return seen


@check("HOOK-019", worlds=MANY, scenarios=WAYS, deadline_s=DEADLINE_S)
def test_when_backward_returns_a_slow_owners_parameters_have_arrived(ranks, scenario):
    # two buckets: Gloo carries two broadcasts at a time, so neither can have to wait for the other
    runs = ranks(train_with_a_slow_owner, replace(scenario, model=partial(models.Sum, 2)))
    last = runs[-1]
    assert len({str(mine.parameters) for mine in last}) == len(last), "an iteration without an update"
    for rank, run in enumerate(runs):
        for number, (mine, theirs) in enumerate(zip(run, last, strict=True)):
            assert mine.parameters == theirs.parameters, f"rank {rank}, iteration {number}"


@check("HOOK-019", "HOOK-023", "HOOK-035", deadline_s=DEADLINE_S)
def test_interleaved_with_gradients_at_hand_parameters_are_those_of_one_process(ranks):
    ways = several_ways(WAYS["interleaved"])
    for how, *runs in zip(ways, *ranks(train_each, ways), strict=True):
        assert True in assert_as_alone(runs, how)


@check("HOOK-023", deadline_s=DEADLINE_S)
def test_each_piece_of_a_bucket_is_stepped_with_its_own_gradients(ranks):
    how = Overlap(shard=True, model=UnevenLayers)
    assert True in assert_as_alone([run for [run] in ranks(train_each, [how])], how)


def train_on_squares(ctx, ways):
    group = overlapping.group_of(ctx)
    return [iterations(pair_of(ctx, how, group), measure=overlapping.squares) for how in ways]


@check("HOOK-018", "HOOK-022", scenarios=WAYS, deadline_s=DEADLINE_S)
def test_momentum_decay_and_step_counts_are_those_of_one_step_an_iteration(ranks, scenario):
    # more buckets than ranks: whoever steps a bucket must leave its other ones alone, and count the iteration once
    ways = [replace(scenario, optimizer=name, model=overlapping.small) for name in ("decay", "adam")]
    for how, *runs in zip(ways, *ranks(train_on_squares, ways), strict=True):
        # another order of the same sums: a few roundings, which Adam's quotients enlarge
        assert True in assert_as_alone(runs, how, overlapping.squares, tolerance=2e-4)


def step_some(ctx):
    """Train, then step every other parameter of the shard by hand; where the model then differs from one process's."""
    overlapped = Overlapped(ctx, "SGD with momentum and decay", layers=8)
    gaps = list(overlapped.train_many(range(WARM_UP + 1)).values())
    owned = private(overlapped.zero, "optim").param_groups[0]["params"]
    given = {id(parameter): torch.full_like(parameter, 2.0) for parameter in owned[::2]}
    for parameter, twin in zip(overlapped.model.parameters(), overlapped.alone.model.parameters(), strict=True):
        twin.grad = given.get(id(parameter))
    overlapped.alone.optimizer.step()
    private(overlapped.zero, "_local_step")(gradients=[given.get(id(parameter)) for parameter in owned])
    return gaps, len(given), overlapped.alone.gap(overlapped.model)


@check("HOOK-022", worlds=(1, 2), deadline_s=DEADLINE_S)
def test_a_local_step_moves_the_parameters_that_it_gets_a_gradient_for_and_no_others(ranks):
    for gaps, stepped, gap in ranks(step_some):
        assert not gaps
        assert stepped > 1
        assert gap is None


@check("HOOK-020", worlds=MANY, deadline_s=DEADLINE_S)
def test_both_hooks_leave_the_same_parameters(ranks):
    ways = [replace(how, model=overlapping.small, hook=overlapping.settled) for how in WAYS.values()]
    for sequential, interleaved in ranks(train_on_squares, ways):
        assert interleaved == sequential
        assert sequential[0].parameters != sequential[-1].parameters


# -- HOOK-021


def train_and_step(ctx, interleaved):
    """Train with and without calls of ``step``; what the calls returned and how often each was spoken of."""
    group = overlapping.group_of(ctx)
    plain = iterations(pair_of(ctx, Overlap(interleaved), group))
    pair = pair_of(ctx, Overlap(interleaved), group)
    stepped, returned, notices, closed = [], [], [], []
    for number in range(ITERATIONS):
        seen = overlapping.iteration(pair, number)
        with overlapping.heard() as notes:
            returned.append(pair.zero.step(*[lambda: closed.append(1)] if number % 2 else []))
        notices.append(len(notes))
        stepped.append(Seen(seen.gradients, overlapping.parameters(pair.model)))
    return plain == stepped and not closed, returned, notices


@check("HOOK-021", worlds=(2, 3), deadline_s=DEADLINE_S)
def test_calling_step_changes_nothing_and_is_warned_of_each_time(ranks):
    for same, returned, notices in ranks(train_and_step, False):
        assert same, "with calls of step() in between, training went another way, or a closure was called"
        assert returned == [None] * ITERATIONS
        assert notices == [1] * ITERATIONS


# -- HOOK-046


def accumulate(ctx, how):
    """Two backward passes an iteration, the first without communication; what the first did to the parameters."""
    pair = pair_of(ctx, how)
    moved, seen = [], []
    for number in range(ITERATIONS):
        pair.ddp.zero_grad(set_to_none=True)
        before = overlapping.parameters(pair.model)
        with pair.ddp.no_sync():
            overlapping.loss(pair.ddp(pair.batch(2 * number))).backward()
        moved.append(overlapping.parameters(pair.model) != before)
        overlapping.loss(pair.ddp(pair.batch(2 * number + 1))).backward()
        seen.append(Seen(overlapping.gradients(pair.model), overlapping.parameters(pair.model)))
    return moved, seen


@check("HOOK-046", scenarios=WAYS, deadline_s=DEADLINE_S)
def test_without_communication_nothing_is_stepped_and_then_once_with_the_sum(ranks, scenario):
    found = ranks(accumulate, scenario)
    assert [any(moved) for moved, _ in found] == [False] * ranks.world
    alone = overlapping.Alone(scenario, ranks.world)
    for seen in zip(*[run for _, run in found], strict=True):
        alone.follow(seen, micro=2)
    assert True in alone.updates
