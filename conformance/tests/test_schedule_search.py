"""The smallest schedule that breaks a check: found, named in the witness, and run again by itself."""

import re
import shlex

import pytest

from conformance.api.checking import NotRun
from conformance.api.schedules import is_even, shapes, uneven_shapes
from conformance.bad_input import BadInput
from conformance.engine import request as ask
from conformance.engine.schedule_search import Schedules, Smallest, smallest_first
from reports.records import read

from . import fakes

pytestmark = pytest.mark.slow


def broken_by(wrong):
    """A check of lists of schedules that notes what it was given."""
    seen = []

    def examine(several):
        seen.append(list(several))
        for schedule in several:
            assert not wrong(schedule), f"wrong at {schedule}"

    return seen, examine


def test_the_usual_shapes_come_first_in_one_go_and_then_drawn_ones_in_another():
    seen, examine = broken_by(lambda _: False)
    Schedules(3).examine(examine)
    usual, drawn = seen
    assert usual == list(shapes(3).values())
    assert len(drawn) > 3
    assert all(len(schedule) == 3 for several in seen for schedule in several)


def test_only_uneven_ones_where_asked_and_none_at_one_rank():
    seen, examine = broken_by(lambda _: False)
    Schedules(3).examine(examine, uneven=True)
    assert seen[0] == uneven_shapes(3)
    assert not any(is_even(schedule) for several in seen for schedule in several)
    seen, examine = broken_by(lambda _: False)
    Schedules(1).examine(examine, uneven=True)
    assert seen == []


def test_what_is_drawn_is_the_same_every_time():
    runs = []
    for _ in range(2):
        seen, examine = broken_by(lambda _: False)
        Schedules(3).examine(examine, fixed=())
        runs.append(seen)
    assert runs[0] == runs[1] != []


def test_a_schedule_that_was_typed_is_the_only_one():
    seen, examine = broken_by(lambda _: False)
    Schedules(2, given=(0, 1)).examine(examine)
    assert seen == [[(0, 1)]]


@pytest.mark.parametrize("fixed", [None, ()], ids=["usual", "drawn"])
def test_what_broke_is_remembered_and_not_run_twice(fixed):
    seen, examine = broken_by(lambda schedule: schedule[1] >= 2)
    schedules = Schedules(3)
    with pytest.raises(AssertionError):
        schedules.examine(examine, fixed=fixed)
    assert schedules.suspects == seen[-1]
    assert any(schedule[1] >= 2 for schedule in schedules.suspects)
    assert seen.count(seen[-1]) == 1


def search(wrong, below, world=3, **options):
    seen, examine = broken_by(wrong)
    with pytest.raises(Smallest) as found:
        Schedules(world, below=below).examine(examine, **options)
    assert all(len(several) == 1 for several in seen)
    return found.value.schedule, found.value.error, seen


def test_the_search_finds_the_smallest_schedule_below_those_that_broke():
    smallest, error, seen = search(lambda schedule: schedule[1] >= 2, [(3, 1, 3), (2, 4, 1)])
    assert smallest == (0, 2, 0)
    assert "wrong at (0, 2, 0)" in str(error)
    assert [sum(several[0]) for several in seen] == sorted(sum(several[0]) for several in seen)


def test_a_break_that_needs_two_ranks_to_differ_is_found_with_one_input():
    assert search(lambda schedule: len(set(schedule)) > 1, [(3, 2)], world=2)[0] == (0, 1)


def test_a_check_of_uneven_schedules_is_not_searched_with_even_ones():
    smallest, _, seen = search(lambda schedule: sum(schedule) >= 2, [(2, 2)], world=2, uneven=True)
    assert smallest == (0, 2)
    assert [(0, 0)] not in seen


def test_a_search_in_which_nothing_breaks_ends_without_a_word():
    seen, examine = broken_by(lambda _: False)
    Schedules(2, below=[(1, 1)]).examine(examine)
    assert len(seen) == 4


def test_a_search_whose_time_is_up_still_makes_its_least_number_of_attempts():
    seen, examine = broken_by(lambda schedule: sum(schedule) == 4)
    Schedules(2, below=[(2, 2)], tries=3, search_s=-1).examine(examine)
    assert [several[0] for several in seen] == [(0, 0), (0, 1), (1, 0)]


def test_what_cannot_be_run_here_is_not_taken_for_a_break():
    def examine(several):
        raise NotRun("no such device")

    with pytest.raises(NotRun):
        Schedules(2, below=[(1, 1)]).examine(examine)


def test_everything_below_is_tried_and_nothing_else():
    found = smallest_first([(1, 2), (0, 3)])
    assert len(found) == len(set(found)) == 7
    assert found[:3] == [(0, 0), (0, 1), (1, 0)]
    assert (0, 3) in found
    assert (1, 3) not in found


# --- what is typed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "1,,2", "one,2", "-1,2", "1.5,1"])
def test_a_schedule_is_a_list_of_whole_numbers(text):
    with pytest.raises(BadInput, match="schedule"):
        ask.schedule(text)


def test_a_schedule_says_for_how_many_ranks_it_is():
    assert ask.schedule_and_worlds("0,1,1", None, "gloo", "") == ((0, 1, 1), (3,))
    assert ask.schedule_and_worlds("0,1,1", "3", "gloo", "") == ((0, 1, 1), (3,))
    with pytest.raises(BadInput, match="for 3 ranks"):
        ask.schedule_and_worlds("0,1,1", "2", "gloo", "")


# --- a planted wrong subject ------------------------------------------------------------------------------------------

CHECKS = """
from conformance.api.checking import check


def add(ctx, several):
    with open(f"run.{ctx.rank}", "a") as log:
        log.write(f"{several}\\n")
    return [ctx.subject.total(schedule) for schedule in several]


def count(ctx, several):
    return [ctx.subject.count(schedule) for schedule in several]


@check("FAKE-001", worlds=(2,))
def test_totals_are_sums(ranks, schedules):
    def examine(several):
        for totals in ranks(add, several):
            assert totals == [sum(schedule) for schedule in several]

    schedules.examine(examine)


@check("FAKE-002", worlds=(2,), deadline_s=60)
def test_everybody_can_count(ranks, schedules):
    schedules.examine(lambda several: ranks(count, several), uneven=True)


@check("FAKE-003", worlds=(2,))
def test_of_nothing_the_total_is_nothing(ranks):
    assert ranks(add, [(0, 0)]) == [[0], [0]]
"""
SUBJECT = """
import os
from conformance.subjects import Subject


def total(schedule):
    return sum(schedule) + (schedule[1] > schedule[0])  # one too many if rank 1 goes on alone


def count(schedule):
    if schedule[1] > 1 + schedule[0]:
        os._exit(9)
    return len(schedule)


subject = Subject("fake", "1.0", {"total": total, "count": count})
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    (folder / "fake_subject.py").write_text(SUBJECT)
    (folder / "test_fake.py").write_text(CHECKS)
    return folder


@pytest.fixture(scope="module")
def whole(place):
    """One run of all three: the report, and what was recorded of each clause."""
    status, out, err = fakes.run(place, "--subject", "fake_subject:subject", "--jobs", "2")
    assert status == 1, err
    return out, {row["clause"]: row for row in read(place / "out/conformance.jsonl").rows}


def test_the_report_names_the_smallest_schedule_that_breaks_a_wrong_subject(whole):
    out, rows = whole
    assert "smallest schedule: (0, 1): " in out
    assert rows["FAKE-001"]["schedule"] == "0,1"
    assert rows["FAKE-001"]["witness"].startswith("smallest schedule: (0, 1): assert [2] == [1]")
    assert rows["FAKE-003"]["outcome"] == "passed"


def test_a_rank_that_dies_is_shown_by_the_smallest_schedule_too(whole):
    out, rows = whole
    assert rows["FAKE-002"]["outcome"] == "crashed"
    assert rows["FAKE-002"]["schedule"] == "0,2"
    # the others are ended as soon as one is seen to have died, which may be before they die themselves
    assert re.search(r"smallest schedule: \(0, 2\): ranks? [01].* died with exit status 9", out)


def test_the_command_runs_that_schedule_and_nothing_else(place, whole):
    out, _ = whole
    again = next(line.partition("again: ")[2] for line in out.splitlines() if "--schedule 0,1" in line)
    words = shlex.split(again)
    (place / "run.0").unlink()
    status, out, err = fakes.run(place, *words[words.index("run") + 1 :])
    assert status == 1, err
    assert (place / "run.0").read_text() == "[(0, 1)]\n", "that one schedule, once"
    assert "assert [2] == [1]" in out


def test_a_schedule_for_checks_that_take_none_is_bad_input(place):
    words = ("--subject", "fake_subject:subject", "--select", "FAKE-003", "--schedule", "0,1")
    status, out, err = fakes.run(place, *words)
    assert (status, out) == (2, "")
    assert "no check that takes a schedule" in err
