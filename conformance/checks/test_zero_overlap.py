"""A sharded optimizer that is stepped inside DDP's backward: its state, its group, its settings, idle ranks."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import assert_refused
from conformance.fixtures.sharding import WARM_UP, Overlapped, Reference, in_two_groups, sharded, some_parameters
from conformance.fixtures.training import numbers
from conformance.ranks import caught

INITIALISED = WARM_UP + 1  # after so many iterations every implementation has begun to update


def ask_too_early(ctx):
    parameters = some_parameters(ctx)
    saved = Reference(parameters, "Adam").optimizer.state_dict()
    zero = sharded(ctx, parameters, "Adam", overlap_with_ddp=True)
    return [caught(act) for act in (zero.state_dict, lambda: zero.load_state_dict(saved), zero.consolidate_state_dict)]


@check("ZERO-024", worlds=(1, 2, 3))
def test_the_state_is_refused_before_there_is_one(ranks):
    results = ranks(ask_too_early)
    for place, what in enumerate(("state_dict", "load_state_dict", "consolidate_state_dict")):
        errors = [mine[place] for mine in results]
        assert all(error is not None and error.is_a(RuntimeError) for error in errors), f"{what}: {errors}"


def add_a_group(ctx):
    overlapped = Overlapped(ctx)
    zero, more = overlapped.zero, [nn.Parameter(torch.ones(2, device=ctx.device))]
    early = caught(zero.add_param_group, {"params": more})
    counts = [len(zero.param_groups)]
    gaps = overlapped.train_many(range(INITIALISED))
    late = caught(zero.add_param_group, {"params": more})
    return early, late, [*counts, len(zero.param_groups)], gaps | overlapped.train_many([INITIALISED])


@check("ZERO-025", worlds=MANY, deadline_s=10)
def test_a_group_cannot_be_added_and_the_refusal_changes_nothing(ranks):
    results = ranks(add_a_group)
    for errors in ([early for early, *_ in results], [late for _, late, *_ in results]):
        assert_refused(errors, RuntimeError)
    for _, _, counts, gaps in results:
        assert counts == [1, 1]
        assert gaps == {}


def change_groups(ctx, change):
    """What is raised, if groups are changed amid training, or where parameters are not those of one process."""
    gaps = {}

    def train():
        overlapped = Overlapped(ctx, "SGD with momentum and decay", grouped=in_two_groups)
        gaps.update(overlapped.train_many(range(INITIALISED)))
        for optimizer in (overlapped.zero, overlapped.alone.optimizer):
            change(optimizer.param_groups)
        gaps.update(overlapped.train_many(range(INITIALISED, INITIALISED + 2)))

    return caught(train), gaps


def move_the_first(groups):
    groups[1]["params"].append(groups[0]["params"].pop(0))


def move_the_last(groups):
    groups[1]["params"].insert(0, groups[0]["params"].pop())  # all of them stay in the order that they have


def swap(groups):
    groups.reverse()


def take_out(groups):
    groups[1]["params"].pop()


@check("ZERO-025", worlds=MANY, deadline_s=10)
def test_parameters_that_come_to_another_group_are_refused_or_stepped_with_its_settings(ranks):
    for change in (move_the_first, move_the_last, swap, take_out):
        errors, gaps = zip(*ranks(change_groups, change), strict=True)
        if any(errors):
            assert_refused(errors, RuntimeError, "group")
        else:
            assert gaps == ({},) * ranks.world, change.__name__


def train_two_groups(ctx):
    """Where several groups end: refused when built, refused later, or trained (with what differences)."""
    try:
        overlapped = Overlapped(ctx, "SGD with momentum and decay", grouped=in_two_groups)
    except (ValueError, RuntimeError) as error:
        return "at construction", str(error)
    gaps = {}
    for iteration in range(6):
        try:
            gaps[iteration] = overlapped.train(iteration)
        except RuntimeError as error:
            return "while training", str(error)
    return "trained", {iteration: gap for iteration, gap in gaps.items() if gap}


@check("ZERO-026", worlds=MANY, deadline_s=10)
def test_several_groups_are_refused_or_each_is_trained_with_its_own_settings(ranks):
    results = ranks(train_two_groups)
    for end, told in results:
        assert end == results[0][0], "the ranks disagree"
        assert told == {} if end == "trained" else "group" in told, f"{end}: {told}"
    if results[0][0] == "while training":
        ranks.at_limit("several parameter groups are accepted and refused only in the initialising backward")


def change_trainability(ctx, thaw, layers, tries):
    """What the next iterations raise after a change."""
    frozen = nn.Parameter(torch.ones(3, device=ctx.device), requires_grad=False)
    overlapped = Overlapped(ctx, layers=layers, frozen=[frozen])
    gaps = overlapped.train_many(range(INITIALISED))
    changed = frozen if thaw else next(overlapped.model.parameters())
    changed.requires_grad_(thaw)

    errors = [caught(overlapped.backward, iteration) for iteration in range(INITIALISED, INITIALISED + tries)]
    return gaps, errors, numbers([("frozen", frozen)])["frozen"]


def refused_everywhere(ranks, layers):
    results = ranks(change_trainability, True, layers, 1)
    assert [gaps for gaps, *_ in results] == [{}] * ranks.world
    assert_refused([errors[0] for _, errors, _ in results], RuntimeError)
    for _, _, values in results:
        assert values == [1.0] * 3


@check("ZERO-027", worlds=(2, 3), deadline_s=10)
def test_thawing_a_parameter_is_refused_at_the_next_step(ranks):
    refused_everywhere(ranks, layers=4 * ranks.world)


@check("ZERO-027", worlds=(3,), deadline_s=10)
def test_thawing_a_parameter_is_refused_on_ranks_that_own_nothing_too(ranks):
    refused_everywhere(ranks, layers=1)


@check("ZERO-027", worlds=(2, 3), deadline_s=10)
def test_freezing_a_parameter_is_refused_at_the_next_step_or_the_next_forward(ranks):
    # DDP waits for the gradient of the frozen parameter, so the step may not even be reached
    for gaps, errors, _ in ranks(change_trainability, False, 4, 2):
        assert gaps == {}
        first = next((error for error in errors if error is not None), None)
        assert_refused([first], RuntimeError)


def idle_owners(ctx, cap, layers):
    overlapped = Overlapped(ctx, "SGD with momentum and decay", cap=cap, layers=layers)
    return overlapped.train_many(range(INITIALISED + 1))


@check("ZERO-030", worlds=MANY, deadline_s=10)
def test_with_fewer_buckets_than_ranks_all_ranks_are_updated(ranks):
    one_bucket, one_layer = (25, 4), (1e-4, 1)
    for (cap, layers), told in ranks.each(idle_owners, (one_bucket, one_layer), spread=True):
        assert told == [{}] * ranks.world, f"cap {cap} MiB, {layers} layers"


def change_the_learning_rate(ctx, name):
    """Set lr to 0, then to another value, then let a scheduler halve it: what each iteration shows."""
    overlapped = Overlapped(ctx, name)
    gaps = overlapped.train_many(range(INITIALISED))
    optimizers = (overlapped.zero, overlapped.alone.optimizer)

    def set_rate(rate):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate

    set_rate(0.0)
    before = numbers(overlapped.model.named_parameters())
    gaps |= overlapped.train_many([INITIALISED])
    stood = before == numbers(overlapped.model.named_parameters())
    set_rate(0.03125)
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) for optimizer in optimizers]
    for iteration in range(INITIALISED + 1, INITIALISED + 4):
        gaps |= overlapped.train_many([iteration])
        for scheduler in schedulers:
            scheduler.step()
    return gaps, stood


@check("ZERO-031", worlds=(2, 3), deadline_s=10)
def test_a_changed_learning_rate_takes_effect_in_the_next_backward(ranks):
    for name, told in ranks.each(change_the_learning_rate, ("SGD", "Adam")):
        for gaps, stood in told:
            assert stood, f"{name}: parameters moved at a learning rate of 0"
            assert gaps == {}, name


def lower_the_learning_rate_from_the_start(ctx):
    """Another rate in every iteration, also in that in which buckets turn out otherwise and owners change."""
    overlapped, gaps = Overlapped(ctx, layers=5, model=models.SumBackwards), {}
    for iteration in range(INITIALISED + 1):
        for optimizer in (overlapped.zero, overlapped.alone.optimizer):
            optimizer.param_groups[0]["lr"] = 0.125 * 0.5**iteration
        gaps |= overlapped.train_many([iteration])
    return gaps, overlapped.zero.param_groups[0]["lr"]


@check("ZERO-031", worlds=(2, 3), deadline_s=10)
def test_a_learning_rate_that_changes_while_owners_do_takes_effect_and_stays(ranks):
    for gaps, shown in ranks(lower_the_learning_rate_from_the_start):
        assert gaps == {}, "SGD, from the start"
        assert shown == 0.125 * 0.5**INITIALISED


def schedule_each(ctx, ways):
    return [schedule_the_learning_rate(ctx, *way) for way in ways]


def schedule_the_learning_rate(ctx, name, schedule, listed):
    """A scheduler halves the rate after each iteration of a context, of both or of the model; the gap at its end."""
    overlapped = Overlapped(ctx, name)
    gaps = overlapped.train_many(range(INITIALISED))
    alone = overlapped.alone
    alone.schedule = [INITIALISED + count for count in schedule]

    def scheduler_of(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    scheduler = scheduler_of(overlapped.zero)
    with ctx.subject.Join([overlapped.ddp, overlapped.zero] if listed else [overlapped.ddp]):
        for iteration in range(INITIALISED, alone.schedule[ctx.rank]):
            overlapped.backward(iteration)
            scheduler.step()
    scheduler = scheduler_of(alone.optimizer)
    for iteration in range(INITIALISED, max(alone.schedule)):
        alone.step(iteration)
        scheduler.step()
    return gaps, alone.gap(overlapped.model)


@check("ZERO-031", worlds=(2, 3), deadline_s=10)
def test_a_changed_learning_rate_reaches_ranks_that_have_joined(ranks):
    kinds = ("SGD", tuple(1 + rank for rank in range(ranks.world))), ("Adam", (3, 1, 2)[: ranks.world])
    ways = [(*kind, listed) for kind in kinds for listed in (True, False)]
    for (name, schedule, listed), *told in zip(ways, *ranks(schedule_each, ways), strict=True):
        assert told == [({}, None)] * ranks.world, f"{name}, {schedule}, optimizer listed: {listed}"


def checkpoint(ctx, name):
    """Save, compare with the ordinary optimizer, load into it and back, and go on."""
    overlapped = Overlapped(ctx, name)
    gaps = overlapped.train_many(range(INITIALISED))
    zero, alone = overlapped.zero, overlapped.alone.optimizer
    zero.consolidate_state_dict()
    saved = [zero.state_dict() if ctx.rank == 0 else None]
    dist.broadcast_object_list(saved, src=0)
    theirs = alone.state_dict()
    wrong = [
        f"{key} of parameter {index}"
        for index, state in theirs["state"].items()
        for key, value in state.items()
        if not torch.equal(saved[0]["state"][index][key].cpu(), value.cpu())
    ]
    alone.load_state_dict(copy.deepcopy(saved[0]))
    gaps |= overlapped.train_many([INITIALISED])  # so that loading has something to put back
    with torch.no_grad():
        for parameter, kept in zip(overlapped.model.parameters(), overlapped.alone.model.parameters(), strict=True):
            parameter.zero_()
            kept.zero_()
    zero.load_state_dict(copy.deepcopy(saved[0]))
    alone.load_state_dict(copy.deepcopy(saved[0]))
    return gaps | overlapped.train_many(range(INITIALISED + 1, INITIALISED + 3)), wrong


# asserted although it is a documented limit: with three ranks and more, some wait for ever for those that were refused
@check("ZERO-032", worlds=(2, 3), deadline_s=10)
def test_once_initialised_the_state_can_be_saved_loaded_and_gone_on_with(ranks):
    for name, told in ranks.each(checkpoint, ("SGD with momentum and decay", "Adam")):
        assert told == [({}, [])] * ranks.world, name
