"""Contexts that hold DDP and ZeRO: the documented example, what goes before what, loops out of the ordinary."""

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.api.schedules import linear, one_long
from conformance.fixtures import models
from conformance.fixtures.joinables import adder
from conformance.fixtures.observing import elements_of
from conformance.ranks import Finished, Raised


def train_the_documented_example(ctx, first, adds=None):
    """DDP and ZeRO in one context; rank r has ``first + r`` inputs. An adder may communicate in between."""
    torch.manual_seed(ctx.rank)
    model = ctx.subject.DistributedDataParallel(nn.Linear(1, 1).to(ctx.device))
    optimizer = ctx.subject.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, lr=0.01
    )
    other = adder(ctx)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with ctx.subject.Join([model, *([other] if adds else []), optimizer]):
        for number in range(first + ctx.rank):
            loss = model(torch.tensor([float(number)], device=ctx.device)).sum()
            if adds == "before backward":
                other.step(number)
            loss.backward()
            if adds == "after backward":
                other.step(number)
            optimizer.step()
    after = [parameter.detach() for parameter in model.parameters()]
    moved = all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    return moved, [parameter.tolist() for parameter in after], other.total.tolist()


@check("JOIN-033", worlds=MANY, deadline_s=15)
def test_the_documented_example_of_ddp_and_zero_completes_with_equal_replicas(ranks):
    results = ranks(train_the_documented_example, 10)
    assert all(moved for moved, *_ in results)
    assert [parameters for _, parameters, _ in results] == [results[0][1]] * ranks.world


def totals_are_right(ranks, adds):
    expected = sum(number for rank in range(ranks.world) for number in range(2 + rank))
    results = ranks(train_the_documented_example, 2, adds)
    assert [total for *_, total in results] == [[expected] * 3] * ranks.world
    assert [parameters for _, parameters, _ in results] == [results[0][1]] * ranks.world


@check("JOIN-034", worlds=(2, 3), deadline_s=10)
def test_a_users_joinable_adds_up_beside_ddp_and_zero(ranks):
    totals_are_right(ranks, "after backward")


@check("JOIN-040", worlds=(3,), deadline_s=10, beyond=False)
def test_a_users_joinable_adds_up_between_the_forward_and_backward_of_ddp(ranks):
    totals_are_right(ranks, "before backward")


SMALL = 64  # a message of fewer elements is control, whatever its operation


class Buffered(nn.Module):
    """272 parameter elements and a buffer of 80, so that neither is taken for control."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(80))

    def forward(self, inputs):
        self.seen += 1
        return self.linear(inputs)


def train_buffered(ctx, schedule):
    """What each iteration of a live rank started, cut at the end of the forward."""
    model = ctx.subject.DistributedDataParallel(Buffered().to(ctx.device))
    iterations = []
    with ctx.subject.Join([model]):
        for _ in range(schedule[ctx.rank]):
            start = len(ctx.trace())
            output = model(torch.ones(1, 16, device=ctx.device))
            middle = len(ctx.trace())
            output.sum().backward()
            iterations.append((words(ctx.trace()[start:middle]), words(ctx.trace()[middle:])))
    return iterations


def words(events):
    """Each collective in a word: control, or what it carries, which is buffers in forward and gradients in backward."""
    return ["control" if elements_of(event) < SMALL else "tensors" for event in events]


@check("JOIN-053", worlds=MANY, deadline_s=10)
def test_ddp_notifies_before_it_sends_buffers_and_sends_gradients_last(ranks):
    # how many control messages there are, and of what kind, is the implementation's affair: one may carry what others
    # send in several, and a rank that is the only one left may keep to itself what nobody adds to
    schedule = linear(ranks.world, 2)
    for iterations in ranks(train_buffered, schedule, trace=True):
        for number, (forward, backward) in enumerate(iterations):
            if forward:
                assert forward[0] == "control", f"the first collective of an iteration: {forward}"
            if len(oracle.active_ranks(schedule, number)) > 1:
                assert "tensors" in forward, f"no buffers were sent: {forward}"
                assert "tensors" in backward, f"no gradients were sent: {backward}"


def weigh(ctx, schedule, loop):
    """Train on small integers with a loop that is more than forward, backward, step; the final weights."""
    model = ctx.subject.DistributedDataParallel(models.scalar().to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    with ctx.subject.Join([model]):
        for iteration in range(schedule[ctx.rank]):
            optimizer.zero_grad()
            batch = torch.full((1, 1), ctx.rank + 1.0 + iteration, device=ctx.device)
            if loop == "two forwards":
                (model(batch).sum() + model(batch).sum()).backward()
            else:
                model(batch).sum().backward()
            optimizer.step()
            if loop == "evaluation":
                model.eval()
                with torch.no_grad():
                    model(batch)
                model.train()
    return next(model.parameters()).item()


def weighed_alone(schedule, forwards):
    model = models.scalar()
    states = oracle.train_alone(
        model, torch.optim.SGD(model.parameters(), lr=0.25), schedule,
        lambda rank, iteration: torch.full((1, 1), rank + 1.0 + iteration), loss=lambda output: forwards * output.sum(),
    )
    return list(states)[-1]["weight"].item()


def loop_is_right(ranks, loop, forwards=1):
    for schedule, told in ranks.each(weigh, (one_long(ranks.world, 0), linear(ranks.world, 1)), loop):
        assert told == [weighed_alone(schedule, forwards)] * ranks.world, schedule


@check("JOIN-054", worlds=(2,), deadline_s=8)
def test_two_forwards_before_one_backward_leave_the_right_weights(ranks):
    loop_is_right(ranks, "two forwards", 2)


@check("JOIN-054", worlds=(4,), deadline_s=8)
def test_an_evaluation_after_each_step_leaves_the_right_weights(ranks):
    loop_is_right(ranks, "evaluation")


def weigh_in_reverse_order(ctx, schedule):
    """DDP and ZeRO, listed with the optimizer first: the list order that the documents warn of."""
    model = ctx.subject.DistributedDataParallel(models.scalar().to(ctx.device))
    optimizer = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.25)
    with ctx.subject.Join([optimizer, model]):
        for iteration in range(schedule[ctx.rank]):
            optimizer.zero_grad()
            model(torch.full((1, 1), ctx.rank + 1.0 + iteration, device=ctx.device)).sum().backward()
            optimizer.step()
    return next(model.parameters()).item()


@check("JOIN-040", worlds=(2, 4), deadline_s=8)
def test_an_optimizer_listed_before_its_model_is_refused_with_a_reason_or_trains_right(ranks):
    for schedule in (one_long(ranks.world, 0), linear(ranks.world, 1)):
        run = ranks.run(weigh_in_reverse_order, schedule)
        if all(isinstance(end, Raised) for end in run.outcomes):
            texts = [end.error.text.lower() for end in run.outcomes]
            assert all("order" in text or "before" in text for text in texts), texts
            ranks.at_limit("an optimizer listed before its model is refused")
        else:
            assert all(isinstance(end, Finished) for end in run.outcomes), run.summary()
            assert run.values() == [weighed_alone(schedule, 1)] * ranks.world, schedule


def step_again(ctx, steps):
    """Every rank has two batches; after the second one the optimizer steps more often on some ranks."""
    model = ctx.subject.DistributedDataParallel(models.Sum(2).to(ctx.device))
    optimizer = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.25)
    with ctx.subject.Join([model, optimizer]):
        for iteration in range(2):
            optimizer.zero_grad()
            model(models.divisible(ctx.rank, iteration).to(ctx.device)).sum().backward()
            for _ in range(steps[ctx.rank] if iteration else 1):
                optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]


@check("JOIN-054", worlds=(2, 4), deadline_s=8)
def test_an_optimizer_that_steps_again_without_a_forward_between_is_followed(ranks):
    for steps, told in ranks.each(step_again, (linear(ranks.world, 1), linear(ranks.world, 1)[::-1])):
        alone = models.Sum(2)
        ordinary = torch.optim.SGD(alone.parameters(), lr=0.25)
        for iteration in range(2):
            batches = [models.divisible(rank, iteration) for rank in range(ranks.world)]
            averages = oracle.averaged_gradients(alone, batches, ranks.world)
            for name, parameter in alone.named_parameters():
                parameter.grad = averages[name].clone()
            for _ in range(max(steps) if iteration else 1):
                ordinary.step()
        expected = [parameter.tolist() for parameter in alone.parameters()]
        assert told == [expected] * ranks.world, f"steps behind the last batch: {steps}"
