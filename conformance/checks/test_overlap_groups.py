"""An overlapped step where DDP and the optimizer are on different groups, and where DDP moves to another one."""

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models, overlapping
from conformance.fixtures.comm_hooks import TINY_MIB
from conformance.fixtures.observing import assert_refused
from conformance.fixtures.overlapping import factory_of, group_of, hook_of, optimizer_of
from conformance.fixtures.training import ddp, parameters, private
from conformance.ranks import caught
from conformance.subjects import NotOffered

ROWS, COLUMNS = ([0, 1], [2, 3]), ([0, 2], [1, 3])
BEFORE, AFTER = 3, 3  # iterations


def mine(ctx, several):
    """The group of these that this rank is in; all ranks make all of them."""
    made = [group_of(ctx, members) for members in several]
    return next(group for group, members in zip(made, several, strict=True) if ctx.rank in members)


def train_and_move(ctx, crossed, interleaved):
    """DDP averages over rows; the optimizer's shards lie on the same rows or across them. Then DDP moves.

    On the same rows the optimizer has DDP's own group, or (interleaved) another one of the same ranks.

    The error of a reduction to owners, the weights after each iteration, and the groups on which something was sent
    after the move.
    """
    factory = factory_of(ctx, interleaved)
    group, elsewhere = mine(ctx, ROWS), mine(ctx, ROWS)
    model = ddp(ctx, models.Sum().to(ctx.device), bucket_cap_mb=TINY_MIB, process_group=group)
    shared = mine(ctx, COLUMNS if crossed else ROWS) if crossed or interleaved else group
    zero = optimizer_of(ctx, model.parameters(), "momentum", shared)
    refused = caught(factory, None, model, zero, reduce_scatter=True)
    if refused is not None and refused.is_a(TypeError):
        raise NotOffered(ctx.subject, "overlap hooks that reduce to owners")
    now, left = [group], 0

    def reduce(_state, bucket):
        return ctx.subject.default_hooks.allreduce_hook(now[0], bucket)

    model.register_comm_hook(None, factory(reduce, model, zero))
    seen = []
    for iteration in range(BEFORE + AFTER):
        if iteration == BEFORE:
            private(model, "_update_process_group")(elsewhere)
            now[0] = elsewhere
            left = len(ctx.trace())
        model.zero_grad()
        model(models.divisible(ctx.rank % 2, iteration).to(ctx.device)).sum().backward()
        seen.append(parameters(model.module))
    return refused, seen, {event.group for event in ctx.trace()[left:]}


def alone():
    model = models.Sum()
    kind, settings = overlapping.OPTIMIZERS["momentum"]
    optimizer, seen = kind(model.parameters(), **settings), []
    for iteration in range(BEFORE + AFTER):
        batches = [models.divisible(place, iteration) for place in (0, 1)]
        for name, mean in oracle.averaged_gradients(model, batches, 2).items():
            model.get_parameter(name).grad = mean
        optimizer.step()
        seen.append(parameters(model))
    return seen


@check("HOOK-018", worlds=(4,), deadline_s=15, beyond=False)
def test_an_overlapped_step_follows_ddp_to_another_group_only_if_both_are_on_the_same_ranks(ranks):
    expected = alone()
    for crossed, interleaved in ((False, False), (False, True), (True, False)):
        for rank, (refused, seen, groups) in enumerate(ranks(train_and_move, crossed, interleaved, trace=True)):
            assert (refused is not None) == crossed, f"rank {rank}: reducing to owners on other ranks: {refused}"
            assert seen == expected, f"rank {rank}, {crossed=}, {interleaved=}"
            assert len(groups) == 1 + crossed, f"rank {rank}, {crossed=}: both groups are used: {groups}"


def consolidate_behind_a_move(ctx):
    """In a context before the first backward on a smaller group, and after it: refusals, and numbers of states."""
    group, other = group_of(ctx), group_of(ctx, range(1, ctx.world))
    model, now, told = ddp(ctx, models.Sum().to(ctx.device), process_group=group), [group], []
    zero = optimizer_of(ctx, model.parameters(), "momentum", group)

    def reduce(_state, bucket):
        return overlapping.settled(now[0], bucket)

    def train(*numbers):
        for number in numbers:
            model(models.divisible(ctx.rank, number).to(ctx.device)).sum().backward()

    def consolidate():
        zero.consolidate_state_dict(0)
        return len(zero.state_dict()["state"]) if ctx.rank == 1 else None

    model.register_comm_hook(None, hook_of(ctx, model, zero, hook=reduce))
    train(*range(BEFORE + 1))
    if ctx.rank == 0:
        return None
    private(model, "_update_process_group")(other)
    now[0] = other
    with ctx.subject.Join([model, zero]):
        told.append(caught(lambda: told.append(consolidate())))
        train(BEFORE + 1)
        told.append(consolidate())
    return told


@check("HOOK-045", worlds=MANY)
def test_between_a_move_and_the_next_backward_a_consolidation_is_whole_or_refused(ranks):
    for rank, (*early, late) in enumerate(ranks(consolidate_behind_a_move)[1:], 1):
        whole = len(list(models.Sum().parameters())) if rank == 1 else None
        assert late == whole, f"rank {rank}: {late} states behind the next backward"
        if early[-1] is None:
            assert early[0] == whole, f"rank {rank}: {early[0]} states before the next backward"
        else:
            assert_refused(early, RuntimeError, "group")


def list_a_pair_on_two_groups(ctx):
    """A model and the optimizer that its hook steps, each on a group of its own of the same ranks, in one context."""
    errors = []
    for interleaved in (False, True):
        group, other = group_of(ctx), group_of(ctx)
        model = ddp(ctx, models.Sum().to(ctx.device), process_group=group)
        zero = optimizer_of(ctx, model.parameters(), "sgd", other)
        model.register_comm_hook(group, hook_of(ctx, model, zero, interleaved))
        errors += [caught(ctx.subject.Join, [model, zero]), caught(ctx.subject.Join, [zero, model])]
    return errors


@check("JOIN-015", worlds=MANY)
def test_a_model_and_its_optimizer_on_different_groups_cannot_be_listed_together(ranks):
    for errors in ranks(list_a_pair_on_two_groups):
        assert_refused(errors, ValueError)
