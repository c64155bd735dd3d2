"""A sharded optimizer's state is consolidated inside a join context, while some ranks have run out of inputs."""

from conformance.api import schedules as scenario
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB, assert_refused
from conformance.fixtures.sharding import Alone, Reference, give, sharded, some_parameters, whole
from conformance.fixtures.training import parameters
from conformance.ranks import caught


def consolidate_unevenly(ctx, schedule, to):
    """Before each iteration but the first, and after the last: refusals, and where state and parameters end.

    The first step is left out, as a gradient scaler may do: what a step tells the ranks, they do not know then. Where
    all have the same inputs, rank 0 leaves while the others consolidate. For rank 0 the optimizer is listed last.
    """
    even = min(schedule) == max(schedule)
    model = models.Sum().to(ctx.device)
    alone = Alone(ctx, model, "Adam", schedule)
    ddp = ctx.subject.DistributedDataParallel(model, bucket_cap_mb=TINY_MIB)
    zero = sharded(ctx, model.parameters(), "Adam")
    refusals, wrong = [], []

    def consolidate():
        refusals.append(caught(zero.consolidate_state_dict, to))
        if ctx.rank == to and refusals == [None] * len(refusals):
            wrong.append(differing(zero.state_dict(), alone.optimizer.state_dict()))

    with ctx.subject.Join([zero, ddp] if to else [ddp, zero]):
        for iteration in range(schedule[ctx.rank]):
            if iteration:
                consolidate()
            zero.zero_grad()
            ddp(whole(ctx.rank, iteration).to(ctx.device)).sum().backward()
            if iteration:
                zero.step()
                alone.step(iteration)
        if schedule[ctx.rank] == max(schedule) and not (even and ctx.rank == 0):
            consolidate()
    for iteration in range(max(1, schedule[ctx.rank]), max(schedule)):
        alone.step(iteration)
    if ctx.rank == to and not any(refusals):
        wrong.append(differing(zero.state_dict(), alone.optimizer.state_dict()))
    return refusals, [each for each in wrong if each], parameters(model) == parameters(alone.model)


def differing(ours, theirs):
    """What of our state is not bit by bit that of the ordinary optimizer."""
    found = [] if ours["state"].keys() == theirs["state"].keys() else [f"states of {list(ours['state'])}"]
    for index, state in theirs["state"].items():
        mine = ours["state"].get(index, {})
        found += [f"{key} of parameter {index}" for key in state if not equal(mine.get(key), state[key])]
    return found


def equal(mine, theirs):
    return mine is not None and (mine.cpu() == theirs.cpu()).all().item()


@check("ZERO-020", worlds=MANY, deadline_s=10, beyond=False)
def test_live_ranks_may_consolidate_after_others_have_joined_or_are_refused(ranks):
    last = ranks.world - 1
    one_short, rank_0_long, last_long = (
        scenario.one_short(ranks.world, 0), scenario.one_long(ranks.world, 0), scenario.one_long(ranks.world, last)
    )  # fmt: skip
    # the state goes to a live rank, and to one that has joined
    even = (2,) * ranks.world
    several = ((one_short, last), (rank_0_long, 0), (rank_0_long, last), (last_long, 0), (even, 0))
    for (schedule, to), told in ranks.each(consolidate_unevenly, several, spread=True):
        if any(any(refusals) for refusals, *_ in told):
            longest = max(range(ranks.world), key=lambda rank: (schedule[rank], rank))
            assert_refused(told[longest][0], RuntimeError)
            ranks.at_limit("the state cannot be consolidated while ranks have joined")
            continue
        for rank, (_, wrong, same) in enumerate(told):
            assert wrong == [], f"rank {rank}, schedule {schedule}, consolidated to {to}"
            assert same, f"the parameters of rank {rank} differ, schedule {schedule}, consolidated to {to}"


def consolidate_in_hooks(ctx, schedule, to, before):
    """Hooks ``before`` or after each step do so: how many states are found, the gap at the end, and wrong states."""
    params = some_parameters(ctx)
    reference, zero, found = Reference(params, "Adam"), sharded(ctx, params, "Adam"), []

    def consolidate(*_):
        zero.consolidate_state_dict(to)
        if ctx.rank == to:
            found.append(len(zero.state_dict()["state"]))

    register = zero.register_step_pre_hook if before else zero.register_step_post_hook
    with register(consolidate), ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):
            give(params, iteration)
            zero.step()
    if before:
        zero.consolidate_state_dict(to)
    reference.train(range(max(schedule)))
    wrong = differing(zero.state_dict(), reference.optimizer.state_dict()) if ctx.rank == to else []
    return found, reference.gap(params), wrong


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_a_hook_of_each_step_may_consolidate_on_joined_ranks_too(ranks):
    last = ranks.world - 1
    rank_0_long, last_long = (scenario.one_long(ranks.world, long, 1) for long in (0, last))
    several = (rank_0_long, 0, False), (rank_0_long, last, False), (last_long, 0, True)
    for (schedule, to, before), results in ranks.each(consolidate_in_hooks, several, spread=True):
        for rank, told in enumerate(results):
            counts = [0 if before and iteration == 0 else 5 for iteration in range(max(schedule))]
            right = counts if rank == to else [], None, []
            assert told == right, f"rank {rank}, schedule {schedule}, consolidated to {to}, {before=}"
