"""The witness says in one sentence where ranks part; stall is told from slowness. Without processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.ranks import Caught, Died, Event, Finished, Hung, Raised
from conformance.ranks.stall import LOOK_EVERY_S, MOST_TIMES, Allowance, Look, StallDetector
from conformance.ranks.witness import witness

pytestmark = pytest.mark.slow

REDUCE = Event("all_reduce", "SUM", "float32", (1,), -1, "default", "MainThread", done=True, ranks=(0, 1, 2))
BROADCAST = Event("broadcast", "", "float32", (10,), 1, "default", "MainThread", done=True, ranks=(0, 1, 2))


def waiting(event):
    return replace(event, done=False)


def hung(*events):
    return Hung("", tuple(events))


def test_ranks_that_call_differently_are_named_with_their_calls():
    ends = [hung(REDUCE, waiting(REDUCE)), hung(REDUCE, BROADCAST), hung(REDUCE, waiting(REDUCE))]
    assert witness(ends) == (
        "ranks 0 and 2 wait in all_reduce SUM float32 (1,), their 2nd on group default; "
        "rank 1 went through broadcast float32 (10,) from 1 there."
    )


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (Finished(None, (REDUCE,) * 4), "and then finished"),
        (Raised(Caught(("KeyError", "Exception"), "x"), "", trace=(REDUCE,) * 4), "and then raised KeyError"),
        (Died(-9, "", (REDUCE,) * 4), "and then died (signal 9)"),
        (hung(*(REDUCE,) * 4), "and then hung elsewhere"),
    ],
)
def test_a_rank_that_stops_early_is_told_from_those_that_wait_for_it(end, words):
    others = hung(*(REDUCE,) * 4, waiting(REDUCE))
    assert witness([others, others, end]) == (
        f"rank 2 started 4 collectives on group default {words}; "
        "ranks 0 and 1 wait in their 5th: all_reduce SUM float32 (1,)."
    )


def test_ranks_that_wait_in_different_groups_are_told_so():
    left, right = (replace(waiting(REDUCE), group=name, ranks=(0, 1)) for name in ("left", "right"))
    assert witness([hung(left), hung(right)]) == (
        "rank 1 started 0 collectives on group left and then waited elsewhere, in all_reduce SUM float32 (1,) on group "
        "right; rank 0 waits in its 1st: all_reduce SUM float32 (1,)."
    )


@pytest.mark.parametrize(
    "change", [{"dtype": "int32"}, {"reduce_op": "MAX"}, {"shape": (2,)}, {"op": "reduce", "target": 0}]
)
def test_any_fact_that_must_agree_can_be_the_difference(change):
    ends = [hung(waiting(REDUCE)), hung(waiting(replace(REDUCE, **change))), hung(waiting(REDUCE))]
    assert witness(ends).startswith("ranks 0 and 2 wait in all_reduce SUM float32 (1,), their 1st")


def test_another_layout_of_as_many_elements_is_no_difference():
    ends = [hung(waiting(replace(REDUCE, shape=shape))) for shape in [(6,), (2, 3), (6, 1)]]
    assert witness(ends).startswith("The recorded collectives do not differ; rank 0 hangs in all_reduce")


def test_messages_between_two_ranks_do_not_count_as_the_groups():
    send = Event("send", "", "float32", (1,), -1, "default", "MainThread", done=True, target=1, ranks=(0, 1, 2))
    raised = Raised(Caught(("KeyError",), ""), "", trace=(send, REDUCE))
    assert witness([raised, Finished(1, (REDUCE,)), Finished(1, (REDUCE,))]) == ""


# --- stall


def after(seconds, look_at, progress=lambda i: 0, stall_s=3.0):
    """Whether a run, looked at regularly for so long, counts as silent by the end."""
    quiet = StallDetector(stall_s)
    for i in range(int(seconds / LOOK_EVERY_S) + 1):
        quiet.add(look_at(i), progress(i))
    return quiet.fallen


def asleep(i):
    return Look(i * LOOK_EVERY_S, 5.0, False)


def test_processes_that_all_sleep_are_silent_after_the_stall_and_not_before():
    assert after(3.25, asleep)
    assert not after(2.5, asleep)
    assert not after(3.25, asleep, stall_s=6.0)


def test_progress_starts_the_stall_anew():
    assert not after(10.0, asleep, progress=lambda i: i // 8)
    assert after(10.0, asleep, progress=lambda i: i > 8)


def test_a_starved_process_is_never_silent():
    assert not after(60.0, lambda i: Look(i * LOOK_EVERY_S, 5.0, True))


def test_a_process_that_computes_is_never_silent():
    assert not after(60.0, lambda i: Look(i * LOOK_EVERY_S, 5.0 + 0.9 * i * LOOK_EVERY_S, False))


def test_a_process_that_polls_in_naps_is_silent_three_times_later():
    def polls(i):
        return Look(i * LOOK_EVERY_S, 0.05 * i * LOOK_EVERY_S, i % 10 == 0)

    assert not after(8.5, polls)
    assert after(9.5, polls)


def test_a_driver_that_did_not_get_to_look_judges_nothing():
    quiet = StallDetector(3.0)
    for at_s in (0.0, 0.25, 3.5, 3.75):
        quiet.add(Look(at_s, 0.0, False), 0)
    assert not quiet.fallen


# --- deadlines


def deadline_after(seconds, starved_s, limit_s=4.0):
    """When a run that began at 0 is over, after being looked at for so long; ``starved_s`` by process at a time."""
    allowed = Allowance(0.0, limit_s)
    for i in range(1, int(seconds / LOOK_EVERY_S) + 1):
        at_s = i * LOOK_EVERY_S
        allowed.add(Look(at_s, 0.0, True, starved_s(at_s)))
    return allowed.deadline


def test_a_run_that_gets_its_processor_has_its_limit_and_no_more():
    assert deadline_after(4.0, lambda at_s: {}) == 4.0
    assert deadline_after(4.0, lambda at_s: {"1": 0.0, "2": 0.0}) == 4.0


def test_what_the_most_starved_process_waited_is_added():
    assert deadline_after(4.0, lambda at_s: {"1": 0.5 * at_s, "2": 0.25 * at_s}) == 6.0


def test_waiting_in_turns_counts_for_each_and_never_for_more_than_has_passed():
    assert deadline_after(4.0, lambda at_s: {"1": min(at_s, 2.0), "2": max(at_s - 2.0, 0.0)}) == 8.0
    assert deadline_after(4.0, lambda at_s: {"1": 100.0 * at_s}) == 8.0


def test_a_process_that_has_ended_takes_nothing_back():
    assert deadline_after(4.0, lambda at_s: {"1": at_s} if at_s <= 1.0 else {}) == 5.0


def test_a_deadline_is_not_put_off_for_ever():
    assert deadline_after(1000.0, lambda at_s: {"1": at_s}) == 4.0 * MOST_TIMES
