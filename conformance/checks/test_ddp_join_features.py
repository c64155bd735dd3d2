"""Uneven inputs together with no_sync, communication hooks, collectives of one's own and delayed parameters."""

import time
from contextlib import nullcontext, suppress

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import or_lacks_accelerator, reduced_elements, require_reductions, started
from conformance.fixtures.training import Job, ddp, expected, gradient, gradients, parameters, private, scalar_means
from conformance.ranks import caught

TINY_MIB = 1e-4


def accumulate(ctx, schedule, every, buffers):
    """Forward and backward in each iteration, synchronised only in every ``every``-th; never zeroed."""
    model = ddp(ctx, models.Counting(1.0) if buffers else nn.Sequential(models.scalar()))
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            with nullcontext() if iteration % every == every - 1 else model.no_sync():
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(next(iter(gradients(model).values()))[0])
    return seen


def accumulate_each(ctx, several, every):
    return [[accumulate(ctx, schedule, every, buffers) for buffers in (False, True)] for schedule in several]


def accumulate_alone(schedule, every):
    """What a scalar gradient that is never zeroed shows on each rank; joined ranks add zero."""
    world = len(schedule)
    held, seen = [0.0] * world, [[] for _ in schedule]
    for iteration in range(max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        for rank in active:
            held[rank] += models.divisible_scalar(rank, iteration).item()
        if iteration % every == every - 1:
            mean = sum(held[rank] for rank in active) / world
            held = [mean if rank in active else held[rank] for rank in range(world)]
        for rank in active:
            seen[rank].append(held[rank])
    return seen


@check("DDPJ-028", "DDPJ-029", "DDPJ-009", worlds=(2, 4))
def test_accumulation_under_no_sync_is_followed_without_reductions(ranks):
    several = [(4, *[2] * (ranks.world - 1)), (*[2] * (ranks.world - 1), 6), (0, *[4] * (ranks.world - 1))]
    for rank, told in enumerate(ranks(accumulate_each, several, 2)):
        for schedule, both in zip(several, told, strict=True):
            alone = accumulate_alone(schedule, 2)[rank]
            for buffers, seen in zip((False, True), both, strict=True):
                assert seen == alone, f"rank {rank}, schedule {schedule}, buffers: {buffers}"


@check("DDPJ-028", worlds=(3,))
def test_the_documented_example_of_no_sync_under_join(ranks):
    # rank 0 alone has four iterations; the first and third are not synchronised; rank r's local gradient is r + 1
    assert ranks(accumulate_places, (4, 2, 2))[0] == pytest.approx([1, 4, 5, 2])


def accumulate_places(ctx, schedule):
    model = ddp(ctx, models.scalar())
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            with nullcontext() if iteration % 2 else model.no_sync():
                model(models.place(ctx.rank, iteration)).sum().backward()
            seen.append(model.module.weight.grad.item())
    return seen


WIDE = 256  # elements: more than all the control messages of three iterations have


def record_no_sync(ctx, schedule):
    """How many elements each rank reduces in its iterations under no_sync, and more at their end than in an empty one.

    Every kind of reduction counts, and synchronised iterations show first that the subject's own are seen.
    """
    model = ddp(ctx, nn.Linear(WIDE, 1, bias=False))

    def iterate(count):
        for _ in range(count):
            model(torch.ones(1, WIDE)).sum().backward()

    for _ in range(2):
        require_reductions(ctx, started(ctx, lambda: iterate(1)), WIDE)
    start = len(ctx.trace())
    with model.join():  # what the end of a context reduces by itself, such as a final model that is summed up
        pass
    empty = reduced_elements(ctx.trace()[start:])
    start = len(ctx.trace())
    with model.join(), model.no_sync():
        iterate(schedule[ctx.rank])
        if schedule[ctx.rank] == 0:
            model.require_backward_grad_sync = True  # a joined rank's own setting must not matter
        end = len(ctx.trace())
    return reduced_elements(ctx.trace()[start:end]), reduced_elements(ctx.trace()[end:]) - empty


@check("DDPJ-028", worlds=MANY)
def test_no_bucket_is_reduced_for_iterations_under_no_sync(ranks):
    schedule = (0, *[3] * (ranks.world - 1))
    for inside, at_the_end in ranks(record_no_sync, schedule, trace=True):
        assert inside < WIDE, f"{inside} elements were reduced in iterations of {WIDE} each"
        assert at_the_end < WIDE, f"{at_the_end} more elements were reduced at the end than without iterations"


def count_without_sync(ctx, schedule):
    """The counter that each forward under no_sync found, and one after the block; each rank's steps are its own."""
    model = ddp(ctx, models.Counting(1.0 + 10.0 * ctx.rank))
    with model.join(), model.no_sync():
        for _ in range(schedule[ctx.rank]):
            model(torch.ones(1, 1)).sum().backward()
    model.zero_grad()
    model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    return model.module.seen, gradient(model.module.a.weight)


@check("DDPJ-028", "DDPJ-035", worlds=(2, 3), deadline_s=8)
def test_no_buffer_is_broadcast_after_an_iteration_under_no_sync(ranks):
    (mean,) = scalar_means((1,) * ranks.world)
    last = (1.0 + 10.0 * (ranks.world - 1)) * 3  # of the rank that all have taken over
    for schedule, told in ranks.each(count_without_sync, ((3,) * ranks.world, (0, *[3] * (ranks.world - 1)))):
        own = [[(1.0 + 10.0 * rank) * done for done in range(count)] for rank, count in enumerate(schedule)]
        assert told == [([*seen, last], mean) for seen in own], f"schedule {schedule}"


def train_after_an_error(ctx):
    """All ranks leave a context by an error and catch it; then they train without one, each of them slowly once."""
    model, seen = ddp(ctx, models.scalar()), []
    with suppress(KeyError), model.join():
        model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
        raise KeyError("all ranks alike")
    for slow in range(ctx.world):
        model.zero_grad()
        loss = model(models.divisible_scalar(ctx.rank, slow)).sum()
        if ctx.rank == slow:
            time.sleep(0.3)
        loss.backward()
        seen.append(gradient(model.module.weight))
    return seen


@check("DDPJ-035", worlds=MANY)
def test_after_a_context_that_all_have_left_by_an_error_a_slow_rank_is_waited_for(ranks):
    assert ranks(train_after_an_error) == [scalar_means((ranks.world,) * ranks.world)] * ranks.world


def announce(ctx, syncing):
    model = ddp(ctx, models.scalar())
    joined = ctx.rank == 0
    model.require_backward_grad_sync = ctx.rank in syncing
    return private(model, "_check_global_requires_backward_grad_sync")(is_joined_rank=joined)


@check("DDPJ-029", worlds=(3, 4))
def test_the_announcement_tells_joined_ranks_alone_whether_anybody_syncs(ranks):
    # one live rank of several, whichever it is; what the joined rank itself has set does not count
    for syncing, told in (((ranks.world - 1,), True), ((1,), True), ((), False), ((0,), False)):
        first, *others = ranks(announce, syncing)
        assert bool(first) == told, f"ranks that synchronise: {syncing}"
        assert others == [None] * (ranks.world - 1)


def train_recording_hook(ctx, schedule):
    model = ddp(ctx, models.Sum(5), bucket_cap_mb=TINY_MIB)
    calls = []

    def hook(_state, bucket):
        buffer = bucket.buffer()
        calls.append((bucket.index(), bucket.is_last(), tuple(buffer.shape), bool(buffer.any())))
        work = dist.all_reduce(buffer.div_(ctx.world), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(None, hook)
    per_iteration = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            before = len(calls)
            model(models.divisible(ctx.rank, iteration)).sum().backward()
            per_iteration.append(len(calls) - before)
    return calls, sum(per_iteration)


@check("DDPJ-033", worlds=MANY)
def test_a_communication_hook_runs_on_joined_ranks_with_zero_buckets_in_order(ranks):
    # whoever joins after two iterations has gradients in the buckets that stay
    several = ((1, *[4] * (ranks.world - 1)), (2, *[4] * (ranks.world - 1)), (*[4] * (ranks.world - 1), 0))
    for schedule, seen in ranks.each(train_recording_hook, several):
        order = [call[:3] for call in seen[schedule.index(4)][0]]
        assert max(index for index, _, _ in order) > 0, "one bucket cannot show an order"
        for rank, (calls, own) in enumerate(seen):
            assert [call[:3] for call in calls] == order, f"rank {rank}, schedule {schedule}"
            assert any(filled for *_, filled in calls[:own]) == (schedule[rank] > 0)
            assert not any(filled for *_, filled in calls[own:]), f"rank {rank} shadowed with values"


PLENTY = 12.0 * 27  # stays whole when it is divided by three again and again


def hold_back_first(ctx, schedule):
    """The first iteration is not synchronised, all others are; nothing is ever zeroed."""
    model = ddp(ctx, models.scalar())
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            with model.no_sync() if iteration == 0 else nullcontext():
                model(PLENTY * models.place(ctx.rank, iteration)).sum().backward()
            seen.append(model.module.weight.grad.item())
    return seen


def held_back_alone(schedule, flushed):
    """What each rank sees if those that have joined add what they held back to the next reduction, or leave it out."""
    world = len(schedule)
    held, seen = [PLENTY * (rank + 1) if count else 0.0 for rank, count in enumerate(schedule)], [[] for _ in schedule]
    for rank, count in enumerate(schedule):
        seen[rank] += [held[rank]] * (count > 0)
    for iteration in range(1, max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        late = sum(PLENTY * (rank + 1) for rank in range(world) if schedule[rank] == 1) if iteration == 1 else 0.0
        mean = (sum(held[rank] + PLENTY * (rank + 1) for rank in active) + late * flushed) / world
        held = [mean] * world
        for rank in active:
            seen[rank].append(mean)
    return seen


@check("DDPJ-037", worlds=(3, 4), beyond=False)  # where two are left, they go on reducing
def test_gradients_that_a_rank_held_back_when_it_joined_are_left_out_or_flushed_once(ranks):
    rest = ranks.world - 1
    ends = set()
    several = ((1, *[2] * rest), (1, *[4] * rest), (*[4] * rest, 1), (2, *[4] * rest))
    for schedule, seen in ranks.each(hold_back_first, several):
        left_out, flushed = (held_back_alone(schedule, way) for way in (False, True))
        assert seen in (left_out, flushed), f"schedule {schedule}: neither {left_out} nor {flushed}"
        ends |= {seen == left_out} if left_out != flushed else set()
    assert len(ends) == 1, "flushed at times"
    if True in ends:
        ranks.at_limit("gradients accumulated under no_sync by a rank that then joined do not reach the model")


def synchronise_by_hand(ctx, schedule):
    model = ddp(ctx, models.scalar())
    seen = []

    def loop():
        with model.join(throw_on_early_termination=True):
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                total = torch.ones(1)
                dist.all_reduce(total)
                seen.append((model.module.weight.grad.item(), total.item()))

    return caught(loop), seen


def count_forwards_until_thrown(ctx, schedule):
    module, forwards = models.scalar(), []
    module.register_forward_pre_hook(lambda *_: forwards.append(1))
    model = ddp(ctx, module)

    def loop():
        with model.join(throw_on_early_termination=True):
            for iteration in range(schedule[ctx.rank]):
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()

    return caught(loop) is not None, len(forwards)


@check("JOIN-042", worlds=MANY, beyond=False)
def test_the_forward_that_throws_does_not_reach_the_wrapped_module(ranks):
    # the third forward: the second one rebuilds the buckets, which waits for the other ranks anyway
    schedule = tuple(2 + rank for rank in range(ranks.world))
    assert ranks(count_forwards_until_thrown, schedule) == [(True, 2)] * ranks.world


@check("DDPJ-036", worlds=MANY, beyond=False)
def test_a_model_with_collectives_of_its_own_stops_cleanly_in_throwing_mode(ranks):
    schedule = (3, *[2] * (ranks.world - 1))
    means = scalar_means((2,) * ranks.world)
    for error, seen in ranks(synchronise_by_hand, schedule):
        assert error is not None
        assert error.is_a(RuntimeError)
        assert "exhaust" in error.text.lower() or "terminat" in error.text.lower()
        assert seen == [(mean, float(ranks.world)) for mean in means]


def train_delayed(ctx, schedule, divide_by_initial):
    module = models.Branches()
    seen = []

    def loop():
        model = ddp(
            ctx, module, delay_all_reduce_named_params=[("b.weight", module.b.weight)],
            param_to_hook_all_reduce=module.b.weight,
        )
        with model.join(divide_by_initial_world_size=divide_by_initial):
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration), with_b=True).sum().backward()
                seen.append((module.a.weight.grad.item(), module.b.weight.grad.item()))
            with torch.no_grad():
                module.a.weight.fill_(10.0 + ctx.rank)
                module.b.weight.fill_(20.0 + ctx.rank)
        seen.append((module.a.weight.grad.item(), module.b.weight.grad.item()))

    error = caught(loop)
    ctx.meet("told")
    return error, seen, (module.a.weight.item(), module.b.weight.item())


@check(
    "DDPJ-039",
    worlds=MANY,
    beyond=False,
    scenarios={"divided by all": True, "divided by the active": False},
)
def test_delayed_parameters_are_followed_or_refused(ranks, scenario):
    schedule = (1, *[3] * (ranks.world - 1))
    told = ranks(train_delayed, schedule, scenario)
    if all(error is not None for error, _, _ in told):
        assert all("delay" in error.text.lower() for error, _, _ in told), "a refusal names the delayed all-reduce"
        ranks.at_limit("delayed all-reduce is refused under uneven inputs")
        return
    last = ranks.world - 1
    for rank, (error, seen, model) in enumerate(told):
        assert error is None, f"rank {rank} raised {error}"
        assert model == (10.0 + last, 20.0 + last), f"rank {rank} leaves with another model than the last joiner's"
        means = []
        for iteration in range(schedule[rank]):
            active = oracle.active_ranks(schedule, iteration)
            divisor = ranks.world if scenario else len(active)
            means.append(sum(models.divisible_scalar(r, iteration).item() for r in active) / divisor)
        means.append(means[-1])  # what shadowing leaves alone
        assert seen == [(mean, mean) for mean in means], f"rank {rank}"


def train_in_backward(ctx, schedule):
    module = models.scalar().to(ctx.device)
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": LR})
    model = ddp(ctx, module)

    def train():
        with model.join(divide_by_initial_world_size=False):
            for iteration in range(schedule[ctx.rank]):
                model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device)).sum().backward()

    or_lacks_accelerator(ctx, train)
    return module.weight.item()


LR = 2.0**-6


@check("DDPJ-040", worlds=MANY, beyond=False)
def test_an_optimizer_in_backward_divides_by_the_active_ranks_when_asked(ranks):
    for schedule, told in ranks.each(train_in_backward, ((1, *[3] * (ranks.world - 1)), (3, *[1] * (ranks.world - 1)))):
        by_active = {"divide_by_initial_world_size": False}
        _, alone = expected(Job(models.scalar, models.divisible_scalar, schedule, lr=LR, join=by_active))
        assert told == alone["weight"] * ranks.world, f"schedule {schedule}"


def cast_in_mid_block(ctx, schedule, at, past):
    """In one context the model is cast, ``past`` the wrapper or by it and moved to where it is; error and gradients."""
    module, seen = models.scalar(), []
    model = ddp(ctx, module)
    block = model.join()

    def loop():
        with block:
            for iteration in range(schedule[ctx.rank]):
                if iteration == at:
                    (module if past else model.double().to(ctx.device)).double()
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration).to(module.weight.dtype)).sum().backward()
                seen.append(module.weight.grad.item())

    error = caught(loop)
    ctx.meet("told")
    return error, seen


@check("DDP-034", worlds=(2, 3), beyond=False, scenarios={"all do": 2, "as one runs out": 3, "later": 4})
def test_a_model_that_is_cast_inside_a_context_is_averaged_or_refused_on_all_ranks(ranks, scenario):
    schedule = (3, *[6] * (ranks.world - 1))
    for past in (True, False):
        told = ranks(cast_in_mid_block, schedule, scenario, past)
        if any(error is not None for error, _ in told):
            assert all(error is not None and error.is_a(RuntimeError) for error, _ in told), told
            # in the iteration that begins with the cast, and not in a later one, in which ranks run out
            assert all(len(seen) <= scenario for _, seen in told), told
            if scenario < schedule[0]:
                ranks.at_limit("a cast inside a context is refused while all ranks have inputs")
            continue
        for rank, (_, seen) in enumerate(told):
            assert seen == scalar_means(schedule)[: schedule[rank]], f"rank {rank}"


def thaw_in_mid_block(ctx, schedule):
    """In one context a part that was frozen at wrapping is thawed once rank 0 has run out; error and gradients of a."""
    module, seen = models.Branches(), []
    module.b.requires_grad_(False)
    model = ddp(ctx, module)
    block = model.join()

    def loop():
        with block:
            for iteration in range(schedule[ctx.rank]):
                module.b.requires_grad_(iteration > 0)
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration), with_b=True).sum().backward()
                seen.append(module.a.weight.grad.item())

    error = caught(loop)
    ctx.meet("told")
    return error, seen


@check("DDPJ-009", worlds=(2, 3), beyond=False)
def test_a_part_that_is_thawed_after_a_rank_has_run_out_disturbs_no_average_or_is_refused_in_words(ranks):
    schedule = (1, *[3] * (ranks.world - 1))
    told = ranks(thaw_in_mid_block, schedule)
    if any(error is not None for error, _ in told):
        assert all(error is not None and error.is_a(RuntimeError) for error, _ in told), told
        assert all("thawed" in error.text or "param" in error.text for error, _ in told[1:]), told
        return
    for rank, (_, seen) in enumerate(told):
        assert seen == scalar_means(schedule)[: schedule[rank]], f"rank {rank}"


class Apart(nn.Module):
    """Two scalar layers side by side, each in its own dtype."""

    def __init__(self):
        super().__init__()
        self.a, self.b = models.scalar(), models.scalar()

    def forward(self, x):
        return sum(layer(x.to(layer.weight.dtype)).double() for layer in (self.a, self.b))


def cast_what_lies_apart(ctx, delayed, schedule, at):
    """What no bucket holds, a delayed layer or a frozen one, is cast past the wrapper: before a context, or in its
    iteration ``at``; error, gradients of the other layer and the cast one's weight in the end."""
    assert ctx.subject.regroup, "only who tells peers of failures can refuse on all ranks; others do not offer this"
    module, seen = Apart(), []
    module.b.requires_grad_(delayed)
    late = {"delay_all_reduce_named_params": [("b.weight", module.b.weight)],
            "param_to_hook_all_reduce": module.a.weight}  # fmt: skip
    model = ddp(ctx, module, **(late if delayed else {}))
    model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    block = model.join()

    def loop():
        if at is None:
            module.b.double()
        with block:
            for iteration in range(schedule[ctx.rank]):
                if iteration == at:
                    module.b.double()
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                seen.append(module.a.weight.grad.item())
        seen.append(module.b.weight.item())

    error = caught(loop)
    ctx.meet("told")
    return error, seen


@check("DDPJ-009", worlds=(2, 3), beyond=False, scenarios={"frozen": False, "delayed": True})
def test_what_no_bucket_holds_may_be_cast_before_a_context_and_is_refused_once_a_rank_has_run_out(ranks, scenario):
    schedule = (0, *[3] * (ranks.world - 1))
    for rank, (error, seen) in enumerate(ranks(cast_what_lies_apart, scenario, schedule, None)):
        assert error is None, f"rank {rank}: {error}"
        assert seen == [*scalar_means(schedule)[: schedule[rank]], 1.0], f"rank {rank}"
    schedule = (1, *[4] * (ranks.world - 1))
    for rank, (error, seen) in enumerate(ranks(cast_what_lies_apart, scenario, schedule, 2)):
        assert error is not None, f"rank {rank} goes on with {seen}"
        assert error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert "cast" in error.text, f"rank {rank}: {error}"
        assert seen == scalar_means(schedule)[: min(schedule[rank], 2)], f"rank {rank}"


def change_between_epochs(ctx, casts, joined):
    """Past the wrapper a model is cast, or a frozen part of it thawed; error, gradients of the next epoch, and weights.

    Where that one is a context, rank 0 has no inputs in it.
    """
    module, seen = models.Branches(), []
    module.b.requires_grad_(casts)
    model, optimizer = ddp(ctx, module), torch.optim.SGD(module.parameters(), lr=1.0)

    def loop():
        for epoch in range(2):
            if epoch:
                module.requires_grad_().to(torch.float64 if casts else torch.float32)
            with model.join() if joined else nullcontext():
                for iteration in range(0 if epoch and joined and ctx.rank == 0 else 2):
                    model.zero_grad()
                    x = models.divisible_scalar(ctx.rank, iteration).to(module.a.weight.dtype)
                    model(x, with_b=True).sum().backward()
                    if epoch:
                        seen.append(tuple(map(gradient, module.parameters())))
                    optimizer.step()

    error = caught(loop)
    ctx.meet("told")
    return error, seen, parameters(module)


@check("DDPJ-009", worlds=MANY, beyond=False)
def test_what_is_averaged_after_a_change_is_averaged_too_where_a_rank_has_no_inputs(ranks):
    for casts in (True, False):
        for schedule, joined in (((2,) * ranks.world, False), ((0, *[2] * (ranks.world - 1)), True)):
            means, before = scalar_means(schedule), sum(scalar_means((2,) * ranks.world))
            held = {"a.weight": [1.0 - before - sum(means)], "b.weight": [1.0 - before * casts - sum(means)]}
            right = [(None, [(mean, mean) for mean in means[:count]], held) for count in schedule]
            told = ranks(change_between_epochs, casts, joined)
            if not joined and told != right:
                break  # whoever changes a model after wrapping it is on his own
            assert told == right, f"{casts=}"


def shadow_delayed_after_a_cast(ctx, past):
    """A context of all ranks, a cast, and one in which rank 0 has no inputs; error and gradients."""
    module, seen = models.Branches(), []

    def loop():
        model = ddp(
            ctx,
            module,
            delay_all_reduce_named_params=[("b.weight", module.b.weight)],
            param_to_hook_all_reduce=module.b.weight,
        )
        for epoch, count in enumerate((1, 2 if ctx.rank else 0)):
            if epoch:
                model.zero_grad()
                (module if past else model).double()
            with model.join():
                for iteration in range(count):
                    model.zero_grad()
                    x = models.divisible_scalar(ctx.rank, iteration).to(module.a.weight.dtype)
                    model(x, with_b=True).sum().backward()
                    seen.append((module.a.weight.grad.item(), module.b.weight.grad.item()))

    error = caught(loop)
    ctx.meet("told")
    return error, seen


@check("DDPJ-039", worlds=MANY, beyond=False)
def test_delayed_parameters_are_followed_after_a_cast_or_refused(ranks):
    for past in (False, True):
        told = ranks(shadow_delayed_after_a_cast, past)
        if all(error is not None for error, _ in told):
            ranks.at_limit("delayed all-reduce is refused under uneven inputs, or after a cast")
            continue
        schedules = (1,) * ranks.world, (0, *[2] * (ranks.world - 1))
        for rank, (error, seen) in enumerate(told):
            assert error is None, f"rank {rank} raised {error}"
            means = [mean for schedule in schedules for mean in scalar_means(schedule)[: schedule[rank]]]
            assert seen == [(mean, mean) for mean in means], f"rank {rank}, {past=}"
