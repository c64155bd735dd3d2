"""Gradients and weights under uneven inputs: always what one process computes from the documented rule."""

import itertools
from functools import partial

import torch

from conformance.api import oracle
from conformance.api import schedules as scenario
from conformance.api.checking import MANY, check
from conformance.fixtures import models, pairwise
from conformance.fixtures.training import (
    Job,
    assert_as_alone,
    ddp,
    expected,
    gradient,
    gradients,
    iterate,
    train,
    train_each,
)
from conformance.ranks import caught

TINY_MIB = 1e-4  # about 100 bytes: a layer or two a bucket
BY_ALL = {"divide_by_initial_world_size": True}
BY_ACTIVE = {"divide_by_initial_world_size": False}


def on_each(ranks, jobs):
    """One run for all jobs; compare each with one process."""
    for job, trained in zip(jobs, zip(*ranks(train_each, jobs), strict=True), strict=True):
        assert_as_alone(job, trained)


@check("DDPJ-007", worlds=MANY, beyond=False)
def test_gradients_are_the_sum_over_active_ranks_by_the_initial_world_size(ranks, schedules):
    def examine(several):
        pairs = [*zip(several, itertools.repeat({})), (several[-1], BY_ALL)]
        on_each(ranks, [Job(models.scalar, models.divisible_scalar, schedule, join=join) for schedule, join in pairs])

    schedules.examine(examine, drawn=False)


@check("DDPJ-008", worlds=MANY, beyond=False)
def test_gradients_are_the_sum_over_active_ranks_by_their_number(ranks, schedules):
    def examine(several):
        on_each(ranks, [Job(models.scalar, models.divisible_scalar, schedule, join=BY_ACTIVE) for schedule in several])

    schedules.examine(examine, drawn=False)


@check("DDPJ-009", "DDPJ-007", "DDPJ-008", worlds=MANY, beyond=False)
def test_every_bucket_of_a_joined_rank_adds_zeros(ranks, schedules):
    cap = {"bucket_cap_mb": TINY_MIB}

    def examine(several):
        jobs = [
            Job(partial(models.Sum, 5), models.divisible, schedule, ddp=cap, join=join)
            for schedule, join in itertools.product(several, (BY_ALL, BY_ACTIVE))
        ]
        on_each(ranks, jobs)

    schedules.examine(examine, drawn=False)


@check("DDPJ-009", worlds=MANY, beyond=False)
def test_joined_ranks_add_zeros_in_every_dtype(ranks, schedules):
    cap = {"bucket_cap_mb": TINY_MIB}

    def examine(several):
        on_each(ranks, [Job(models.ManyTypes, models.three, schedule, ddp=cap) for schedule in several])

    schedules.examine(examine, drawn=False)


def train_sparse(ctx, dtype, by_all, several):
    told = []
    for schedule in several:
        module, seen = models.TwoTables(), []
        module.table.to(dtype)
        model = ddp(ctx, module)
        with model.join(divide_by_initial_world_size=by_all):
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad(set_to_none=True)
                model(models.rows(ctx.rank, iteration)).backward()
                seen.append(model.module.table.weight.grad.to_dense().tolist())
        told.append(seen)
    return told


@check("DDPJ-009", worlds=MANY, beyond=False)
def test_joined_ranks_add_nothing_to_sparse_gradients(ranks, schedules):
    def examine(several):
        # in half precision each rank divides what it sends, elsewhere all divide the sum
        ways = itertools.product((torch.float32, torch.bfloat16), (True, False))
        for (dtype, by_all), told in ranks.each(train_sparse, ways, several, spread=True):
            for place, schedule in enumerate(several):
                for rank, count in enumerate(schedule):
                    alone = [sparse_alone(schedule, iteration, by_all) for iteration in range(count)]
                    assert told[rank][place] == alone, f"rank {rank}, {schedule=}, {dtype}, {by_all=}"

    schedules.examine(examine, drawn=False)


def sparse_alone(schedule, iteration, by_all):
    """Each active rank touches its own row and the shared one."""
    table, active = torch.zeros(6, 2), oracle.active_ranks(schedule, iteration)
    for rank in active:
        table[models.rows(rank, iteration)] += 12.0 / (len(schedule) if by_all else len(active))
    return table.tolist()


# options that leave the result alone, every pair of them together in some row
OPTIONS = pairwise.covering({
    "bucket_cap_mb": (TINY_MIB, 3 * TINY_MIB, 25),
    "gradient_as_bucket_view": (False, True),
    "find_unused_parameters": (False, True),
    "divide_by_initial_world_size": (True, False),
})  # fmt: skip


def job(schedule, option):
    join = {name: option[name] for name in BY_ALL}
    options = {name: value for name, value in option.items() if name not in join}
    return Job(partial(models.Sum, 5), models.divisible, schedule, ddp=options, join=join)


@check("DDPJ-007", "DDPJ-008", "DDPJ-009", worlds=MANY, beyond=False)
def test_any_schedule_under_any_option_gives_the_gradients_of_one_process(ranks, schedules):
    def examine(several):
        on_each(ranks, [job(schedule, option) for schedule, option in itertools.product(several, OPTIONS)])

    schedules.examine(examine, fixed=())


def double_chain():
    return models.chain(2, 4).double()


def double_batch(rank, iteration):
    return models.divisible(rank, iteration).double()


@check("DDPJ-007", "DDPJ-008", "DDPJ-016", worlds=MANY, beyond=False)
def test_uneven_training_leaves_the_weights_of_one_process(ranks, schedules):
    # Weights stay integers (lr 1, gradients divisible), so three steps of a two-layer product are exact in float64.
    cap = {"bucket_cap_mb": TINY_MIB}
    short = [schedule for schedule in scenario.shapes(ranks.world).values() if max(schedule) <= 3]

    def examine(several):
        jobs = [
            Job(double_chain, double_batch, schedule, lr=1.0, ddp=cap, join=join)
            for schedule, join in itertools.product(several, (BY_ALL, BY_ACTIVE))
        ]
        on_each(ranks, jobs)

    schedules.examine(examine, fixed=short, drawn=False)


@check("DDPJ-010", worlds=MANY, beyond=False)
def test_shadowing_leaves_the_gradients_of_the_last_real_iteration(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    ways = itertools.product((False, True), (False, True))  # who searches sends also where only one rank is left
    options = [
        {"bucket_cap_mb": TINY_MIB, "gradient_as_bucket_view": view, "find_unused_parameters": search}
        for view, search in ways
    ]
    jobs = [Job(models.Sum, models.divisible, schedule, ddp=option) for option in options]
    averages, _ = expected(jobs[0])
    for rank, told in enumerate(ranks(train_each, jobs)):
        for option, mine in zip(options, told, strict=True):
            assert mine.last_gradients == averages[schedule[rank] - 1], f"rank {rank}, {option}"


@check("DDPJ-010", worlds=MANY, beyond=False)
def test_a_rank_without_inputs_ends_without_gradients(ranks):
    job = Job(models.Sum, models.divisible, (0, *[2] * (ranks.world - 1)), ddp={"bucket_cap_mb": TINY_MIB})
    idle = ranks(train, job)[0]
    assert set(idle.last_gradients.values()) == {None}


@check("DDPJ-011", worlds=MANY, beyond=False)
def test_dividing_by_active_ranks_weighs_late_samples_more(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    jobs = [Job(models.scalar, models.constant, schedule, join=join) for join in (BY_ALL, BY_ACTIVE)]
    by_all, by_active = ranks(train_each, jobs)[-1]
    for iteration in range(ranks.world):
        active = ranks.world - iteration
        late, plain = by_active.gradients[iteration]["weight"][0], by_all.gradients[iteration]["weight"][0]
        assert late / plain == ranks.world / active


def train_until_thrown(ctx, schedule):
    told = []
    for divide in (False, True):
        model, seen = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB), []
        context = model.join(divide_by_initial_world_size=divide, throw_on_early_termination=True)

        def loop(model=model, seen=seen, context=context):
            with context:
                for iteration in range(schedule[ctx.rank]):
                    model.zero_grad()
                    model(models.divisible(ctx.rank, iteration)).sum().backward()
                    seen.append(gradients(model))

        told.append((caught(loop), seen))
        ctx.meet(f"thrown, divide={divide}")
    return told


@check("DDPJ-013", worlds=MANY, beyond=False)
def test_throwing_early_gives_the_same_gradients_whatever_the_divide_setting(ranks):
    schedule = tuple(2 + rank for rank in range(ranks.world))
    complete, _ = expected(Job(models.Sum, models.divisible, (2,) * ranks.world))
    for rank, told in enumerate(ranks(train_until_thrown, schedule)):
        for error, seen in told:
            assert error is not None, f"rank {rank} did not raise"
            assert error.is_a(RuntimeError)
            assert seen[:2] == complete, f"rank {rank}"
            assert len(seen) == 2, f"rank {rank} finished {len(seen)} iterations after somebody ran out"


def train_with_allreduce_hook(ctx, schedule, join):
    model = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB)
    model.register_comm_hook(None, ctx.subject.default_hooks.allreduce_hook)
    return iterate(ctx, model, Job(models.Sum, models.divisible, schedule), model.join(**join))


def assert_hook_counts_as_none(ranks, join):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    averages, _ = expected(Job(models.Sum, models.divisible, schedule, join=join))
    for rank, seen in enumerate(ranks(train_with_allreduce_hook, schedule, join)):
        for iteration, mine in enumerate(seen):
            assert mine == averages[iteration], f"rank {rank}, iteration {iteration}"


@check("DDPJ-014", worlds=MANY, beyond=False)
def test_the_allreduce_hook_divides_by_the_initial_size_when_asked(ranks):
    assert_hook_counts_as_none(ranks, BY_ALL)


@check("DDPJ-014", worlds=MANY, beyond=False)
def test_the_allreduce_hook_divides_by_the_active_ranks_when_asked(ranks):
    assert_hook_counts_as_none(ranks, BY_ACTIVE)


def train_two_models_on_each(ctx, several, join):
    return [train_two_models(ctx, schedule, join) for schedule in several]


def train_two_models(ctx, schedule, join):
    first, second = ddp(ctx, models.scalar()), ddp(ctx, models.scalar())
    seen = []
    with ctx.subject.Join([first, second], **join):
        for iteration in range(schedule[ctx.rank]):
            for factor, model in ((1.0, first), (2.0, second)):
                model.zero_grad()
                model(factor * models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append((gradient(first.module.weight), gradient(second.module.weight)))
    return seen


def assert_both_follow(ranks, join):
    up = tuple(1 + rank for rank in range(ranks.world))
    by_rank = ranks(train_two_models_on_each, (up, up[::-1]), join)
    for schedule, seen in zip((up, up[::-1]), zip(*by_rank, strict=True), strict=True):
        averages, _ = expected(Job(models.scalar, models.divisible_scalar, schedule, join=join))
        rows = [(step["weight"][0], 2 * step["weight"][0]) for step in averages]
        assert list(seen) == [rows[:count] for count in schedule], f"schedule {schedule}"


@check("DDPJ-015", worlds=MANY, beyond=False)
def test_two_models_of_one_context_divide_by_the_initial_size(ranks):
    assert_both_follow(ranks, BY_ALL)


@check("DDPJ-015", worlds=MANY, beyond=False)
def test_two_models_of_one_context_both_divide_by_the_active_ranks(ranks):
    assert_both_follow(ranks, BY_ACTIVE)


def train_momentum(ctx, schedule):
    model = ddp(ctx, models.scalar())
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-6, momentum=0.5)
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            optimizer.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            optimizer.step()
    held = optimizer.state[model.module.weight].get("momentum_buffer")
    return model.module.weight.item(), None if held is None else held.item()


def momentum_alone(schedule):
    model = models.scalar()
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-6, momentum=0.5)
    held = []
    for step in expected(Job(models.scalar, models.divisible_scalar, schedule))[0]:
        model.weight.grad = torch.tensor([step["weight"]])
        optimizer.step()
        held.append(optimizer.state[model.weight]["momentum_buffer"].item())
    return model.weight.item(), held


@check("DDPJ-023", "DDPJ-016", worlds=MANY, beyond=False)
def test_weights_agree_after_the_block_and_optimizer_state_is_that_of_some_iteration(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    weight, held = momentum_alone(schedule)
    seen = ranks(train_momentum, schedule)
    assert [mine for mine, _ in seen] == [weight] * ranks.world
    states = [state for _, state in seen]
    if states == [held[count - 1] for count in schedule]:
        ranks.at_limit("momentum of ranks that joined early stays that of their last own step")
    else:
        assert states == [held[-1]] * ranks.world
