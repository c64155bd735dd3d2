"""The last rank with inputs: before the buckets settle, with a static graph, while others wait; and two models."""

import time
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import takes
from conformance.fixtures.training import Job, ddp, expected, gradients, scalar_means

TINY_MIB = 1e-4


def train_in_epochs(ctx, epochs, kinds):
    """For each kind of model a context for each epoch but the last; the gradients of this rank's iterations.

    The first context begins with an iteration under no_sync, so that who is alone knows it before anything is reduced.
    """
    seen = []
    for kind in kinds:
        model = ddp(ctx, kind(6), bucket_cap_mb=TINY_MIB)
        for number, schedule in enumerate(epochs):
            mine = []
            with nullcontext() if number == len(epochs) - 1 else model.join():
                if number == 0 and schedule[ctx.rank]:
                    with model.no_sync():
                        model(models.divisible(ctx.rank, 9)).sum().backward()
                for iteration in range(schedule[ctx.rank]):
                    model.zero_grad(set_to_none=True)
                    model(models.divisible(ctx.rank, iteration)).sum().backward()
                    mine.append(gradients(model))
            seen.append(mine)
    return seen


@check("DDPJ-031", "DDPJ-034", "DDPJ-035", worlds=MANY, beyond=False)
def test_a_rank_that_is_alone_before_the_buckets_settle_leaves_all_in_step(ranks):
    rest, even = ranks.world - 1, (3,) * ranks.world
    kinds = (models.Sum, models.SumBackwards)
    firsts = ((3, *[0] * rest), (*[0] * rest, 1), (*[0] * rest, 2), (2, *[1] * rest))
    for epochs, told in ranks.each(train_in_epochs, [(first, even, even) for first in firsts], kinds):
        averages = [expected(Job(partial(kind, 6), models.divisible, each))[0] for kind in kinds for each in epochs]
        for rank, seen in enumerate(told):
            for schedule, means, mine in zip(epochs * 2, averages, seen, strict=True):
                assert mine == means[: schedule[rank]], f"rank {rank}, schedule {schedule} of {epochs}"


def train_static(ctx, epochs, options):
    """One static graph, of which rank 0 alone uses a part; a context for each epoch, and iterations outside."""
    takes(ctx, *options)
    model, seen = ddp(ctx, models.Branches(), static_graph=True, **options), []
    for number, schedule in enumerate(epochs):
        with nullcontext() if number == len(epochs) - 1 else model.join():
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad(set_to_none=True)
                model(models.divisible_scalar(ctx.rank, iteration), with_b=ctx.rank == 0).sum().backward()
                seen.append(gradients(model))
    return seen


def static_alone(epochs, world):
    """One process; b counts as used from rank 0's first iteration on."""
    rows, known = [[] for _ in range(world)], False
    for schedule, iteration in ((each, i) for each in epochs for i in range(max(each))):
        data = {r: models.divisible_scalar(r, iteration).item() for r in oracle.active_ranks(schedule, iteration)}
        known |= 0 in data
        row = {
            "a.weight": [sum(data.values()) / world],
            "b.weight": [data.get(0, 0.0) / world] if known else None,
        }
        for rank in data:
            rows[rank].append(row)
    return rows


@check("DDPJ-032", worlds=MANY, beyond=False, scenarios={
    "what nobody uses is sent": {},
    "what nobody uses is left out": {"skip_all_reduce_unused_params": True},
})  # fmt: skip
def test_a_static_graph_that_a_lone_rank_has_trained_goes_on_with_all(ranks, scenario):
    rest, even = ranks.world - 1, (3,) * ranks.world
    several = (
        ((*[0] * rest, 4), even, even),
        ((4, *[0] * rest), even, even),
        ((*[1] * rest, 4), (4, *[1] * rest), even),
        ((*[0] * rest, 1), (0, *[3] * rest), even),
    )
    for epochs, told in ranks.each(train_static, several, scenario):
        assert told == static_alone(epochs, ranks.world), f"schedules {epochs}"


# -- while the others wait

TIMEOUT_S = 1.0


def train_slowly(ctx, schedule):
    """Iterations that each take a while, on a group whose waits end sooner than all of them together."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    model, seen = ddp(ctx, models.scalar(), process_group=group), []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            if iteration > 2:
                time.sleep(0.15)
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(model.module.weight.grad.item())
    return seen


@check("DDPJ-009", worlds=(2, 3), deadline_s=12, beyond=False)
def test_ranks_that_have_joined_wait_for_a_lone_one_longer_than_a_wait_may_last(ranks):
    schedule = (*[1] * (ranks.world - 1), 14)
    means = scalar_means(schedule)
    assert ranks(train_slowly, schedule, stall_s=6) == [means[:count] for count in schedule]


# -- two models


class Two(nn.Module):
    """Scalar layers, of which a forward uses one or both."""

    def __init__(self):
        super().__init__()
        self.a, self.b = models.scalar(), models.scalar()

    def forward(self, x, with_b):
        return self.a(x) + self.b(x) if with_b else self.a(x)


def train_two_searching(ctx, schedule, turns):
    """Two models that search for unused parameters share backwards, or have them in turn; their gradients."""
    pair = [ddp(ctx, Two(), find_unused_parameters=True) for _ in range(2)]
    seen = []
    with ctx.subject.Join(pair):
        for iteration in range(schedule[ctx.rank]):
            x = models.divisible_scalar(ctx.rank, iteration)
            for model in pair:
                model.zero_grad(set_to_none=True)
            losses = [
                (place + 1) * model(x, with_b=uses_b(place, ctx.rank, iteration)).sum()
                for place, model in enumerate(pair)
            ]
            if turns:
                for loss in losses[::-1]:
                    loss.backward()
            else:
                sum(losses).backward()
            seen.append([gradients(model) for model in pair])
    return seen


def uses_b(place, rank, iteration):
    return (place + rank + iteration) % 3 == 0


def two_alone(schedule):
    rows = [[] for _ in schedule]
    for iteration in range(max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        data = {rank: models.divisible_scalar(rank, iteration).item() for rank in active}
        row = []
        for place in range(2):
            of_b = [data[rank] for rank in active if uses_b(place, rank, iteration)]
            row.append({
                "a.weight": [(place + 1) * sum(data.values()) / len(schedule)],
                "b.weight": [(place + 1) * sum(of_b) / len(schedule)] if of_b else None,
            })  # fmt: skip
        for rank in active:
            rows[rank].append(row)
    return rows


@check("DDPJ-030", worlds=MANY, beyond=False)
def test_two_models_of_one_context_are_searched_each_for_itself(ranks):
    rest = ranks.world - 1
    several = (((1, *[4] * rest), False), ((*[4] * rest, 1), True), ((4, *[1] * rest), True))
    for (schedule, turns), told in ranks.each(train_two_searching, several, spread=True):
        assert told == two_alone(schedule), f"{schedule=}, {turns=}"


class LeavingOut(models.Sum):
    """Leaves its first layer out when it is asked to: the one whose gradient comes last."""

    def forward(self, x, leaves_out=False):
        return sum(layer(x) for layer in self.layers[1 if leaves_out else 0 :])


def leave_the_last_backward_incomplete(ctx, schedule, hooked):
    """The last rank's last backward leaves a layer out, while the others shadow what a hook of the user's reduces, or
    where nothing is reduced, since its only bucket is not full."""
    model = ddp(ctx, LeavingOut(), bucket_cap_mb=TINY_MIB if hooked else 25)
    if hooked:
        model.register_comm_hook(ctx.world, reduced)
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad(set_to_none=True)
            lasts = ctx.rank == ctx.world - 1 and iteration == schedule[-1] - 1
            model(models.divisible(ctx.rank, iteration), leaves_out=lasts).sum().backward()


def reduced(world, bucket):
    return dist.all_reduce(bucket.buffer().div_(world), async_op=True).get_future().then(lambda f: f.value()[0])


@check("DDP-062", worlds=(2, 3))
def test_a_last_backward_that_leaves_a_layer_out_is_told_on_every_rank_also_where_only_one_has_inputs(ranks):
    for hooked in (True, False):
        run = ranks.run(leave_the_last_backward_incomplete, (3,) * (ranks.world - 1) + (5,), hooked)
        for rank, outcome in enumerate(run.outcomes):
            assert type(outcome).__name__ == "Raised", f"rank {rank}, {hooked=}: {run.summary()}"
            assert outcome.error.is_a(RuntimeError), f"rank {rank}, {hooked=}: {outcome.error}"
        assert "find_unused_parameters" in run.outcomes[-1].error.text, run.summary()


# -- JOIN-024: what fails where nobody else has inputs is nobody else's concern


def leave_out_what_fails(ctx, schedule, bad):
    """The last rank, which is alone by then, leaves out iteration ``bad``, whose backward fails between two buckets."""
    model, seen = ddp(ctx, models.Sum(), bucket_cap_mb=TINY_MIB), []
    first = model.module.layers[0].weight

    def fail(_):
        raise KeyError("a bad batch")

    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            loss = model(models.divisible(ctx.rank, iteration)).sum()
            if iteration == bad:
                handle = first.register_hook(fail)
                with suppress(KeyError):
                    loss.backward()
                handle.remove()
            else:
                loss.backward()
                seen.append(gradients(model))
    return seen


@check("JOIN-024", "DDPJ-034", worlds=(2, 3), deadline_s=12, beyond=False)
def test_a_lone_rank_may_leave_out_an_iteration_that_has_failed_in_its_backward(ranks):
    assert ranks.subject.PeerFailed  # others mix it with what comes next
    schedule, bad = (*[1] * (ranks.world - 1), 6), 3
    right, _ = expected(Job(models.Sum, models.divisible, schedule))
    for rank, seen in enumerate(ranks(leave_out_what_fails, schedule, bad)):
        others = [each for iteration, each in enumerate(right[: schedule[rank]]) if iteration != bad]
        assert seen == others, f"rank {rank}"
