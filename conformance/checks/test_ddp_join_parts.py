"""What a join context must not forget: frozen parameters, what a joined rank's hook may touch, many models at once."""

import itertools
import time

import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.joinables import adder
from conformance.fixtures.observing import TINY_MIB
from conformance.fixtures.training import ddp, gradients, parameters, scalar_means
from conformance.ranks import caught
from conformance.subjects import Unsupported


class Frozen(nn.Module):
    """A scalar layer beside a frozen parameter that takes part in every forward."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.still = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return self.a(x) + self.still.sum()


def leave_with_frozen(ctx, schedule):
    model = ddp(ctx, Frozen().to(ctx.device))
    with model.join():
        for _ in range(schedule[ctx.rank]):
            model(torch.ones(1, 1, device=ctx.device)).sum().backward()
        with torch.no_grad():
            model.module.still.fill_(ctx.rank + 1)
    return model.module.still.tolist()


@check("DDPJ-016", worlds=MANY)
def test_frozen_parameters_are_the_last_joiners_too(ranks):
    schedules = [tuple(2 if rank == last else 1 for rank in range(ranks.world)) for last in (0, ranks.world - 1)]
    for schedule, told in ranks.each(leave_with_frozen, schedules):
        assert told == [[schedule.index(2) + 1.0] * 3] * ranks.world, f"schedule {schedule}"


def add_one_by_one(ctx, schedule, as_view):
    """A hook that adds twelve to each of the bucket's gradients before they are summed; what each iteration gives."""
    model = ddp(ctx, models.Sum(3).to(ctx.device), bucket_cap_mb=TINY_MIB, gradient_as_bucket_view=as_view)

    def hook(_state, bucket):
        for each in bucket.gradients():
            each.add_(12.0)
        work = dist.all_reduce(bucket.buffer().div_(ctx.world), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, hook)
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad(set_to_none=True)
            model(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
            seen.append(gradients(model))
    return seen, gradients(model)


@check("DDPJ-033", worlds=(2, 4), beyond=False, scenarios={"copies": False, "views": True})
def test_a_joined_ranks_hook_finds_the_gradients_in_the_bucket_of_zeros(ranks, scenario):
    alone = models.Sum(3)
    several = ((1, *[4] * (ranks.world - 1)), (*[4] * (ranks.world - 1), 2))
    for schedule, told in ranks.each(add_one_by_one, several, scenario):
        for rank, (seen, last) in enumerate(told):
            for iteration, found in enumerate(seen):
                batches = [models.divisible(each, iteration) for each in oracle.active_ranks(schedule, iteration)]
                mean = oracle.averaged_gradients(alone, batches, ranks.world)
                expected = {name: (gradient + 12).flatten().tolist() for name, gradient in mean.items()}
                assert found == expected, f"rank {rank}, iteration {iteration}, schedule {schedule}"
            assert last == seen[-1], f"rank {rank} lost its last gradients, schedule {schedule}"


def train_many(ctx, schedule, count):
    """Models that train one after the other in one context: their weights at the end."""
    several = [ddp(ctx, models.scalar()) for _ in range(count)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=2.0**-6) for model in several]
    with ctx.subject.Join(several):
        for iteration in range(schedule[ctx.rank]):
            for number, (model, optimizer) in enumerate(zip(several, optimizers, strict=True)):
                optimizer.zero_grad()
                model((number + 1) * models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                optimizer.step()
    return [parameters(model)["weight"][0] for model in several]


@check("DDPJ-009", worlds=(2, 4), beyond=False, deadline_s=20)
def test_many_models_of_one_context_train_as_one_process_does(ranks):
    count = 9  # far more than anybody would expect to tell apart in a word or two
    for schedule, told in ranks.each(train_many, ((1, *[3] * (ranks.world - 1)), (*[2] * (ranks.world - 1), 4)), count):
        total = sum(scalar_means(schedule))
        expected = [1.0 - (number + 1) * total / 64 for number in range(count)]
        assert told == [expected] * ranks.world, f"schedule {schedule}"


def end_with_forwards(ctx, schedule, buffers):
    """The last iteration of all is a forward that nobody differentiates; then a context like the first."""
    model = ddp(ctx, models.Counting(1.0) if buffers else nn.Sequential(models.scalar()))
    seen = []
    for _ in range(2):
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad(set_to_none=True)
                loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
                if iteration < max(schedule) - 1:
                    loss.backward()
                    seen.append(next(iter(gradients(model).values()))[0])
    return seen


@check("JOIN-054", worlds=MANY, beyond=False, scenarios={"without buffers": False, "with buffers": True})
def test_last_forwards_without_a_backward_do_no_harm(ranks, scenario):
    world = ranks.world
    several = ((2, *[1] * (world - 1)), (1, *[3] * (world - 1)), (*[2] * (world - 1), 3))
    for schedule, told in ranks.each(end_with_forwards, several, scenario):
        reducing = tuple(min(count, max(schedule) - 1) for count in schedule)
        means = scalar_means(reducing)
        expected = [means[:count] * 2 for count in reducing]
        assert told == expected, f"schedule {schedule}"


def leave_some_open(ctx, jobs):
    """Each iteration trains one model, which has buffers, and runs others whose backward nobody calls.

    A job: the schedule, how many models are left open, since which iteration, and what each iteration begins with.
    """
    return [leave_open(ctx, *job) for job in jobs]


def leave_open(ctx, schedule, several, since, begins):
    trained, beside, seen = ddp(ctx, models.Counting(1.0)), adder(ctx), []
    others = [ddp(ctx, models.scalar()) for _ in range(several)]
    with ctx.subject.Join([*[beside] * (begins == "beside"), trained, *others]):
        for iteration in range(schedule[ctx.rank]):
            x = models.divisible_scalar(ctx.rank, iteration)
            if begins == "beside":
                beside.step(1.0)
            losses = [other(x).sum() for other in reversed(others) if begins == "open"]
            trained.zero_grad(set_to_none=True)
            trained(x).sum().backward()
            seen.append(gradients(trained)["a.weight"][0])
            losses += [other(x).sum() for other in others if begins != "open"]
            if iteration < since:
                sum(losses).backward()
    return seen


@check("JOIN-054", worlds=MANY, beyond=False, deadline_s=20)
def test_forwards_of_models_that_are_never_trained_keep_nobody_from_training_another(ranks):
    rest = ranks.world - 1
    schedules = (1, *[3] * rest), (*[3] * rest, 1), (2, *[1] * rest)
    ways = (1, 0, "trained"), (2, 0, "open"), (1, 0, "beside")
    jobs = [(schedule, *way) for schedule, way in itertools.product(schedules, ways)]
    jobs.append(((*[5] * rest, 3), 1, 2, "trained"))  # the rank that leaves first is the source of buffers
    jobs += [((1, *[5] * (rest - 1), 3), 1, 2, begins) for begins in ("trained", "beside")]  # one has left before
    for rank, told in enumerate(ranks(leave_some_open, jobs)):
        for (schedule, *way), seen in zip(jobs, told, strict=True):
            assert seen == scalar_means(schedule)[: schedule[rank]], f"rank {rank}, schedule {schedule}, {way}"


def count_hook_calls(ctx, schedule):
    """How often a buffer hook before the forward has run on this rank when each of its forwards begins."""
    model, calls, seen = ddp(ctx, models.Counting(1.0)), [], []
    places = getattr(ctx.subject.ddp, "_BufferCommHookLocation", None)
    if places is None:
        raise Unsupported("no buffer hooks")

    def hook(_state, buffers):
        calls.append(sorted(buffers))

    model._register_buffer_comm_hook(None, hook, places.PRE_FORWARD)
    model.module.register_forward_pre_hook(lambda *_: seen.append(len(calls)))
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad(set_to_none=True)
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
    return seen


@check("DDPJ-026", worlds=MANY, beyond=False)
def test_the_last_rank_with_inputs_calls_its_buffer_hook_before_each_forward(ranks):
    schedule = (*[1] * (ranks.world - 1), 5)
    assert ranks(count_hook_calls, schedule)[-1] == [1, 2, 3, 4, 5]


def break_off_then_join(ctx, schedule):
    """A context that everybody leaves by an error, rank 0 first; then one in which rank 0 lets the others wait."""
    model = ddp(ctx, models.scalar())

    def fail():
        with model.join():
            model(models.place(ctx.rank, 0)).sum().backward()
            if ctx.rank > 0:
                ctx.store.wait(["rank 0 has left"])
            raise KeyError("the data ended in the middle of a file")

    failed = caught(fail) is not None
    ctx.store.set("rank 0 has left", "1")
    ctx.meet("failed")
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            if ctx.rank == 0:
                time.sleep(0.2)  # longer than anybody waits without looking out for failures
            model.zero_grad(set_to_none=True)
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradients(model)["weight"][0])
    return failed, seen


@check("DDPJ-034", worlds=MANY, beyond=False)
def test_after_a_context_that_failed_another_one_is_like_the_first(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    means = scalar_means(schedule)
    expected = [(True, means[:count]) for count in schedule]
    assert ranks(break_off_then_join, schedule) == expected
