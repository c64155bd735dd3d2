"""Another process group: members of it average over it from now on, everybody else keeps the old one."""

from contextlib import nullcontext

import torch
import torch.distributed as dist

from conformance.api.checking import MANY, NotRun, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import TINY_MIB, alone, done, hooked, on_this_machine, steps, summing
from conformance.fixtures.observing import mine, trained, wrapped
from conformance.fixtures.training import private
from conformance.subjects import Unsupported

COUNT = 3


def members_of(world):
    """All ranks but rank 0, so that ranks within the group are other numbers than outside; both ranks of two."""
    return list(range(1, world)) if world > 2 else list(range(world))


def rebuilt(model):
    """Whether the order of buckets has been agreed; None where the subject does not tell."""
    return getattr(model, "_has_rebuilt_buckets", None)


# -- DDP-162, DDP-163, DDP-164


def train_then_move(ctx, members, options=None):
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, **(options or {}))
    told = {"before": steps(ctx, model, count=COUNT), "rebuilt": [rebuilt(model)]}
    group = dist.new_group(members)
    private(model, "_update_process_group")(group)
    told["rebuilt"].append(rebuilt(model))
    if ctx.rank in members:
        steps(ctx, model, count=1)
        told["rebuilt"].append(rebuilt(model))
        told["after"] = steps(ctx, model, count=COUNT)
        told["rebuilt"].append(rebuilt(model))
        told["group"] = model.process_group is group, model.join_process_group is group
        told["rank"] = private(model, "_distributed_rank") == group.rank()
    else:
        told["kept"] = model.process_group is ctx.group
    return told


@check("DDP-162", worlds=MANY, beyond=False)
def test_members_average_over_the_new_group_and_divide_by_its_size(ranks):
    members = members_of(ranks.world)
    for rank, told in enumerate(ranks(train_then_move, members)):
        assert told["before"] == alone(range(ranks.world), count=COUNT), f"rank {rank}"
        if rank in members:
            assert told["after"] == alone(members, count=COUNT), f"rank {rank}"
            assert told["group"] == (True, True), "process_group and join_process_group"
            assert told["rank"], "the rank is not that within the new group"


def move_a_static_graph(ctx, members):
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, static_graph=True)
    before = steps(ctx, model, count=COUNT)
    private(model, "_update_process_group")(dist.new_group(members))
    return before, steps(ctx, model, count=COUNT) if ctx.rank in members else None


@check("DDP-162", worlds=MANY, beyond=False)
def test_members_average_a_static_graph_over_the_new_group_too(ranks):
    members = members_of(ranks.world)
    for rank, (before, after) in enumerate(ranks(move_a_static_graph, members)):
        assert before == alone(range(ranks.world), count=COUNT), f"rank {rank}"
        assert after == (alone(members, count=COUNT) if rank in members else None), f"rank {rank}"


@check("DDP-163", worlds=(3, 4))
def test_a_rank_outside_the_new_group_keeps_the_old_one(ranks):
    members = members_of(ranks.world)
    told = ranks(train_then_move, members)
    assert [each.get("kept") for each in told] == [None if rank in members else True for rank in range(ranks.world)]


@check("DDP-164", worlds=(3, 4))  # of two ranks none is outside the new group
def test_buckets_are_rebuilt_after_the_move(ranks):
    members = members_of(ranks.world)
    for rank, told in enumerate(ranks(train_then_move, members)):
        if None in told["rebuilt"]:
            raise Unsupported("no attribute tells whether buckets were rebuilt")
        after = [False, True] if rank in members else []  # one iteration tells the order, and then they are rebuilt
        assert told["rebuilt"] == [True, False, *after], f"rank {rank}"


@check("DDP-164", worlds=(3, 4))
def test_buckets_of_a_static_graph_are_rebuilt_after_the_move(ranks):
    members = members_of(ranks.world)
    for rank, told in enumerate(ranks(train_then_move, members, {"static_graph": True})):
        if None in told["rebuilt"]:
            raise Unsupported("no attribute tells whether buckets were rebuilt")
        assert told["rebuilt"][1] is False, f"rank {rank}"
        assert told["rebuilt"][-1] is (rank in members), f"rank {rank}"


def move_tables(ctx, members):
    """The gradients of two sparse tables, by row, in the world and then in the new group."""
    model, told = wrapped(ctx, models.TwoTables()), []

    def train():
        for _ in range(COUNT):
            model.zero_grad(set_to_none=True)
            model(torch.tensor([ctx.rank, 5])).backward()
            told.append([each.weight.grad.to_dense()[:, 0].tolist() for each in (model.module.table, model.module.bag)])

    train()
    private(model, "_update_process_group")(dist.new_group(members))
    if ctx.rank in members:
        train()
    return told


@check("DDP-162", worlds=MANY, beyond=False)
def test_rows_of_sparse_tables_are_averaged_over_the_new_group_too(ranks):
    members = members_of(ranks.world)

    def averaged(some):
        return [[12.0 / len(some) * (row in some) + 12.0 * (row == 5) for row in range(6)]] * 2

    for rank, told in enumerate(ranks(move_tables, members)):
        expected = [averaged(range(ranks.world))] * COUNT
        assert told == expected + [averaged(members)] * COUNT * (rank in members), f"rank {rank}"


def count_across_the_move(ctx, members):
    """Two iterations in the world and two in the new group; each rank's counter grows by a step of its own."""
    model = wrapped(ctx, models.Counting(1.0 + 10 * ctx.rank))
    for _ in range(2):
        trained(model, mine(ctx))
    private(model, "_update_process_group")(dist.new_group(members))
    if ctx.rank in members:
        for _ in range(2):
            trained(model, mine(ctx))
    return model.module.seen


@check("DDP-162", worlds=MANY)
def test_buffers_come_from_the_first_rank_of_the_new_group(ranks):
    members = members_of(ranks.world)
    step = 1.0 + 10 * members[0]
    for rank, seen in enumerate(ranks(count_across_the_move, members)):
        assert seen == [0.0, 1.0, *([1.0 + step, 1.0 + 2 * step] if rank in members else [])], f"rank {rank}"


OPTIONS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "a search": {"find_unused_parameters": True},
    "a static graph": {"static_graph": True},
    "a static graph, views": {"static_graph": True, "gradient_as_bucket_view": True},
}


def grow(ctx, parts):
    """Two groups train by themselves, then become one, and part again; with every option.

    Before that the last forward of the one group is synchronised, and that of the other is not.
    """
    groups = [dist.new_group(members) for members in parts]
    mine = next(group for group, members in zip(groups, parts, strict=True) if ctx.rank in members)
    told = {}
    for name, options in OPTIONS.items():
        module = models.Sum()
        module.register_buffer("count", torch.full((1,), 1.0 + ctx.rank))
        model = wrapped(ctx, module, bucket_cap_mb=TINY_MIB, process_group=mine, **options)
        told[name] = []
        steps(ctx, model, count=1 if ctx.rank == ctx.world - 1 else COUNT)  # the parts are not equally far
        with model.no_sync() if ctx.rank == ctx.world - 1 else nullcontext():
            model(models.divisible(ctx.rank, 0).to(ctx.device))
        for group in (ctx.group, mine):
            private(model, "_update_process_group")(group)
            told[name].append((steps(ctx, model, count=COUNT), module.count.item()))
    return told


@check("DDP-162", "DDP-164", worlds=MANY, beyond=False)
def test_groups_that_grow_and_shrink_average_over_whoever_is_in_them(ranks):
    parts = [list(range(ranks.world - 1)), [ranks.world - 1]]
    together = alone(range(ranks.world), count=COUNT)
    for rank, told in enumerate(ranks(grow, parts)):
        own = alone(next(members for members in parts if rank in members), count=COUNT)
        assert told == {name: [(together, 1.0), (own, 1.0)] for name in OPTIONS}, f"rank {rank}"


def join_around_a_move(ctx, members, schedules):
    """Uneven inputs in the world, then in a smaller group, then in the world again; each in a context of its own."""
    smaller = dist.new_group(members)
    told = {}
    for name, options in OPTIONS.items():
        model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, **options)
        told[name] = []
        for turn, group in enumerate((ctx.group, smaller, ctx.group)):
            if turn:
                private(model, "_update_process_group")(group if turn != 1 or ctx.rank in members else None)
            seen = []
            if turn != 1 or ctx.rank in members:
                with model.join():
                    seen = steps(ctx, model, count=schedules[turn][ctx.rank])
            told[name].append(seen)
            ctx.meet(f"{name} {turn}")
    return told


@check("DDP-162", worlds=MANY, beyond=False)
def test_uneven_inputs_before_and_after_a_move_are_averaged_over_the_group_of_the_time(ranks):
    world, members = ranks.world, members_of(ranks.world)
    schedules = [[start + way * rank for rank in range(world)] for start, way in ((2, 1), (4, -1), (1, 1))]
    told = ranks(join_around_a_move, members, schedules)
    for turn, schedule in enumerate(schedules):
        inside = members if turn == 1 else range(world)
        expected = unevenly_alone(inside, schedule)
        for rank in inside:
            for name in OPTIONS:
                assert told[rank][name][turn] == expected[: schedule[rank]], f"rank {rank}, {name}, turn {turn}"


def unevenly_alone(inside, schedule):
    """By iteration, what one process averages over the ranks of a group that have so many inputs."""
    expected = []
    for iteration in range(max(schedule)):
        active = [rank for rank in inside if schedule[rank] > iteration]
        expected += alone(active, divisor=len(inside), count=iteration + 1)[-1:] if active else []
    return expected


def move_under_a_context(ctx, members, schedules):
    """A context that was built in the world is entered in a smaller group, and once more in the world."""
    smaller, model = dist.new_group(members), wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    context, told = model.join(), []
    for group, schedule in zip((smaller, ctx.group), schedules, strict=True):
        seen = []
        if group is ctx.group or ctx.rank in members:
            private(model, "_update_process_group")(group)
            with context:
                seen = steps(ctx, model, count=schedule[ctx.rank])
        told.append(seen)
        ctx.meet(f"turn {len(told)}")
    return told


@check("DDP-162", worlds=(3, 4), deadline_s=8, beyond=False)
def test_a_context_that_was_built_before_a_move_averages_over_the_group_of_the_time(ranks):
    world, members = ranks.world, members_of(ranks.world)
    schedules = [[1 + rank for rank in range(world)], [world - rank for rank in range(world)]]
    told = ranks(move_under_a_context, members, schedules)
    for turn, (inside, schedule) in enumerate(zip((members, range(world)), schedules, strict=True)):
        expected = unevenly_alone(inside, schedule)
        for rank in inside:
            assert told[rank][turn] == expected[: schedule[rank]], f"rank {rank}, turn {turn}"


def change_partners_under_a_context(ctx, schedule):
    """Of three ranks, two that train with the first one build contexts, and then move to a pair of their own."""
    pairs = [dist.new_group(pair) for pair in ((0, 1), (0, 2), (1, 2))]
    first = [wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, process_group=pairs[place]) for place in range(2)
             if ctx.rank in (0, 1 + place)]  # fmt: skip
    if ctx.rank == 0:
        return []
    context = first[0].join()
    private(first[0], "_update_process_group")(pairs[2])
    with context:
        return steps(ctx, first[0], count=schedule[ctx.rank])


@check("DDP-162", worlds=(3,), deadline_s=8, beyond=False)
def test_a_context_that_was_built_before_a_change_of_partners_averages_over_that_of_the_time(ranks):
    schedule = [0, 3, 1]
    told, expected = ranks(change_partners_under_a_context, schedule), unevenly_alone((1, 2), schedule)
    for rank, seen in enumerate(told):
        assert seen == expected[: schedule[rank]], f"rank {rank}"


def meet_under_a_context(ctx, parts, schedule):
    """Two groups, in which unequally many models have been made, move to one of all ranks and train unevenly."""
    (group,) = [group for group, inside in ((dist.new_group(part), part) for part in parts) if ctx.rank in inside]
    if ctx.rank in parts[0]:
        steps(ctx, wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, process_group=group), count=1)
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB, process_group=group)
    private(model, "_update_process_group")(ctx.group)
    with model.join():
        return steps(ctx, model, count=schedule[ctx.rank])


@check("DDP-162", worlds=(3,), deadline_s=8, beyond=False)
def test_models_of_different_groups_that_have_moved_to_one_are_joined_in_it(ranks):
    schedule = [2, 1, 3]
    expected = unevenly_alone(range(ranks.world), schedule)
    for rank, seen in enumerate(ranks(meet_under_a_context, ((0, 1), (2,)), schedule)):
        assert seen == expected[: schedule[rank]], f"rank {rank}"


# -- DDP-165: hooks


class Place:
    """The state of a hook: the group it works on, None for none."""

    def __init__(self, group):
        self.group = group


class Holder:
    """The same under the name that states of the library have."""

    def __init__(self, group):
        self.process_group = group


def averaging(place, bucket):
    group = place.group if isinstance(place, Place) else getattr(place, "process_group", place)
    if group is None:
        return done(bucket.buffer())
    bucket.buffer().div_(group.size())
    return summing(group, bucket)


def keep_or_change_the_hooks_group(ctx, members):
    """A hook with a part of the ranks as its group, before and after a move of the model; then the user moves it."""
    part, everybody = dist.new_group(members), dist.new_group(list(range(ctx.world)))
    place = Place(part if ctx.rank in members else None)
    model = hooked(ctx, place, averaging)
    seen = [steps(ctx, model, count=COUNT)]
    private(model, "_update_process_group")(everybody)
    seen.append(steps(ctx, model, count=COUNT))
    place.group = everybody
    return [*seen, steps(ctx, model, count=COUNT)]


@check("DDP-165", worlds=MANY, beyond=False)
def test_a_hook_keeps_its_group_until_its_user_gives_it_another(ranks):
    members = members_of(ranks.world)[-2:]
    for rank, (before, after, moved) in enumerate(ranks(keep_or_change_the_hooks_group, members)):
        own = alone(members if rank in members else [rank], count=COUNT)
        assert (before, after) == (own, own), f"rank {rank}"
        assert moved == alone(range(ranks.world), count=COUNT), f"rank {rank}"


def keep_the_state_across_moves(ctx, members):
    """A group itself as the state, and one that holds a group by its usual name; models that move, there and back."""
    part, everybody = dist.new_group(members), dist.new_group(list(range(ctx.world)))
    own = part if ctx.rank in members else None
    seen = []
    for state in (own, Holder(own)):
        model = hooked(ctx, state, averaging)
        for group in (everybody, ctx.group):
            steps(ctx, model, count=2)
            private(model, "_update_process_group")(group)
            seen.append(steps(ctx, model, count=COUNT))
        seen.append(state is own or state.process_group is own)
    return seen


@check("DDP-165", worlds=MANY, beyond=False)
def test_a_state_that_is_or_holds_a_group_is_left_as_it_is(ranks):
    members = members_of(ranks.world)[-2:] if ranks.world > 2 else [1]
    for rank, seen in enumerate(ranks(keep_the_state_across_moves, members)):
        own = alone(members if rank in members else [rank], count=COUNT)
        assert seen == [own, own, True] * 2, f"rank {rank}"


def move_beside_the_machines_group(ctx, members):
    """Post-local SGD that is told of no groups finds the ranks of its machine: before a move, after it, and back."""
    library, told = ctx.subject.post_localSGD_hook, []
    model = hooked(ctx, library.PostLocalSGDState(None, None, 1), library.post_localSGD_hook)
    try:
        told.append((steps(ctx, model, count=COUNT), on_this_machine()))
    except (RuntimeError, ValueError) as error:
        if ctx.device.type == "cpu" and "is available" in str(error):
            raise NotRun(f"{ctx.subject.name} finds a machine's ranks only where there are accelerators") from error
        raise
    for group, inside in ((dist.new_group(members), ctx.rank in members), (ctx.group, True)):
        private(model, "_update_process_group")(group)
        told.append((steps(ctx, model, count=COUNT), on_this_machine(group)) if inside else None)
    return told


@check("COMM-028", "DDP-162", worlds=(3, 4), beyond=False)
def test_the_machines_group_that_a_hook_has_found_is_found_anew_after_a_move(ranks):
    members = members_of(ranks.world)
    everywhere = alone(range(ranks.world), count=COUNT)
    for rank, (first, *later) in enumerate(ranks(move_beside_the_machines_group, members)):
        seen, machine = first
        assert seen == everywhere[:1] + alone(machine, count=COUNT)[1:], f"rank {rank}"
        assert [moved is not None for moved in later] == [rank in members, True]
        for seen, machine in filter(None, later):
            assert seen == alone(machine, count=COUNT), f"rank {rank}"


def move_with_builtin_hook(ctx, members):
    model = wrapped(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    private(model, "_register_builtin_comm_hook")(ctx.subject.BuiltinCommHookType.ALLREDUCE)
    steps(ctx, model, count=COUNT)
    private(model, "_update_process_group")(dist.new_group(members))
    return steps(ctx, model, count=COUNT) if ctx.rank in members else None


@check("DDP-165", worlds=(3, 4), deadline_s=4, beyond=False)
def test_a_built_in_hook_has_no_state_to_change_and_follows_the_model(ranks):
    members = members_of(ranks.world)
    expected = alone(members, count=COUNT)
    told = ranks(move_with_builtin_hook, members)
    assert told == [expected if rank in members else None for rank in range(ranks.world)]
