"""Throwing on early termination: who raises what and when, what does not happen any more, and what it costs."""

import pickle
import re
import time

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.api.schedules import linear, without_inputs
from conformance.fixtures.joinables import recorder
from conformance.fixtures.observing import started
from conformance.ranks import caught

NAMES = ("a", "b")


def train_each(ctx, several):
    """One fresh throwing context per schedule: what it raised, the log, and how often the first one was notified."""
    seen = []
    for schedule in several:
        log, notified = [], []
        joinables = [recorder(ctx, name, log) for name in NAMES]

        def train(count=schedule[ctx.rank], joinables=joinables, notified=notified):
            try:
                with ctx.subject.Join(joinables, throw_on_early_termination=True):
                    for number in range(count):
                        notified.append(number)
                        for each in joinables:
                            each.step()
            except RuntimeError as error:
                if blamed := getattr(error, "__notes__", None):
                    raise AssertionError(f"somebody is blamed: {blamed}") from error
                raise pickle.loads(pickle.dumps(error)) from error  # as a program has it that sends it to its parent

        seen.append((caught(train), log, len(notified)))
    return seen


def by_schedule(ranks, several):
    return zip(several, zip(*ranks(train_each, several), strict=True), strict=True)


@check("JOIN-041", worlds=MANY)
def test_a_rank_that_runs_out_first_raises_and_names_itself(ranks, schedules):
    def examine(several):
        for schedule, seen in by_schedule(ranks, several):
            for rank, (error, *_) in enumerate(seen):
                if schedule[rank] == min(schedule):
                    assert error is not None, f"rank {rank} of {schedule}"
                    assert error.is_a(RuntimeError)
                    assert blames(rank, error), error
                    assert not [other for other in range(ranks.world) if other != rank and blames(other, error)], error

    schedules.examine(examine, uneven=True)


def blames(rank, error):
    """Whether an error says, in one sentence, that this rank has exhausted its inputs."""
    return re.search(rf"\brank {rank}\b[^.]*\bexhausted\b", error.text, re.IGNORECASE) is not None


@check("JOIN-042", worlds=MANY)
def test_ranks_that_still_have_inputs_raise_at_their_next_notification(ranks, schedules):
    def examine(several):
        for schedule, seen in by_schedule(ranks, several):
            for rank, (error, log, notified) in enumerate(seen):
                if schedule[rank] > min(schedule):
                    assert error is not None, f"rank {rank} of {schedule}"
                    assert error.is_a(RuntimeError)
                    assert "exhausted" in error.text.lower()
                    assert "rank" in error.text.lower()
                    assert not re.match(rf"rank {rank} ", error.text, re.IGNORECASE), "it blames itself"
                    assert not blames(rank, error), "it blames itself"
                    assert notified == min(schedule) + 1
                    assert log == ["a step", "b step"] * min(schedule), "work was done after the failing notification"

    schedules.examine(examine, uneven=True)


@check("JOIN-043", worlds=MANY)
def test_after_a_throw_no_rank_shadows_or_finalises(ranks, schedules):
    def examine(several):
        for schedule, seen in by_schedule(ranks, several):
            for error, log, _ in seen:
                assert error is not None, schedule
                assert log == ["a step", "b step"] * min(schedule), schedule

    schedules.examine(examine, uneven=True, drawn=False)


def throw_in_ddp(ctx, schedule):
    model = ctx.subject.DistributedDataParallel(nn.Linear(1, 1, bias=False).to(ctx.device))

    def train():
        with ctx.subject.Join([model], throw_on_early_termination=True):
            for _ in range(schedule[ctx.rank]):
                model(torch.ones(1, 1, device=ctx.device)).sum().backward()
        return "ended"

    built = len(ctx.trace())
    error = caught(train)
    return error, [str(event) for event in ctx.trace()[built:] if event.op == "broadcast"]


@check("JOIN-041", "JOIN-042", "JOIN-043", worlds=(2, 3), deadline_s=10)
def test_ddp_throws_too_and_broadcasts_no_final_model(ranks):
    for schedule in (linear(ranks.world, 1), linear(ranks.world, 1)[::-1]):
        for rank, (error, broadcasts) in enumerate(ranks(throw_in_ddp, schedule, trace=True)):
            assert error is not None
            assert error.is_a(RuntimeError)
            assert "exhausted" in error.text.lower()
            assert broadcasts == [], f"rank {rank}"


@check("JOIN-044")
def test_throwing_mode_is_silent_when_all_ranks_end_together(ranks):
    several = [(count,) * ranks.world for count in (0, 1, 3)]
    for schedule, seen in by_schedule(ranks, several):
        for error, log, _ in seen:
            assert error is None
            assert log == [*["a step", "b step"] * schedule[0], "a post True", "b post True"]


def list_collectives(ctx, throw):
    """What each of three notifications starts: those of the first joinable, and those of the second."""
    a, b = recorder(ctx), recorder(ctx, "b")
    with ctx.subject.Join([a, b], throw_on_early_termination=throw):
        return [tuple(kinds(started(ctx, one.step)) for one in (a, b)) for _ in range(3)]


def kinds(events):
    return [(event.op, event.reduce_op) for event in events]


@check("JOIN-045")
def test_a_notification_costs_one_all_reduce_and_in_throwing_mode_a_second(ranks):
    for told in ranks(list_collectives, False, trace=True):
        assert [len(first + second) for first, second in told] == [1] * 3
    for told in ranks(list_collectives, True, trace=True):
        assert [len(first + second) for first, second in told] == [2] * 3
        assert all((first + second)[1] == ("all_reduce", "SUM") for first, second in told), told


@check("JOIN-048")
def test_only_the_first_joinable_communicates_in_a_notification(ranks):
    for throw in (False, True):
        for told in ranks(list_collectives, throw, trace=True):
            assert all(first and not second for first, second in told), told


def notify_after_a_look(ctx):
    """The last rank notifies only after it has given the others time to get past their notification."""
    a = recorder(ctx)
    with ctx.subject.Join([a], throw_on_early_termination=True):
        if ctx.rank == ctx.world - 1:
            ctx.store.wait(["about to notify"])
            others_passed = _passed_within(ctx, 0.3)
            a.step()
            return others_passed
        ctx.store.set("about to notify", "1")
        a.step()
        ctx.store.set("passed", "1")
    return False


def _passed_within(ctx, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ctx.store.check(["passed"]):
            return True
        time.sleep(0.02)
    return False


@check("JOIN-045", worlds=(2, 3), deadline_s=10)
def test_a_notification_in_throwing_mode_waits_for_the_other_ranks(ranks):
    assert ranks(notify_after_a_look) == [False] * ranks.world


@check("JOIN-046", worlds=MANY)
def test_a_rank_without_inputs_makes_everybody_throw_at_the_first_notification(ranks):
    several = [without_inputs(ranks.world, rank) for rank in range(ranks.world)]
    for schedule, seen in by_schedule(ranks, several):
        for rank, (error, log, notified) in enumerate(seen):
            assert error is not None, f"rank {rank} of {schedule}"
            assert error.is_a(RuntimeError)
            assert log == []
            assert notified == (0 if schedule[rank] == 0 else 1)


def catch_inside(ctx, notifies_again):
    """Whoever still has inputs catches the throw inside the block, and leaves it as if nothing were wrong."""
    a, inside = recorder(ctx), []

    def train():
        with ctx.subject.Join([a], throw_on_early_termination=True):
            a.step()
            inside.extend(caught(a.step) for _ in range(0 if ctx.rank == 0 else 2 if notifies_again else 1))

    outside, sent = caught(train), len(ctx.trace())
    return [*inside, outside], a.log, sent


@check("JOIN-024", worlds=MANY, deadline_s=8, beyond=False)
def test_a_throw_that_is_caught_inside_the_block_comes_again_and_nothing_is_sent(ranks):
    for notifies_again in (False, True):
        for rank, (errors, log, sent) in enumerate(ranks(catch_inside, notifies_again, trace=True)):
            for error in errors:
                assert error is not None, f"rank {rank} went on as if nobody had run out"
                assert error.is_a(RuntimeError), error
                assert "exhausted" in error.text.lower(), error
            assert (log, sent) == (["a step"], 4), f"rank {rank} did {log} in {sent} collectives"
