"""Buffers inside a context: whose they are, who receives them, and whose they are again afterwards."""

import itertools
import threading
import time
from contextlib import nullcontext

import torch

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.training import ddp, gradient, gradients, private, scalar_means
from conformance.ranks import caught


def recorder(ctx, module, seen):
    """A second joinable, without collectives of its own, that notes the buffer whenever it shadows."""

    class Hook(ctx.subject.JoinHook):
        def main_hook(self):
            seen.append(module.count.item())

    class Recorder(ctx.subject.Joinable):
        def __init__(self):
            super().__init__()

        def join_hook(self, **_keywords):
            return Hook()

        @property
        def join_device(self):
            return ctx.device

        @property
        def join_process_group(self):
            return ctx.group

    return Recorder()


def step_of(rank):
    return 1.0 + 10.0 * rank


def count_unevenly(ctx, schedule):
    model = ddp(ctx, models.Counting(step_of(ctx.rank)))
    shadowed = []
    beside = recorder(ctx, model.module, shadowed)
    with ctx.subject.Join([model, beside]):
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            ctx.subject.Join.notify_join_context(beside)
    return model.module.seen, shadowed, model.module.count.item()


def count_on_each(ctx, several):
    return [count_unevenly(ctx, schedule) for schedule in several]


@check("DDPJ-024", "DDPJ-025", "DDPJ-019", worlds=MANY)
def test_buffers_come_from_the_highest_active_rank_and_reach_joined_ranks(ranks, schedules):
    steps = [step_of(rank) for rank in range(ranks.world)]

    def examine(several):
        for schedule, told in zip(several, zip(*ranks(count_on_each, several), strict=True), strict=True):
            own, shadowed = oracle.buffers_seen(schedule, steps)
            for rank, (seen, received, _) in enumerate(told):
                assert seen == own[rank], f"rank {rank} at its forwards, schedule {schedule}"
                assert received == shadowed[rank], f"rank {rank} after joining, schedule {schedule}"
            assert len({last for _, _, last in told}) == 1, f"after the block, schedule {schedule}"

    schedules.examine(examine, drawn=False)


def count_in_forwards_alone(ctx, several):
    """Nobody calls backward, so that all that ranks tell each other in an iteration is whose buffers count."""
    told = []
    for schedule in several:
        model = ddp(ctx, models.Counting(step_of(ctx.rank)))
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                model(models.divisible_scalar(ctx.rank, iteration))
        told.append(model.module.seen)
    return told


@check("JOIN-054", worlds=(3,), beyond=False)
def test_forwards_without_a_backward_begin_with_the_sources_buffers_whenever_it_runs_out(ranks):
    several = [(5, 3, 1), (3, 5, 1), (1, 3, 5)]
    for schedule, told in zip(several, zip(*ranks(count_in_forwards_alone, several), strict=True), strict=True):
        own, _ = oracle.buffers_seen(schedule, [step_of(rank) for rank in range(ranks.world)])
        assert list(told) == own, f"schedule {schedule}"


def count_without_gradients_too(ctx, schedule):
    """While all ranks have inputs, a forward in training mode without gradients follows an iteration."""
    model = ddp(ctx, models.Counting(step_of(ctx.rank)))
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            if iteration == 0:
                with torch.no_grad():
                    model(models.divisible_scalar(ctx.rank, iteration))
    return model.module.seen[:2]


@check("DDPJ-024", worlds=(3, 4))
def test_a_forward_without_gradients_in_training_mode_begins_with_the_sources_buffers(ranks):
    schedule = (*[2] * (ranks.world - 1), 3)
    assert ranks(count_without_gradients_too, schedule) == [[0.0, step_of(ranks.world - 1)]] * ranks.world


def train_in_eval_mode(ctx, jobs):
    """With gradients though, as where statistics are frozen: this rank's gradients, and what its forwards found."""
    told = []
    for schedule, joined, broadcast, trains in jobs:
        model, seen = ddp(ctx, models.Counting(step_of(ctx.rank)), broadcast_buffers=broadcast), []
        with model.join() if joined else nullcontext():
            for iteration in range(schedule[ctx.rank]):
                model.train(iteration in trains)
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                seen.append(gradient(model.module.a.weight))
        told.append((seen, model.module.seen))
    return told


def trained_in_eval_mode(schedule, joined, broadcast):
    """What one process says of each rank; the mode does not matter."""
    means = scalar_means(schedule)
    steps = [step_of(rank) for rank in range(len(schedule))]
    if not broadcast:
        found = [[step * done for done in range(count)] for step, count in zip(steps, schedule, strict=True)]
    elif joined:
        found, _ = oracle.buffers_seen(schedule, steps)
    else:
        found = [[steps[0] * done for done in range(count)] for count in schedule]
    return [(means[:count], seen) for count, seen in zip(schedule, found, strict=True)]


@check("DDPJ-024", "DDP-088", worlds=MANY)
def test_in_eval_mode_too_training_averages_and_begins_with_the_sources_buffers(ranks):
    rest = ranks.world - 1
    several = [((3,) * ranks.world, False), ((2, *[4] * rest), True), ((*[4] * rest, 2), True)]
    jobs = [
        (*each, broadcast, trains) for each, broadcast, trains in itertools.product(several, (True, False), ((), (1,)))
    ]
    for rank, told in enumerate(ranks(train_in_eval_mode, jobs)):
        for job, mine in zip(jobs, told, strict=True):
            assert mine == trained_in_eval_mode(*job[:3])[rank], f"rank {rank}, {job}"


def replace_the_buffer_at_last(ctx, schedule):
    """After its last forward each rank's module holds another tensor as its buffer."""
    model = ddp(ctx, models.Counting(step_of(ctx.rank)))
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
        model.module.count = torch.full_like(model.module.count, 100.0 + ctx.rank)
    return model.module.count.item()


@check("DDPJ-016", "DDPJ-019", worlds=MANY)
def test_a_buffer_that_took_the_place_of_another_is_equal_after_the_block(ranks):
    schedule = (*[1] * (ranks.world - 1), 2)
    assert ranks(replace_the_buffer_at_last, schedule) == [100.0 + ranks.world - 1] * ranks.world


def count_in_subgroup(ctx, schedule, members):
    group = torch.distributed.new_group(members)
    if ctx.rank not in members:
        return None
    here = members.index(ctx.rank)
    model = ddp(ctx, models.Counting(step_of(here)), process_group=group)
    with model.join():
        for _ in range(schedule[here]):
            model(torch.ones(1, 1)).sum().backward()
    return model.module.seen


@check("DDPJ-024", "DDPJ-022", worlds=(3, 4))
def test_in_a_subgroup_the_source_is_the_highest_active_rank_of_the_group(ranks):
    members = list(range(1, ranks.world))
    schedule = tuple(1 + len(members) - here for here in range(len(members)))
    own, _ = oracle.buffers_seen(schedule, [step_of(here) for here in range(len(members))])
    assert ranks(count_in_subgroup, schedule, members)[1:] == own


def average_buffers(state, buffers):
    """A buffer hook that every rank must take part in; does its own communication."""
    ctx, calls = state
    calls.append(ctx.rank)
    for buffer in buffers.values():
        torch.distributed.all_reduce(buffer)
        buffer /= ctx.world


def train_with_buffer_hook(ctx, schedule, location, evaluates):
    """``evaluates``: before each iteration the model, in training mode, runs once without gradients."""
    model = ddp(ctx, models.Counting(step_of(ctx.rank)))
    place = getattr(private(ctx.subject.ddp, "_BufferCommHookLocation"), location)
    seen, calls = [], []

    def loop():
        private(model, "_register_buffer_comm_hook")((ctx, calls), average_buffers, place)
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                x = models.divisible_scalar(ctx.rank, iteration)
                if evaluates:
                    with torch.no_grad():
                        model(x)
                model.zero_grad()
                model(x).sum().backward()
                seen.append(gradients(model)["a.weight"][0])

    error = caught(loop)
    ctx.meet("told")
    return error, seen, len(calls), model.module.count.item()


def is_refused(ranks, errors):
    """Whether all ranks have refused to train with a buffer hook; fails where only some have, or with other words."""
    if all(error is not None for error in errors):
        for error in errors:
            assert "buffer" in error.text.lower()
            assert "hook" in error.text.lower(), f"a refusal names the buffer hook: {error}"
        ranks.at_limit("buffer hooks are refused under uneven inputs")
        return True
    assert errors == [None] * ranks.world
    return False


def assert_right_or_refused(ranks, location, *, evaluating=(False,)):
    schedule = tuple(1 + 2 * rank for rank in range(ranks.world))  # the last one is alone, and knows it, at its end
    for evaluates in evaluating:
        told = ranks(train_with_buffer_hook, schedule, location, evaluates)
        if is_refused(ranks, [error for error, *_ in told]):
            return
        often = told[-1][2] if evaluates else max(schedule)  # no document says how often it runs without gradients
        for rank, (_, seen, calls, _) in enumerate(told):
            assert seen == scalar_means(schedule)[: schedule[rank]], f"rank {rank}, {evaluates=}"
            assert calls == often, f"so often the hook, which communicates, has run on rank {rank}"
        assert len({count for *_, count in told}) == 1, f"buffers differ after the block, {evaluates=}"


@check("DDPJ-026", worlds=MANY, beyond=False)
def test_a_buffer_hook_after_the_forward_is_followed_or_refused(ranks):
    assert_right_or_refused(ranks, "POST_FORWARD", evaluating=(False, True))


@check("DDPJ-026", worlds=MANY, beyond=False)
def test_a_buffer_hook_before_the_forward_is_followed_or_refused(ranks):
    assert_right_or_refused(ranks, "PRE_FORWARD")


def end_a_block_with_late_futures(ctx, schedule):
    """The block ends with an iteration under no_sync, whose futures are late on joined ranks; the buffer after them."""
    model, futures = ddp(ctx, models.Counting(step_of(ctx.rank))), []

    def start(_state, buffers):
        future = torch.futures.Future()
        futures.append(future)

        def end():
            time.sleep(0.15 if ctx.rank < ctx.world - 1 else 0)  # nobody with inputs waits for that of the others
            buffers["count"] += 1000
            future.set_result(None)

        threading.Thread(target=end).start()
        return [future]

    def loop():
        private(model, "_register_buffer_comm_hook")(None, start)
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                with model.no_sync() if iteration == max(schedule) - 1 else nullcontext():
                    model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()

    error = caught(loop)
    for future in futures:
        future.wait()
    ctx.meet("told")
    return error, model.module.count.item()


@check("DDPJ-026", worlds=MANY, beyond=False)
def test_what_a_buffer_hook_has_started_is_over_when_the_final_model_is_taken_over(ranks):
    told = ranks(end_a_block_with_late_futures, (*[1] * (ranks.world - 1), 2))
    if not is_refused(ranks, [error for error, _ in told]):
        last = 2 * step_of(ranks.world - 1) + 2000
        assert [count for _, count in told] == [last] * ranks.world, "the last joiner's buffer, and nothing after it"


def forward_after_a_block(ctx, schedule):
    model = ddp(ctx, models.Counting(0.0))
    with model.join():
        for _ in range(schedule[ctx.rank]):
            model(torch.ones(1, 1)).sum().backward()
    model.module.count.fill_(100.0 * (ctx.rank + 1))
    model(torch.ones(1, 1)).sum().backward()
    return model.module.seen[-1]


@check("DDPJ-027", worlds=MANY)
def test_after_the_block_buffers_come_from_rank_0_again(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    assert ranks(forward_after_a_block, schedule) == [100.0] * ranks.world


def iterate_around_a_block(ctx, schedule):
    model = ddp(ctx, models.Counting(0.0), bucket_cap_mb=1e-4)

    def iterate():
        model.zero_grad()
        start = len(ctx.trace())
        model(torch.ones(1, 1)).sum().backward()
        return [str(event) for event in ctx.trace()[start:]]

    for _ in range(3):
        before = iterate()
    with model.join():
        for _ in range(schedule[ctx.rank]):
            iterate()
    return before, iterate(), iterate()


@check("DDPJ-027", "JOIN-038", worlds=MANY)
def test_after_the_block_an_iteration_sends_exactly_what_it_sent_before(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    for before, first, second in ranks(iterate_around_a_block, schedule, trace=True):
        assert before, "the collective trace recorded nothing of an ordinary iteration"
        assert first == before
        assert second == before


class MakesBuffers(torch.nn.Module):
    """It makes a buffer, or a longer one, in its forward of this number, counted from 0."""

    def __init__(self, number, length):
        super().__init__()
        self.a = models.scalar()
        self.number, self.length = number, length
        self.register_buffer("cache", torch.zeros(length) if length else None)
        self.calls = 0
        if length:
            self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        if self.calls == self.number:
            self.cache = torch.ones(self.length + 40, device=x.device)
        self.calls += 1
        if self.length:
            self.count += 1
        return self.a(x)


def make_buffers_late(ctx, schedule, length):
    """The error that ended a block, if any; the counter, where it is a buffer, and the weight after it."""
    model = ddp(ctx, MakesBuffers(min(1, max(schedule) - 1), length))

    def train():
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()

    error = caught(train)
    return error, model.module.count.tolist() if length else None, model.module.a.weight.item()


@check(
    "DDP-080", worlds=(2, 3), backends=("gloo",), beyond=False,
    scenarios={"none before": 0, "a longer one": 3},
)  # fmt: skip
def test_a_buffer_that_is_made_once_a_rank_has_run_out_costs_no_rank_another_one(ranks, scenario):
    several = [(1, 3), (3, 1), (0, 1)] if ranks.world == 2 else [(1, 3, 3), (3, 3, 1), (0, 1, 1)]
    for schedule in several:
        for rank, (error, count, weight) in enumerate(ranks(make_buffers_late, schedule, scenario)):
            if error is not None:
                assert error.is_a(RuntimeError), f"rank {rank} of {schedule}: {error}"
                ranks.at_limit("buffers whose sizes differ between ranks are refused")
                continue
            assert (count, weight) == ([float(max(schedule))] if scenario else None, 1.0), f"rank {rank} of {schedule}"
