"""Uneven inputs: which hooks run how often and in which order, what the handshake says, and what it adds up to."""

import itertools
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist

from conformance.api.checking import MANY, check
from conformance.api.oracle import active_ranks
from conformance.api.schedules import deficits, last_joiners, linear, one_long, promised_log, shapes
from conformance.fixtures.joinables import adder, collector, recorder, total, upper_ranks, walker
from conformance.fixtures.models import divisible_scalar, scalar
from conformance.fixtures.training import ddp, gradient, scalar_means

NAMES = ("a", "b", "c")


def train_each(ctx, several, late=False):
    """One fresh context per schedule: the shared log of its joinables, and what each notification added up to."""
    seen = []
    for schedule in several:
        log, handles, sums = [], [], []
        joinables = [recorder(ctx, name, log) for name in NAMES]
        with ctx.subject.Join(joinables):
            for _ in range(schedule[ctx.rank]):
                handles.append(joinables[0].step())
                if not late:
                    sums.append(total(handles[-1]))
                for other in joinables[1:]:
                    other.step()
        seen.append((log, [total(handle) for handle in handles] if late else sums))
    return seen


def by_schedule(ranks, function, several, *args, **options):
    """Run all schedules in one run; each schedule with what every rank saw of it, by rank."""
    return zip(several, zip(*ranks(function, several, *args, **options), strict=True), strict=True)


@check("JOIN-025", "JOIN-032")
def test_main_hooks_make_up_each_ranks_deficit_whoever_ends_first(ranks, schedules):
    def examine(several):
        for schedule, seen in by_schedule(ranks, train_each, several):
            for name in NAMES:
                assert [log.count(f"{name} main") for log, _ in seen] == deficits(schedule), schedule

    schedules.examine(examine)


@check("JOIN-032", worlds=MANY, deadline_s=15)
def test_a_rank_without_any_input_shadows_everything(ranks):
    several = [tuple(0 if rank == idle else 1 + rank for rank in range(ranks.world)) for idle in range(ranks.world)]
    for idle, (schedule, seen) in enumerate(by_schedule(ranks, train_each, several)):
        log, sums = seen[idle]
        assert sums == []
        assert log == promised_log(schedule, idle, NAMES)


@check("JOIN-026")
def test_even_inputs_run_no_main_hook_and_every_post_hook(ranks):
    several = [(count,) * ranks.world for count in (0, 1, 2, 5)]
    for _, seen in by_schedule(ranks, train_each, several):
        for log, _ in seen:
            assert not [entry for entry in log if "main" in entry]
            assert log[-3:] == ["a post True", "b post True", "c post True"]


@check("JOIN-027", "JOIN-028")
def test_hooks_run_in_list_order_mains_every_iteration_and_posts_once_at_the_end(ranks, schedules):
    def examine(several):
        for schedule, seen in by_schedule(ranks, train_each, several):
            for rank, (log, _) in enumerate(seen):
                assert log == promised_log(schedule, rank, NAMES), f"rank {rank} of {schedule}"

    schedules.examine(examine)


def linger(ctx, schedule):
    """The slowest rank lingers in its last iteration; how many ranks had left their loops when this one finalised."""
    found = []
    a = recorder(ctx, post=lambda *_: found.append(ctx.store.add("left", 0)))
    with ctx.subject.Join([a]):
        for _ in range(schedule[ctx.rank]):
            a.step()
        if schedule[ctx.rank] == max(schedule):
            while ctx.store.add("left", 0) < ctx.world - 1:  # until everybody else is on the way out
                time.sleep(0.005)
            time.sleep(0.1)
        ctx.store.add("left", 1)
    return found


@check("JOIN-029", worlds=MANY, deadline_s=15)
def test_no_post_hook_starts_before_the_slowest_rank_has_left_its_loop(ranks):
    for schedule, told in ranks.each(linger, [one_long(ranks.world, slowest) for slowest in (0, ranks.world - 1)]):
        assert told == [[ranks.world]] * ranks.world, f"schedule {schedule}"


@check("JOIN-030")
def test_every_rank_tied_for_last_is_told_that_it_is_a_last_joiner(ranks, schedules):
    def examine(several):
        for schedule, seen in by_schedule(ranks, train_each, several):
            told = [[entry for entry in log if entry.startswith("a post")] for log, _ in seen]
            assert told == [[f"a post {last}"] for last in last_joiners(schedule)], schedule

    schedules.examine(examine)


def train_a_model_beside(ctx, several):
    """A model and, after it in the list, a joinable of the user's; what the latter was told at the end.

    Where they idle, gradients are only accumulated, and the joinable does not step: there is nothing to shadow.
    """
    told = []
    for schedule, idles in several:
        model, log = ddp(ctx, scalar()), []
        beside = recorder(ctx, "a", log)
        with ctx.subject.Join([model, beside]), model.no_sync() if idles else nullcontext():
            for _ in range(schedule[ctx.rank]):
                model(torch.ones(1, 1)).sum().backward()
                if not idles:
                    beside.step()
        told.append([entry for entry in log if entry.startswith("a post")])
    return told


@check("JOIN-030")
def test_beside_a_model_too_only_ranks_that_came_last_are_told_so(ranks):
    several = [(2,) * ranks.world, linear(ranks.world), linear(ranks.world)[::-1]]
    pairs = list(itertools.product(several, (False, True)))
    for (schedule, idles), told in by_schedule(ranks, train_a_model_beside, pairs):
        assert list(told) == [[f"a post {last}"] for last in last_joiners(schedule)], f"{schedule}, {idles=}"


def train_many_beside_a_model(ctx, schedule, count):
    """A model and many more joinables, which step in turn; the shared log, and the model's gradients."""
    model, log, seen = ddp(ctx, scalar()), [], []
    beside = [recorder(ctx, f"{place}", log) for place in range(count)]
    with ctx.subject.Join([model, *beside]):
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            model(divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradient(model.module.weight))
            for each in beside:
                each.step()
    return log, seen


@check("JOIN-027", "JOIN-034", worlds=MANY, deadline_s=15)
def test_beside_a_model_there_may_be_many_joinables(ranks):
    schedule, count = linear(ranks.world, 1), 24
    for rank, (log, seen) in enumerate(ranks(train_many_beside_a_model, schedule, count)):
        assert log == promised_log(schedule, rank, [str(place) for place in range(count)]), f"rank {rank}"
        data = [[divisible_scalar(one, i).item() for one in active_ranks(schedule, i)] for i in range(schedule[rank])]
        assert seen == [sum(each) / ranks.world for each in data], f"rank {rank}"


@check("JOIN-031")
def test_each_notification_adds_up_to_the_number_of_active_ranks(ranks, schedules):
    def examine(several):
        for late in (False, True):  # waited for at once, or after the context has ended
            for schedule, seen in by_schedule(ranks, train_each, several, late):
                for rank, (_, sums) in enumerate(seen):
                    assert sums == [len(active_ranks(schedule, i)) for i in range(schedule[rank])], schedule

    schedules.examine(examine, drawn=False)


def notify_before_a_model(ctx, several):
    found = []
    for schedule in several:
        model, beside, sums = ddp(ctx, scalar()), recorder(ctx), []
        with ctx.subject.Join([beside, model]):
            for _ in range(schedule[ctx.rank]):
                handle = beside.step()
                model(torch.ones(1, 1)).sum().backward()
                sums.append((total(handle), handle.result()[0].tolist()))
        found.append(sums)
    return found


@check("JOIN-031")
def test_before_a_model_too_notifications_add_up_to_the_number_of_active_ranks(ranks):
    several = [(2,) * ranks.world, linear(ranks.world), linear(ranks.world)[::-1]]
    for schedule, seen in by_schedule(ranks, notify_before_a_model, several):
        for rank, sums in enumerate(seen):
            actives = [len(active_ranks(schedule, i)) for i in range(schedule[rank])]
            assert sums == [(active, [active]) for active in actives], schedule


def value(rank, iteration):
    """What a rank contributes: small whole numbers, different for every rank and iteration."""
    return float(1 + 3 * rank + 10 * iteration)


def communicate_each(ctx, several, upper):
    """Three joinables that communicate in every step, in one context per schedule; their final states."""
    group = dist.new_group(upper_ranks(ctx.world)) if upper else ctx.group
    if upper and ctx.rank == 0:
        return [None] * len(several)
    mine, seen = dist.get_rank(group), []
    for schedule in several:
        joinables = [adder(ctx, group=group), walker(ctx, group=group), collector(ctx, group=group)]
        with ctx.subject.Join(joinables):
            for iteration in range(schedule[mine]):
                for joinable in joinables:
                    joinable.step(value(mine, iteration))
        added, walked, collected = joinables
        seen.append({"total": added.total.tolist(), "places": walked.places, "rows": collected.rows})
    return seen


def communicated_alone(schedule):
    """The same in one process: an absent rank adds nothing, moves nothing, and is missing from the rows."""
    places, rows, added = [0.0], [], 0.0
    for iteration in range(max(schedule)):
        here = active_ranks(schedule, iteration)
        sum_here = sum(value(rank, iteration) for rank in here)
        added += sum_here
        places.append(places[-1] * 0.5 + sum_here)
        rows.append([value(rank, iteration) if rank in here else -1.0 for rank in range(len(schedule))])
    return {"total": [added] * 3, "places": places, "rows": rows}


@check("JOIN-034")
def test_joinables_that_communicate_reach_on_every_rank_what_one_process_computes(ranks, schedules):
    def examine(several):
        for schedule, seen in by_schedule(ranks, communicate_each, several, False):
            for rank, state in enumerate(seen):
                assert state == communicated_alone(schedule), f"rank {rank} of {schedule}"

    schedules.examine(examine)


@check("JOIN-034", worlds=(3, 4))
def test_joinables_of_a_subgroup_communicate_within_it_alone(ranks):
    several = list(shapes(ranks.world - 1).values())
    for schedule, (outside, *inside) in by_schedule(ranks, communicate_each, several, True):
        assert outside is None
        assert inside == [communicated_alone(schedule)] * len(inside), schedule


def events_of_a_context(ctx, schedule):
    joinables = [adder(ctx), collector(ctx)]
    with ctx.subject.Join(joinables):
        for iteration in range(schedule[ctx.rank]):
            for joinable in joinables:
                joinable.step(value(ctx.rank, iteration))
    return [(each.op, each.reduce_op, each.dtype, tuple(each.shape)) for each in ctx.trace()]


ADDING, GATHERING = ("all_reduce", "SUM", "float32", (3,)), ("all_gather", "", "float32", (1,))


@check("JOIN-027", "JOIN-034", worlds=MANY)
def test_live_and_shadowing_ranks_start_the_same_collectives_in_the_same_order(ranks):
    schedule = linear(ranks.world, 1)
    first, *others = ranks(events_of_a_context, schedule, trace=True)
    assert all(trace == first for trace in others)
    assert ADDING in first
    count = first[: first.index(ADDING)]  # of what kind and how many messages is the implementation's affair
    rounds = [*count, ADDING, GATHERING] * max(schedule)
    assert first[: len(rounds)] == rounds
    assert [each[0] for each in first[len(rounds) :]][-2:] == ["all_reduce", "broadcast"], "what the post hooks send"


@check("JOIN-031", worlds=MANY)
def test_every_count_is_an_all_reduce_that_sums(ranks):
    schedule = linear(ranks.world, 1)
    for trace in ranks(events_of_a_context, schedule, trace=True):
        steps = [place for place, event in enumerate(trace) if event == ADDING]
        assert len(steps) == max(schedule)
        begins = [0, *(place + 2 for place in steps)]  # behind the step of the second joinable
        for begin, end in zip(begins, [*steps, -2], strict=True):  # last the one that finds everybody joined
            sent = [event[:2] for event in trace[begin:end]]
            assert ("all_reduce", "SUM") in sent, f"after {begin} collectives the count is {sent}"


def train_beside_each_number(ctx, schedule, numbers):
    return [train_many_beside_a_model(ctx, schedule, count) for count in numbers]


@check("JOIN-025", worlds=(2, 3), deadline_s=20, beyond=False)
def test_a_context_may_hold_any_number_of_joinables_beside_a_model(ranks):
    numbers, schedule = range(1, 36), (1, *[2] * (ranks.world - 1))
    means = scalar_means(schedule)
    for rank, told in enumerate(ranks(train_beside_each_number, schedule, numbers)):
        for count, (log, seen) in zip(numbers, told, strict=True):
            missed = [log.count(f"{place} main") for place in range(count)]
            assert missed == [deficits(schedule)[rank]] * count, f"rank {rank}, {count} beside the model"
            assert seen == means[: schedule[rank]], f"rank {rank}, {count} beside the model"


def talker(ctx, times):
    """Reduces several times an iteration, and says so each time; its hook makes up for all of them."""
    sums = []

    def reduce(value):
        whole = torch.full((1,), value, device=ctx.device)
        dist.all_reduce(whole, group=ctx.group)
        return whole.item()

    beside = recorder(ctx, "talker", main=lambda _: [reduce(0.0) for _ in range(times)])

    def step():
        for _ in range(times):
            beside.notify()
            sums.append(reduce(1.0))

    return beside, step, sums


def train_beside_who_notifies_otherwise(ctx, schedule):
    """Beside a model: one that never notifies, having nothing to say, and one that notifies twice in an iteration.

    Of the iterations every second one is under ``no_sync``, where the model itself says nothing.
    """
    model, means = ddp(ctx, scalar()), []
    silent = recorder(ctx, "silent")
    beside, talk, sums = talker(ctx, 2)
    with ctx.subject.Join([model, silent, beside]):
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            with model.no_sync() if iteration % 2 else nullcontext():
                model(divisible_scalar(ctx.rank, iteration)).sum().backward()
            means.append(gradient(model.module.weight))
            talk()
    return [each.log.count(f"{each.name} main") for each in (silent, beside)], sums, means


@check("JOIN-025", worlds=MANY, deadline_s=15, beyond=False)
def test_beside_a_model_main_hooks_run_once_an_iteration_however_often_somebody_notifies(ranks):
    several = (linear(ranks.world, 1), linear(ranks.world)[::-1])
    for schedule, told in ranks.each(train_beside_who_notifies_otherwise, several):
        for rank, (missed, sums, means) in enumerate(told):
            assert missed == [deficits(schedule)[rank]] * 2, f"rank {rank} of {schedule}"
            active = [len(active_ranks(schedule, iteration)) for iteration in range(schedule[rank])]
            assert sums == [float(count) for count in active for _ in range(2)], f"rank {rank} of {schedule}"
            own = [divisible_scalar(rank, iteration).item() for iteration in range(schedule[rank])]
            reduced = zip(scalar_means(schedule), own, strict=False)
            expected = [mine if place % 2 else mean for place, (mean, mine) in enumerate(reduced)]
            assert means == expected, f"rank {rank} of {schedule}"


def with_own_hook(ctx, base, log):
    """A subclass whose join hook is one of the user's around that of the class."""

    class Own(base):
        def join_hook(self, **kwargs):
            inner = super().join_hook(**kwargs)
            said = {"main": inner.main_hook, "post": inner.post_hook}

            class Around(ctx.subject.JoinHook):
                def main_hook(self):
                    log.append(f"{base.__name__} main")
                    said["main"]()

                def post_hook(self, is_last_joiner):
                    log.append(f"{base.__name__} post {is_last_joiner}")
                    said["post"](is_last_joiner)

            return Around()

    return Own


def train_with_own_hooks(ctx, schedule, divide):
    """A subclass of DDP with a hook of its own, alone in its context; and again with a patched hook of the class."""
    told = []
    for patched in (False, True):
        log = []
        kind = ctx.subject.DistributedDataParallel if patched else with_own_hook(
            ctx, ctx.subject.DistributedDataParallel, log
        )
        model, means = kind(scalar().to(ctx.device), process_group=ctx.group), []
        if patched:
            hook = model.join_hook(divide_by_initial_world_size=divide)
            hook.main_hook = counted(hook.main_hook, log)
            model.join_hook = lambda hook=hook, **_: hook
        with model.join(divide_by_initial_world_size=divide):
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                model(divisible_scalar(ctx.rank, iteration)).sum().backward()
                means.append(gradient(model.module.weight))
        told.append((sum("main" in entry for entry in log), means))
    return told


def counted(function, log):
    def call():
        log.append("main")
        function()

    return call


@check("JOIN-025", "DDPJ-007", worlds=MANY, deadline_s=15, beyond=False)
def test_a_model_may_have_a_join_hook_of_the_users_around_its_own(ranks):
    several = itertools.product((linear(ranks.world, 1), linear(ranks.world)[::-1]), (True, False))
    for (schedule, divide), results in ranks.each(train_with_own_hooks, several, spread=True):
        for rank, told in enumerate(results):
            data = [
                [divisible_scalar(one, i).item() for one in active_ranks(schedule, i)] for i in range(schedule[rank])
            ]
            means = [sum(each) / (ranks.world if divide else len(each)) for each in data]
            assert told == [(deficits(schedule)[rank], means)] * 2, f"rank {rank} of {schedule}, {divide=}"


def train_two_with_own_hooks(ctx, schedule):
    """Of two models that take turns, of which only the first iteration is synchronised: the main hooks of each."""
    logs = [], []
    kinds = [with_own_hook(ctx, ctx.subject.DistributedDataParallel, log) for log in logs]
    several = [kind(scalar().to(ctx.device), process_group=ctx.group) for kind in kinds]
    with ctx.subject.Join(several):
        for iteration in range(schedule[ctx.rank]):
            for model in several:
                with model.no_sync() if iteration else nullcontext():
                    model(divisible_scalar(ctx.rank, iteration)).sum().backward()
    return [sum("main" in entry for entry in log) for log in logs]


@check("JOIN-025", worlds=MANY, beyond=False)
def test_iterations_of_two_models_that_a_lone_rank_runs_are_counted_each_by_itself(ranks):
    schedule = (*[1] * (ranks.world - 1), 6)
    assert ranks(train_two_with_own_hooks, schedule) == [[5, 5]] * (ranks.world - 1) + [[0, 0]]
