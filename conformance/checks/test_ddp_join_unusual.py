"""Loops that differ from one forward and one backward an iteration: the document asks for no change to them."""

import contextlib
import copy
import itertools
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import summing
from conformance.fixtures.joinables import adder
from conformance.fixtures.observing import assert_told
from conformance.fixtures.training import ddp, gradient, gradients, private, scalar_means
from conformance.ranks import caught
from conformance.subjects import DETECTION

BUFFERED = {"without buffers": False, "with buffers": True}


def new_model(ctx, buffers):
    return ddp(ctx, models.Counting(1.0)) if buffers else ddp(ctx, torch.nn.ModuleDict({"a": models.scalar()}).a)


def weight_of(model):
    return next(model.parameters())


def evaluate(model, x):
    with torch.no_grad():
        model(x)


def evaluate_also_in_vain(model, x):
    """Once more the forward fails, which the loop catches."""

    def fail(*_):
        raise KeyError("a picture that nobody can read")

    evaluate(model, x)
    with model.module.register_forward_pre_hook(fail), contextlib.suppress(KeyError):
        evaluate(model, x)


def evaluate_in_eval_mode(model, x):
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()


def forward_only(model, x):
    model(x)  # with gradients, but nobody calls backward


def move_to_where_it_is(model, x):
    model.to(x.device).float()


def train_with_extra_forwards(ctx, schedule, extra, buffers, first=False):
    """``extra`` is called after each iteration; or, where it comes ``first``, once before all others."""
    model = new_model(ctx, buffers)
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            x = models.divisible_scalar(ctx.rank, iteration)
            if first and iteration == 0:
                extra(model, x)
            model.zero_grad()
            model(x).sum().backward()
            seen.append(gradient(weight_of(model)))
            if not first:
                extra(model, x)
    return seen


def means(schedule, factor=1.0):
    """Per iteration, the averaged gradient of a scalar weight."""
    rows = [factor * mean for mean in scalar_means(schedule)]
    return [rows[:count] for count in schedule]


def ends(world):
    """Rank 0 alone to the end, and rank 0 first to join."""
    return (3, *[1] * (world - 1)), (0, *[2] * (world - 1))


def assert_extra_forwards_do_no_harm(ranks, extra, buffers, first=False):
    for schedule, told in ranks.each(train_with_extra_forwards, ends(ranks.world), extra, buffers, first):
        assert told == means(schedule), f"schedule {schedule}, {first=}"


@check("DDPJ-038", "JOIN-054", worlds=MANY, scenarios=BUFFERED, beyond=False)
def test_forwards_without_gradients_between_iterations_do_no_harm(ranks, scenario):
    assert_extra_forwards_do_no_harm(ranks, evaluate_also_in_vain, scenario)


def evaluate_on_another_thread(ctx, schedule, buffers):
    """While each backward runs."""
    model, seen = new_model(ctx, buffers), []
    with ThreadPoolExecutor(1) as another, model.join():
        for iteration in range(schedule[ctx.rank]):
            x = models.divisible_scalar(ctx.rank, iteration)
            model.zero_grad()
            output = model(x)
            output.register_hook(lambda _, x=x: another.submit(evaluate_in_eval_mode, model, x).result())
            output.sum().backward()
            seen.append(gradient(weight_of(model)))
    return seen


@check("DDPJ-038", "JOIN-054", worlds=(2,), scenarios=BUFFERED)
def test_forwards_in_eval_mode_between_iterations_do_no_harm(ranks, scenario):
    assert_extra_forwards_do_no_harm(ranks, evaluate_in_eval_mode, scenario)
    for schedule, told in ranks.each(evaluate_on_another_thread, ends(ranks.world), scenario):
        assert told == means(schedule), f"schedule {schedule}, on another thread"


@check("JOIN-054", worlds=MANY, scenarios=BUFFERED, beyond=False)
def test_forwards_without_a_backward_do_no_harm(ranks, scenario):
    assert_extra_forwards_do_no_harm(ranks, forward_only, scenario)
    assert_extra_forwards_do_no_harm(ranks, forward_only, scenario, first=True)


@check("DDP-034", worlds=MANY, scenarios=BUFFERED, beyond=False)
def test_a_model_may_be_moved_to_where_it_is_when_others_have_joined(ranks, scenario):
    assert_extra_forwards_do_no_harm(ranks, move_to_where_it_is, scenario)


def evaluate_then_leave(ctx, schedule):
    model = new_model(ctx, True)
    with model.join(), torch.no_grad():
        for _ in range(schedule[ctx.rank]):
            model(torch.ones(1, 1))
    return len(model.module.seen), model.module.count.item()


@check("DDPJ-038", worlds=MANY)
def test_a_context_may_hold_nothing_but_evaluation(ranks):
    schedule = tuple(1 + rank for rank in range(ranks.world))
    for rank, (forwards, count) in enumerate(ranks(evaluate_then_leave, schedule)):
        assert forwards == schedule[rank]
        assert count in range(1, ranks.world + 1)


def evaluate_beside_an_adder(ctx, schedule, trains):
    """A metric adds up after each forward; every second one, or each, is an evaluation. Its total, and gradients."""
    model, metric, seen = new_model(ctx, False), adder(ctx), []
    with ctx.subject.Join([model, metric]):
        for iteration in range(schedule[ctx.rank]):
            x = models.divisible_scalar(ctx.rank, iteration)
            if trains and iteration % 2 == 0:
                model.zero_grad()
                model(x).sum().backward()
                seen.append(gradient(weight_of(model)))
            else:
                evaluate(model, x)
            metric.step(x.item())
    return metric.total.tolist(), metric.log.count("adder main"), seen


@check("DDPJ-038", worlds=MANY, deadline_s=8, beyond=False)
def test_a_joinable_beside_a_model_may_add_up_what_evaluations_find(ranks):
    several = itertools.product((*ends(ranks.world), (2, *[4] * (ranks.world - 1))), (False, True))
    for (schedule, trains), told in ranks.each(evaluate_beside_an_adder, several, spread=True):
        total = sum(
            models.divisible_scalar(rank, iteration).item()
            for rank, count in enumerate(schedule) for iteration in range(count)
        )  # fmt: skip
        for rank, (found, missed, seen) in enumerate(told):
            assert found == [total] * 3, f"rank {rank} of {schedule}, {trains=}"
            assert missed == max(schedule) - schedule[rank], f"rank {rank} of {schedule}, {trains=}"
            expected = scalar_means(schedule)[: schedule[rank]][::2] if trains else []
            assert seen == expected, f"rank {rank} of {schedule}, {trains=}"


def forward_twice(ctx, schedule, buffers):
    model = new_model(ctx, buffers)
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            x = models.divisible_scalar(ctx.rank, iteration)
            model.zero_grad()
            (model(x) + model(x)).sum().backward()
            seen.append(gradient(weight_of(model)))
    return seen


@check("JOIN-054", worlds=MANY, scenarios=BUFFERED, beyond=False)
def test_two_forwards_before_one_backward_can_be_joined(ranks, scenario):
    for schedule, told in ranks.each(forward_twice, ends(ranks.world), scenario):
        assert told == means(schedule, factor=2.0), f"schedule {schedule}"


def tally(ctx):
    """A joinable that counts iterations of all ranks with collectives of another size than DDP's."""

    class Hook(ctx.subject.JoinHook):
        def main_hook(self):
            dist.all_reduce(torch.zeros(3))

    class Tally(ctx.subject.Joinable):
        def __init__(self):
            super().__init__()
            self.totals = []

        def __call__(self):
            ctx.subject.Join.notify_join_context(self)
            mine = torch.ones(3)
            dist.all_reduce(mine)
            self.totals.append(mine[0].item())

        def join_hook(self, **_keywords):
            return Hook()

        @property
        def join_device(self):
            return ctx.device

        @property
        def join_process_group(self):
            return ctx.group

    return Tally()


def train_and_tally(ctx, schedule, between):
    model, counter = ddp(ctx, models.Sum(), bucket_cap_mb=1e-4), tally(ctx)
    seen = []
    with ctx.subject.Join([model, counter]):
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            loss = model(models.divisible(ctx.rank, iteration)).sum()
            if between:
                counter()
            loss.backward()
            if not between:
                counter()
            seen.append(model.module.layers[0].bias.grad[0].item())
    return seen, counter.totals


def assert_both_are_right(ranks, between):
    for schedule, told in ranks.each(train_and_tally, ends(ranks.world), between):
        active = [len(oracle.active_ranks(schedule, i)) for i in range(max(schedule))]
        rows = 12  # of a batch; the bias of the first layer counts them
        for rank, (seen, totals) in enumerate(told):
            assert totals == active[: schedule[rank]], f"rank {rank}, schedule {schedule}"
            assert seen == [rows * a / ranks.world for a in active[: schedule[rank]]], f"rank {rank}, {schedule}"


@check("JOIN-034", "JOIN-027", worlds=MANY, beyond=False)
def test_a_second_joinable_may_communicate_after_the_backward(ranks):
    assert_both_are_right(ranks, between=False)


@check("JOIN-040", worlds=MANY, beyond=False)
def test_a_second_joinable_may_communicate_between_forward_and_backward(ranks):
    assert_both_are_right(ranks, between=True)


def train_two_in_turn(ctx, schedule, listed):
    """Two models, one of them with buffers; forwards and backwards in an order of their own."""
    pair = ddp(ctx, models.Counting(1.0)), ddp(ctx, models.Sum(3))
    seen = []
    with ctx.subject.Join([pair[index] for index in listed]):
        for iteration in range(schedule[ctx.rank]):
            first, second = pair
            for model in pair:
                model.zero_grad()
            x = models.divisible_scalar(ctx.rank, iteration)
            losses = first(x).sum(), second(models.divisible(ctx.rank, iteration)).sum()
            for loss in reversed(losses):
                loss.backward()
            seen.append((gradient(first.module.a.weight), second.module.layers[0].bias.grad[0].item()))
    return seen


@check("JOIN-040", worlds=MANY, beyond=False)
def test_neither_the_order_of_the_list_nor_that_of_the_passes_matters(ranks):
    several = itertools.product(ends(ranks.world), ((0, 1), (1, 0)))
    for (schedule, listed), told in ranks.each(train_two_in_turn, several, spread=True):
        rows = [
            [(mean, 12.0 * len(oracle.active_ranks(schedule, i)) / ranks.world) for i, mean in enumerate(mine)]
            for mine in means(schedule)
        ]
        assert told == rows, f"schedule {schedule}, list order {listed}"


def cross_over(ctx, joined):
    """Ranks that run two models of the same size in different orders; the error on this rank.

    Or rank 0 has ``joined``, and the others go backward in different orders, having gone forward alike.
    """
    pair = [ddp(ctx, models.scalar()) for _ in range(2)]

    def train():
        with ctx.subject.Join(pair):
            for iteration in range(0 if joined and ctx.rank == 0 else 1 + joined):
                turned = iteration == joined and ctx.rank % 2 == 0
                if not joined:
                    for model in reversed(pair) if turned else pair:
                        model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                    continue
                losses = [model(models.divisible_scalar(ctx.rank, iteration)).sum() for model in pair]
                for loss in reversed(losses) if turned else losses:
                    loss.backward()

    return caught(train)


@check("JOIN-040", worlds=MANY, beyond=False)
def test_ranks_that_run_two_models_in_different_orders_are_told_so(ranks):
    for joined in (False, True)[: ranks.world - 1]:
        for rank, error in enumerate(ranks(cross_over, joined)):
            assert error is not None, f"gradients of one model have been added to those of the other, rank {rank}"
            assert error.is_a(RuntimeError)


def list_in_another_order(ctx, listed, options):
    """The last rank has no inputs, and lists two models of one shape as it likes; they begin alike and learn apart.

    Error and weights. Rank 0 trains a copy of the second one, which stands for the original.
    """
    first, second = [ddp(ctx, models.scalar()) for _ in range(2)]
    pair, last = [first, copy.deepcopy(second) if ctx.rank == 0 else second], ctx.rank == ctx.world - 1

    def train():
        with ctx.subject.Join([pair[index] for index in listed] if last else pair, **(options if last else {})):
            for rate, model in enumerate([] if last else pair, 1):
                model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
                with torch.no_grad():
                    model.module.weight -= rate * model.module.weight.grad

    return caught(train), [model.module.weight.item() for model in pair]


OTHERWISE = [
    ((1, 0), {}), ((0, 1), {"divide_by_initial_world_size": False}), ((0, 1), {"throw_on_early_termination": True})
]  # fmt: skip


@check("JOIN-040", worlds=(2, 3), beyond=False)
def test_models_that_a_rank_without_inputs_lists_otherwise_are_not_taken_for_each_other(ranks):
    assert ranks.subject.PeerFailed
    alike = ranks(list_in_another_order, (0, 1), {})
    assert alike == [(None, alike[0][1])] * ranks.world
    for listed, options in OTHERWISE:
        for rank, (error, weights) in enumerate(ranks(list_in_another_order, listed, options)):
            about = f"rank {rank}, {listed=}, {options}: {error}, {weights}"
            assert error is not None, about
            assert error.is_a(RuntimeError), about
            assert "in another order" in error.text, about


def be_alone_then_idle(ctx, epochs):
    """A context for each epoch; the averaged gradients that this rank saw."""
    model, seen = ddp(ctx, models.scalar()), []
    for schedule in epochs:
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                seen.append(gradient(model.module.weight))
    return seen


@check("DDPJ-034", worlds=MANY, beyond=False)
def test_who_was_alone_in_one_context_may_be_without_inputs_in_the_next(ranks):
    epochs = (*[1] * (ranks.world - 1), 4), (*[3] * (ranks.world - 1), 0)
    rows = [first + second for first, second in zip(*map(means, epochs), strict=True)]
    assert ranks(be_alone_then_idle, epochs) == rows


def forward_twice_in_each_epoch(ctx, epochs, extra, together):
    """A context for each epoch, one of them perhaps with a second model; the gradients that this rank saw."""
    model, beside, seen = ddp(ctx, models.scalar()), ddp(ctx, models.scalar()), []
    for number, schedule in enumerate(epochs):
        with ctx.subject.Join([model, beside] if together and number else [model]):
            for iteration in range(schedule[ctx.rank]):
                x = models.divisible_scalar(ctx.rank, iteration)
                model.zero_grad()
                extra(model, x)
                loss = model(x).sum()
                if together and number:
                    loss = loss + beside(x).sum()
                loss.backward()
                seen.append(gradient(model.module.weight))
    return seen


@check(
    "JOIN-054", worlds=MANY, beyond=False,
    scenarios={"forwards": (forward_only, False), "evaluations": (evaluate, False), "two models": (forward_only, True)},
)
def test_two_forwards_before_one_backward_are_right_after_a_context_in_which_a_rank_was_alone(ranks, scenario):
    extra, together = scenario
    rest = ranks.world - 1
    several = (
        ((*[0] * rest, 2), (*[0] * rest, 1)),
        ((*[1] * rest, 3), (*[0] * rest, 1), (2, *[1] * rest)),
        ((3, *[1] * rest), (*[1] * rest, 2), (1,) * ranks.world),
    )
    for epochs, told in ranks.each(forward_twice_in_each_epoch, several, extra, together):
        rows = [list(itertools.chain(*each)) for each in zip(*map(means, epochs), strict=True)]
        assert told == rows, f"schedules {epochs}"


def leave_behind(ctx, ways):
    """By way, how the last rank's last iteration of an inner context ends: the gradients in the outer one."""
    told = []
    for way in ways:
        model, seen = ddp(ctx, models.scalar()), []

        def fail(*_, way=way):
            raise KeyError(way)

        with model.join():
            with model.join(), contextlib.suppress(KeyError):
                for iteration in range(5 if ctx.rank == ctx.world - 1 else 1):
                    with contextlib.ExitStack() as last:
                        if iteration == 4 and way == "in its forward":
                            last.enter_context(model.module.register_forward_pre_hook(fail))
                        if iteration == 4 and way == "in its backward":
                            last.enter_context(model.module.weight.register_hook(fail))
                        loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
                        if iteration < 4 or way == "in its backward":
                            loss.backward()
            for iteration in range(2):
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                seen.append(gradient(model.module.weight))
        told.append(seen)
    return told


@check("JOIN-054", worlds=MANY, beyond=False)
def test_forwards_and_batches_that_the_last_rank_gives_up_in_an_inner_context_do_no_harm_in_the_outer_one(ranks):
    ways = ("without a backward", "in its forward", "in its backward")
    for rank, (told, right) in enumerate(zip(ranks(leave_behind, ways), means((2,) * ranks.world), strict=True)):
        assert told == [right] * len(ways), f"rank {rank}"


def fail_on_one(ctx, schedule, failing):
    model = ddp(ctx, models.Sum(), bucket_cap_mb=1e-4)
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            if ctx.rank == failing and iteration == 1:
                raise KeyError("the data of this rank ended in the middle of a file")
            model(models.divisible(ctx.rank, iteration)).sum().backward()


@check("JOIN-024", worlds=MANY)
def test_a_rank_that_fails_under_ddp_is_named_to_its_peers(ranks):
    run = ranks.run(fail_on_one, (2, *[4] * (ranks.world - 1)), ranks.world - 1)
    *peers, failed = run.outcomes
    assert failed.error.is_a(KeyError), run.summary()
    for rank, peer in enumerate(peers):
        assert type(peer).__name__ == "Raised", f"rank {rank}: {run.summary()}"
        assert_told(peer.error, ranks.world - 1)


def skip_a_batch_that_fails(ctx, schedule, at, where, before=""):
    """The highest rank's batch ``at`` fails, in its forward, its loss or its backward; caught inside the block.

    ``where`` it is "again", its backward fails and is tried again. ``before``: what all ranks do first, "hook" (they
    register one) or "accumulate" (a batch in each first iteration).
    """
    model = ddp(ctx, models.Sum(), bucket_cap_mb=1e-4)
    if before == "hook":
        model.register_comm_hook(None, summing)

    def fail(*_):
        raise KeyError("a label that nobody knows")

    with model.join():
        for iteration in range(schedule[ctx.rank]):
            bad = ctx.rank == ctx.world - 1 and iteration == at
            if before == "accumulate" and iteration == 0:
                with model.no_sync():
                    model(models.divisible(ctx.rank, iteration)).sum().backward()
            try:
                if bad and where == "forward":
                    with model.module.layers[1].register_forward_pre_hook(fail):
                        model(models.divisible(ctx.rank, iteration))
                loss = model(models.divisible(ctx.rank, iteration)).sum()
                if bad and where == "between":
                    fail()
                if bad and where == "backward":
                    with model.module.layers[0].weight.register_hook(fail):
                        loss.backward()
                if bad and where == "again":
                    with model.module.layers[0].weight.register_hook(fail):
                        caught(loss.backward, retain_graph=True)
                loss.backward()
            except KeyError:
                continue


@check(
    "JOIN-024", worlds=(2, 3, 4), beyond=False,
    scenarios={"in forward": "forward", "in backward": "backward"},
)
def test_a_batch_that_fails_on_one_rank_and_is_caught_inside_the_block_is_told_on_every_rank(ranks, scenario):
    everybody, one_joined = (3,) * ranks.world, (1, *[4] * (ranks.world - 1))
    some = [(everybody, 1), (everybody, 2)] + [(one_joined, 2)] * (ranks.world > 2)
    runs = [(schedule, at, scenario) for schedule, at in some]  # 2 is everybody's last: then it shows at the end
    for schedule, at, where in runs + [(*some[0], "again")] * (scenario == "backward"):
        run = ranks.run(skip_a_batch_that_fails, schedule, at, where)
        everybody_is_told(run, f"schedule {schedule}, batch {at}")
    # when it fails in the first iteration of its own, others may be in it, too, or have left it in peace
    run = ranks.run(skip_a_batch_that_fails, (*[2] * (ranks.world - 1), 4), 2, scenario)
    ends = {type(outcome).__name__ for outcome in run.outcomes}
    assert ends in ({"Raised"}, {"Finished"}), run.summary()
    # later it has long been the only one; joined ranks run a communication hook all the same
    run = ranks.run(skip_a_batch_that_fails, (*[1] * (ranks.world - 1), 5), 3, scenario, "hook")
    if scenario == "backward" or {type(outcome).__name__ for outcome in run.outcomes} != {"Finished"}:
        everybody_is_told(run, "the last one with inputs")


def fail_alike(ctx, schedule, bad):
    """These iterations' forwards fail on all ranks alike, caught inside the block; the gradients of the others."""
    model, seen = ddp(ctx, nn.Sequential(models.scalar())), []

    def fail(*_):
        raise KeyError("a label that nobody knows")

    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            with contextlib.suppress(KeyError), contextlib.ExitStack() as failing:
                if iteration in bad:
                    failing.enter_context(model.module[0].register_forward_pre_hook(fail))
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                seen.append(gradients(model)["0.weight"][0])
    return seen


@check("JOIN-054", worlds=MANY, beyond=False)
def test_forwards_that_fail_on_all_ranks_alike_are_left_out_as_they_are_without_a_context(ranks):
    bad = (1, 2)
    for schedule, told in ranks.each(fail_alike, ((4,) * ranks.world, (*[4] * (ranks.world - 1), 6)), bad):
        means = scalar_means(schedule)
        for rank, seen in enumerate(told):
            expected = [means[iteration] for iteration in range(schedule[rank]) if iteration not in bad]
            assert seen == expected, f"rank {rank}, schedule {schedule}"


def everybody_is_told(run, about):
    """Every rank has ended with a RuntimeError that names the highest rank."""
    for rank, outcome in enumerate(run.outcomes):
        assert type(outcome).__name__ == "Raised", f"rank {rank}, {about}: {run.summary()}"
        assert_told(outcome.error, len(run.outcomes) - 1)


class Tallied(models.Parts):
    """Layers side by side, beside a buffer."""

    def __init__(self):
        super().__init__()
        self.count: torch.Tensor
        self.register_buffer("count", torch.ones(1))


def stumble(ctx, schedule, at, where):
    """The highest rank's batch ``at`` goes wrong where others are in collectives; whatever is raised is caught inside.

    ``where``: the communication hook fails at the first bucket, the buffer hook fails before or after the forward, an
    evaluation fails before its buffer hook, or a layer is left out, of which the next forward complains, or the end of
    the block.
    """
    model, batch = ddp(ctx, Tallied(), bucket_cap_mb=1e-4), -1

    def fails(*places):
        return where in places and ctx.rank == ctx.world - 1 and batch == at

    def reduce(_state, bucket):
        if fails("communication hook"):
            raise KeyError("a disk that is full")
        return summing(None, bucket)

    def average(_state, buffers):
        if fails("PRE_FORWARD", "POST_FORWARD"):
            raise KeyError("a disk that is full")
        return [dist.all_reduce(buffer, async_op=True).get_future() for buffer in buffers.values()]

    def spoil(*_):
        if fails("evaluation"):
            raise KeyError("a picture that nobody can read")

    model.register_comm_hook(None, reduce)
    model.module.register_forward_pre_hook(spoil)
    if where in ("PRE_FORWARD", "POST_FORWARD", "evaluation"):
        place = "POST_FORWARD" if where == "evaluation" else where
        places = private(ctx.subject.ddp, "_BufferCommHookLocation")
        private(model, "_register_buffer_comm_hook")(None, average, getattr(places, place))
    with model.join():
        for batch in range(schedule[ctx.rank]):
            model.module.use = "ab" if fails("a layer") else "abc"
            if where == "evaluation":
                with torch.no_grad(), contextlib.suppress(Exception):
                    model(models.divisible(ctx.rank, batch))
            with contextlib.suppress(Exception):
                model(models.divisible(ctx.rank, batch)).sum().backward()


def stumble_over_both(ctx):
    """The last rank with inputs fails in the forward of one model, and in the same batch in the hook of another one."""
    pair, batch = [ddp(ctx, models.scalar()) for _ in range(2)], -1

    def spoil(*_):
        if batch == 2:
            raise KeyError("a picture that nobody can read")

    def reduce(_state, bucket):
        spoil()
        return summing(None, bucket)

    pair[0].module.register_forward_pre_hook(spoil)
    pair[1].register_comm_hook(None, reduce)
    with ctx.subject.Join(pair):
        for batch in range(4 if ctx.rank == ctx.world - 1 else 1):
            for model in pair:
                with contextlib.suppress(Exception):
                    model(models.divisible_scalar(ctx.rank, batch)).sum().backward()


@check("JOIN-024", worlds=(2, 3), beyond=False)
def test_a_batch_that_fails_on_one_rank_in_a_hook_of_the_users_is_told_on_every_rank(ranks):
    everybody_is_told(ranks.run(stumble_over_both), "two models")
    everybody, alone = (3,) * ranks.world, (*[1] * (ranks.world - 1), 5)
    for schedule, at, where in (
        (alone, 3, "communication hook"), (everybody, 1, "a layer"), (everybody, 2, "a layer"),
        (alone, 3, "PRE_FORWARD"), (everybody, 1, "POST_FORWARD"), (everybody, 1, "evaluation"),
    ):  # fmt: skip
        everybody_is_told(ranks.run(stumble, schedule, at, where), f"schedule {schedule}, batch {at}, {where}")


def lose_one_of_two_losses(ctx, last, lost):
    """Of two models' losses the highest rank's last one of model ``lost`` fails, caught inside the block."""
    pair = [ddp(ctx, models.Sum(), bucket_cap_mb=1e-4) for _ in range(2)]
    with ctx.subject.Join(pair):
        for iteration in range(1 + last):
            losses = [model(models.divisible(ctx.rank, iteration)).sum() for model in pair]
            for place, loss in enumerate(losses):
                if place != lost or iteration < last or ctx.rank < ctx.world - 1:
                    loss.backward()


def lose_a_loss_beside_another_joinable(ctx, at):
    """An iteration begins with a joinable of the user's; the highest rank's loss ``at`` fails, caught inside."""
    beside, model = adder(ctx), ddp(ctx, models.Sum(), bucket_cap_mb=1e-4)
    with ctx.subject.Join([beside, model]):
        for iteration in range(3):
            beside.step(1.0)
            loss = model(models.divisible(ctx.rank, iteration)).sum()
            if iteration != at or ctx.rank < ctx.world - 1:
                loss.backward()


@check("JOIN-024", worlds=(2, 3), beyond=False)
def test_a_loss_that_fails_on_one_rank_and_is_caught_inside_the_block_is_told_on_every_rank(ranks):
    everybody, one_joins = (3,) * ranks.world, (2, *[4] * (ranks.world - 1))
    runs = [(skip_a_batch_that_fails, schedule, at, "between") for schedule, at in [(everybody, 1), (everybody, 2)]]
    runs += [(skip_a_batch_that_fails, one_joins, 2, "between")] * (ranks.world > 2)
    runs += [(skip_a_batch_that_fails, everybody, 1, "between", "accumulate")]
    runs += [(lose_one_of_two_losses, 1, lost) for lost in (0, 1)]
    runs += [(lose_a_loss_beside_another_joinable, at) for at in (0, 1)]
    for program in runs:  # who waits for what nobody has left out is told by those who have, not by their silence
        everybody_is_told(ranks.run(*program, env={DETECTION: "60"}), program)


def leave_losses_out(ctx, schedule, left_out, buffers):
    """All ranks leave out the same backwards; ``left_out``: of which iterations. Twice the forward in iteration 2.

    A second context leaves out none, and in it the others have to wait for rank 0.
    """
    model = ddp(ctx, Tallied() if buffers else models.Sum(), bucket_cap_mb=1e-4)
    told = []
    for missing in (left_out, ()):
        told.append([])
        with model.join():
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                if not missing and ctx.rank == 0:
                    time.sleep(0.1)
                loss = model(models.divisible(ctx.rank, iteration)).sum()
                if iteration == 2:
                    loss = model(models.divisible(ctx.rank, iteration)).sum()
                if iteration not in missing:
                    loss.backward()
                    told[-1].append([parameter.grad.tolist() for parameter in model.parameters()])
    return told


@check("JOIN-024", worlds=(2, 3), beyond=False)
def test_ranks_that_all_leave_out_the_same_backwards_go_on(ranks):
    for left_out, buffers in (((1,), False), ((0, 1), True)):
        go_on_without(ranks, left_out, buffers)


@check("JOIN-054", worlds=(3,), beyond=False)
def test_forwards_without_a_backward_that_all_live_ranks_leave_so_do_no_harm(ranks):
    for buffers, early in ((False, 3), (True, 3), (True, 2)):
        go_on_without(ranks, (3,), buffers, early)


def go_on_without(ranks, left_out, buffers, early=3):
    """``early``: the inputs of rank 0; with 2 it has run out before any backward is left out."""
    schedule = (early, *[5] * (ranks.world - 1))
    for rank, (first, second) in enumerate(ranks(leave_losses_out, schedule, left_out, buffers)):
        kept = [means for iteration, means in enumerate(second) if iteration not in left_out]
        assert first == kept, f"rank {rank}, without {left_out}"
        assert second == averages_of(schedule, buffers)[: schedule[rank]], f"rank {rank}, behind {left_out}"


def averages_of(schedule, buffers):
    """What one process computes, by iteration."""
    module, rows = Tallied() if buffers else models.Sum(), []
    for iteration in range(max(schedule)):
        batches = [models.divisible(rank, iteration) for rank in oracle.active_ranks(schedule, iteration)]
        found = oracle.averaged_gradients(module, batches, len(schedule))
        rows.append([found[name].tolist() for name, _ in module.named_parameters()])
    return rows


def die_on_one(ctx, dying, joined):
    """One rank dies in the forward of the last iteration; the backwards of the others begin apart from each other."""
    model = ddp(ctx, models.Sum())  # in one bucket, which nothing follows that would fail in its place
    with model.join(enable=joined):
        for iteration in range(2):
            loss = model(models.divisible(ctx.rank, iteration)).sum()
            if iteration == 1:
                time.sleep(0.06 if ctx.rank == dying else 0.025 * ctx.rank)
                if ctx.rank == dying:
                    os._exit(3)
            loss.backward()


@check("JOIN-057", "DDP-049", worlds=(3,), deadline_s=20)
def test_where_a_rank_dies_no_backward_ends_well_and_nobody_else_is_blamed(ranks):
    for dying, joined in ((ranks.world - 1, True), (0, False)):
        run = ranks.run(die_on_one, dying, joined)
        assert type(run.outcomes[dying]).__name__ == "Died", run.summary()
        for rank, peer in enumerate(run.outcomes):
            assert type(peer).__name__ != "Finished", f"rank {rank} noticed nothing"
            if type(peer).__name__ == "Raised":
                named = re.findall(r"\brank (\d+)", peer.error.text)
                assert not named or str(dying) in named, f"rank {rank}: {peer.error}"


def leave_all_alike(ctx):
    """The last rank ends a context alone. Before the next, ranks send what is no collective; all leave it alike.

    Then they train in a third one.
    """
    model = ddp(ctx, models.scalar())
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.0)
    with model.join():
        for iteration in range(1 + 4 * (ctx.rank == ctx.world - 1)):
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
    zero.consolidate_state_dict(0)
    message = torch.ones(1, device=ctx.device)
    for _ in range(3):
        if ctx.rank == 0:
            dist.send(message, 1)
        elif ctx.rank == 1:
            dist.recv(message, 0)
    left = caught(raise_inside, model)
    assert left is not None
    assert left.is_a(KeyError)
    seen = []
    with model.join():
        for iteration in range(1 + ctx.rank):
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradient(model.module.weight))
    return seen


def raise_inside(model):
    with model.join():
        raise KeyError("on every rank")


@check("DDPJ-034", worlds=(3,))
def test_a_context_that_all_ranks_left_alike_keeps_nobody_from_the_next_whatever_was_sent_between(ranks):
    assert ranks(leave_all_alike) == means(tuple(range(1, 1 + ranks.world)))
