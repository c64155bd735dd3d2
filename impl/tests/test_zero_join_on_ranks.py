"""Our ZeroRedundancyOptimizer inside a join context, compared with one process after every iteration."""

import copy
import itertools

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from conformance.ranks import caught

from .zero_training import OPTIMIZERS, Alone, differences, give_gradients, groups_of, halving, parameters

pytestmark = pytest.mark.slow


def one_context(ctx, group, mine, name, options):
    """Join([zero]) with ``mine`` iterations on this rank; says where it parted from one process."""
    zero_class, join = ctx.subject.ZeroRedundancyOptimizer, ctx.subject.Join
    several, scheduled = options.get("several", False), options.get("scheduled", False)
    how = {key: options[key] for key in ("unused", "clip") if key in options}
    kind, settings = OPTIMIZERS[name]
    params = parameters()
    alone = Alone(params, name, several, scheduled)
    zero = zero_class(
        groups_of(params, several), kind, process_group=group,
        parameters_as_bucket_view=options.get("views", False), **settings,
    )
    scheduler = halving(zero) if scheduled else None
    wrong = []
    with join([zero]):
        for iteration in range(mine):
            give_gradients(params, iteration, **how)
            zero.step()
            if scheduler is not None:
                scheduler.step()
            alone.step(iteration, **how)
            wrong += [f"iteration {iteration}: {text}" for text in differences(params, alone)]
    for iteration in range(mine, options["longest"]):
        alone.step(iteration, **how)
    return wrong + [f"at the end: {text}" for text in differences(params, alone)]


def many_contexts(ctx, schedules, name, options):
    found = {}
    for schedule in schedules:
        options = {**options, "longest": max(schedule)}
        wrong = one_context(ctx, ctx.group, schedule[ctx.rank], name, options)
        if wrong:
            found[schedule] = wrong
    return found


PAIRS = [pair for pair in itertools.product(range(5), repeat=2) if max(pair)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_pair_of_counts_equals_one_process(run, name):
    assert run(many_contexts, PAIRS, name, {}, world=2) == [{}, {}]


VARIANTS = [
    {"views": True},
    {"several": True},
    {"scheduled": True},
    {"scheduled": True, "several": True, "unused": True, "views": True},
    {"unused": True},
    {"clip": 0.5},
]


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(options))
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_variants_equal_one_process(run, name, options):
    schedules = [(1, 2, 4), (4, 2, 1), (0, 3, 0), (2, 0, 2), (3, 3, 3)]
    assert run(many_contexts, schedules, name, options, world=3) == [{}] * 3


def test_four_ranks(run):
    schedules = [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 0, 2), (1, 4, 4, 1)]
    assert run(many_contexts, schedules, "adam", {"scheduled": True, "unused": True}, world=4) == [{}] * 4


def in_a_subgroup(ctx, schedule, options):
    """Global ranks 1 and 2 share the state; 0 takes no part."""
    group = torch.distributed.new_group([1, 2])
    if ctx.rank == 0:
        return []
    return one_context(ctx, group, schedule[ctx.rank - 1], "momentum", {**options, "longest": max(schedule)})


@pytest.mark.parametrize("schedule", [(1, 3), (3, 1), (0, 2)])
def test_a_subgroup_whose_ranks_are_not_global_ranks(run, schedule):
    assert run(in_a_subgroup, schedule, {"scheduled": True}, world=3) == [[], [], []]


def two_optimizers(ctx, schedule):
    """Two ZeROs with different settings in one context, stepped one after the other."""
    zero_class, join = ctx.subject.ZeroRedundancyOptimizer, ctx.subject.Join
    params = [parameters(3), parameters(4)]
    alone = [Alone(params[0], "adam"), Alone(params[1], "momentum")]
    made = [OPTIMIZERS["adam"], OPTIMIZERS["momentum"]]
    zeros = [zero_class(p, kind, **settings) for p, (kind, settings) in zip(params, made, strict=True)]
    with join(zeros):
        for iteration in range(schedule[ctx.rank]):
            for place, zero in enumerate(zeros):
                give_gradients(params[place], iteration + place)
                zero.step()
    for iteration in range(max(schedule)):
        for place in range(2):
            alone[place].step(iteration + place)
    return [text for place in range(2) for text in differences(params[place], alone[place])]


@pytest.mark.parametrize("schedule", [(1, 3), (3, 0)])
def test_two_optimizers_in_one_context(run, schedule):
    assert run(two_optimizers, schedule, world=2) == [[], []]


def stepping_behind_one_iteration(ctx, schedule):
    """One iteration of a model, which leads, and then unequally many steps of its optimizer alone."""
    model = ctx.subject.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    torch.nn.init.ones_(model.module.weight)
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.25)
    with ctx.subject.Join([model, zero]):
        model(torch.ones(1, 1)).sum().backward()
        for _ in range(schedule[ctx.rank]):
            zero.step()
    return model.module.weight.item()


@pytest.mark.parametrize("schedule", [(1, 3), (4, 2)])
def test_an_optimizer_may_step_on_when_its_model_iterates_no_more(run, schedule):
    assert run(stepping_behind_one_iteration, schedule, world=2) == [1.0 - 0.25 * max(schedule)] * 2


def freezing_while_others_have_joined(ctx, views):
    """Live ranks freeze and unfreeze parameters of which the joined rank knows nothing."""
    params = parameters()
    params[4].requires_grad_(False)
    kind, settings = OPTIMIZERS["momentum"]
    alone = Alone(params, "momentum")
    zero = ctx.subject.ZeroRedundancyOptimizer(params, kind, parameters_as_bucket_view=views, **settings)

    def give(iteration, flags, targets):
        give_gradients(targets, iteration)
        for place, flag in enumerate(flags):
            targets[place].requires_grad_(flag)
            if not flag:
                targets[place].grad = None

    flags = [(True, True, True, True, False), (False, True, True, True, False), (False, True, True, False, True)]
    with ctx.subject.Join([zero]):
        for iteration in range(1 if ctx.rank == 0 else 3):
            give(iteration, flags[iteration], params)
            zero.step()
    for iteration in range(3):
        give(iteration, flags[iteration], alone.params)
        alone.optimizer.step()
    return differences(params, alone)


@pytest.mark.parametrize("views", [False, True])
def test_what_live_ranks_freeze_reaches_joined_ranks(run, views):
    assert run(freezing_while_others_have_joined, views, world=3) == [[]] * 3


def with_a_closure(ctx, schedule):
    params = parameters()
    alone = Alone(params, "momentum")
    kind, settings = OPTIMIZERS["momentum"]
    zero = ctx.subject.ZeroRedundancyOptimizer(params, kind, **settings)
    returned = []
    with ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):

            def closure(iteration=iteration):
                give_gradients(params, iteration)
                return float(iteration)

            returned.append(zero.step(closure))
    for iteration in range(max(schedule)):
        alone.step(iteration)
    return returned, differences(params, alone)


def test_a_closure_runs_on_live_ranks_only(run):
    assert run(with_a_closure, (1, 3), world=2) == [([0.0], []), ([0.0, 1.0, 2.0], [])]


def consolidating_inside(ctx, target, early):
    """Rank 0 runs out after one step; the others consolidate before or after their second."""
    params = parameters()
    alone = Alone(params, "adam")
    kind, settings = OPTIMIZERS["adam"]
    zero = ctx.subject.ZeroRedundancyOptimizer(params, kind, **settings)
    with ctx.subject.Join([zero]):
        for iteration in range(1 if ctx.rank == 0 else 2):
            if iteration == 1 and early:
                zero.consolidate_state_dict(to=target)
            give_gradients(params, iteration)
            zero.step()
            if iteration == 1 and not early:
                zero.consolidate_state_dict(to=target)
    for iteration in range(1 if early else 2):
        alone.step(iteration)
    theirs = copy.deepcopy(alone.optimizer.state_dict()["state"])
    for iteration in range(1 if early else 2, 2):
        alone.step(iteration)
    if wrong := differences(params, alone):
        return wrong
    if ctx.rank != target:
        return []
    mine = zero.state_dict()["state"]
    return [
        (index, key)
        for index, state in theirs.items()
        for key, value in state.items()
        if not torch.equal(mine[index][key], value)
    ]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("target", [0, 1])
def test_live_ranks_can_consolidate_after_a_rank_has_joined(run, target, early):
    assert run(consolidating_inside, target, early, world=3) == [[]] * 3


def adding_inside(ctx):
    zero = ctx.subject.ZeroRedundancyOptimizer(parameters(), torch.optim.SGD, lr=0.1)
    with ctx.subject.Join([zero]):
        error = caught(zero.add_param_group, {"params": parameters(1)})
    return error.kinds[0]


def test_adding_a_group_inside_a_context_is_refused(run):
    assert run(adding_inside, world=2) == ["RuntimeError"] * 2


def loading_inside(ctx):
    params = parameters()
    zero = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.1)
    with ctx.subject.Join([zero]):
        error = caught(zero.load_state_dict, torch.optim.SGD(params).state_dict())
    zero.load_state_dict(torch.optim.SGD(params, lr=0.5).state_dict())
    return error.kinds[0], zero.param_groups[0]["lr"]


def test_a_state_is_loaded_behind_a_context_and_not_inside(run):
    assert run(loading_inside, world=2) == [("RuntimeError", 0.5)] * 2


def joined_rank_keeps(ctx):
    params = parameters()
    kind, settings = OPTIMIZERS["sgd"]
    zero = ctx.subject.ZeroRedundancyOptimizer(params, kind, **settings)
    mine = 1 if ctx.rank == 0 else 3
    with ctx.subject.Join([zero]):
        for iteration in range(mine):
            give_gradients(params, iteration)
            held = [parameter.grad for parameter in params]
            zero.step()
    return all(parameter.grad is before for parameter, before in zip(params, held, strict=True))


def test_a_joined_rank_keeps_its_gradients(run):
    assert run(joined_rank_keeps, world=2) == [True, True]


def throwing(ctx, schedule):
    params = parameters()
    alone = Alone(params, "momentum")
    kind, settings = OPTIMIZERS["momentum"]
    zero = ctx.subject.ZeroRedundancyOptimizer(params, kind, **settings)
    done = 0
    try:
        with ctx.subject.Join([zero], throw_on_early_termination=True):
            for iteration in range(schedule[ctx.rank]):
                give_gradients(params, iteration)
                zero.step()
                done += 1
    except RuntimeError:
        pass
    for iteration in range(done):
        alone.step(iteration)
    return done, differences(params, alone)


@pytest.mark.parametrize("schedule", [(1, 3), (2, 0)])
def test_in_throwing_mode_the_step_that_raises_changes_nothing(run, schedule):
    done = min(schedule)
    assert run(throwing, schedule, world=2) == [(done, []), (done, [])]


def count_for_all_optimizers(ctx):
    """How often a hook of all optimizers has heard of a step of this one, on ranks with one input and with three."""
    params, heard = parameters(), []
    zero = ctx.subject.ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.5)
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: heard.append(optimizer is zero))
    try:
        with ctx.subject.Join([zero]):
            for iteration in range(1 + 2 * ctx.rank):
                give_gradients(params, iteration)
                zero.step()
    finally:
        handle.remove()
    return heard.count(True)


def test_a_hook_of_all_optimizers_hears_of_the_steps_of_joined_ranks_too(run):
    assert run(count_for_all_optimizers, world=2) == [3, 3]


def leave_a_backward_out(ctx, schedule, without):
    """In iteration ``without`` all ranks step with the gradients of the one before; the weights, and one process's."""
    model, alone = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
    alone.load_state_dict(model.state_dict())
    ddp = ctx.subject.DistributedDataParallel(model)
    for each in (model, alone):
        torch.nn.init.ones_(each.weight)
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.25, momentum=0.5)
    ordinary = torch.optim.SGD(alone.parameters(), lr=0.25, momentum=0.5)
    with ctx.subject.Join([ddp, zero]):
        for iteration in range(schedule[ctx.rank]):
            loss = ddp(torch.full((1, 2), float(iteration + ctx.rank + 1) * ctx.world)).sum()
            if iteration != without:
                zero.zero_grad()
                loss.backward()
            zero.step()
    for iteration in range(max(schedule)):
        if iteration != without:
            active = [rank for rank, count in enumerate(schedule) if count > iteration]
            alone.weight.grad = torch.full((1, 2), float(sum(iteration + rank + 1 for rank in active)))
        ordinary.step()
    return model.weight.tolist(), alone.weight.tolist()


@pytest.mark.parametrize("schedule", [(2, 4, 4), (4, 4, 2), (2, 3, 4)])
def test_all_may_leave_a_backward_out_and_step_as_a_rank_runs_out(run, schedule):
    for found, right in run(leave_a_backward_out, schedule, 2, world=3):
        assert found == right
