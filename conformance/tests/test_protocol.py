"""The protocol explored: small configurations to their end, planted defects found, and the reduction checked."""

import pytest

from conformance.__main__ import main
from conformance.defects import catalogue
from conformance.protocol import driver
from conformance.protocol.configurations import Configuration, everything, telling
from conformance.protocol.programs import PROGRAMS
from conformance.protocol.running import explore
from conformance.protocol.table import Table
from conformance.subjects import resolve


def explored(*arguments, **options):
    return explore(resolve("impl"), Configuration(*arguments, **options))


#: has by far the most orders of steps
LARGEST = "ddp, a forward without backward"


@pytest.mark.parametrize(
    "program", [pytest.param(each, marks=pytest.mark.long) if each == LARGEST else each for each in PROGRAMS]
)
def test_every_program_trains_as_one_process_on_uneven_inputs(program):
    for inputs, options in (((1, 2), {"throws": True}), ((2, 0), {}), ((2, 3, 1), {"divides_by_all": False})):
        found = explored(program, inputs, **options)
        assert not found.violation
        assert found.complete
        assert set(found.ends) == {"threw" if options.get("throws") else "trained"}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["plain", "ddp"])
def test_survivors_of_every_failure_finish_or_name_the_rank_that_failed(program):
    found = explored(program, (1, 0), fails=True)
    assert not found.violation
    assert found.complete
    assert found.failure_points > 50
    assert {"died: named by 1", "raised: named by 1", "trained"} <= set(found.ends)


@pytest.mark.slow
def test_the_reduced_search_comes_to_the_same_ends_as_every_order():
    reduced = explored("plain", (0, 1), fails=True)
    every = explored("plain", (0, 1), fails=True, reduced=False)
    assert set(reduced.ends) == set(every.ends)
    assert reduced.runs < every.runs
    assert reduced.complete
    assert every.complete


def test_two_searches_of_the_same_configuration_find_the_same_states():
    one, other = (explored("ddp", (1, 0), reduced=False) for _ in range(2))
    assert (one.states, one.runs, one.ends) == (other.states, other.runs, other.ends)


def test_a_search_that_runs_out_of_time_is_not_called_complete():
    found = explore(resolve("impl"), Configuration("ddp", (1, 2), reduced=False), more=iter([True, False]).__next__)
    assert found.runs == 1
    assert not found.complete


# what finds it: (program, inputs, options), and words of the violation
PLANTED = {
    "join/failure_is_kept_silent": ("plain", (1, 1), {"fails": True}, "nobody can go on"),
    "join/main_hooks_in_reverse": ("plain, plain", (0, 1), {}, "differs: rank"),
    "join/one_short_counts_as_last": ("plain", (0, 1), {}, "one process computes"),
    "join/exhausted_rank_tells_nobody": ("plain", (0, 1), {"throws": True}, "nobody can go on"),
    "ddp_join/always_divides_by_the_initial_size": ("ddp", (0, 1), {"divides_by_all": False}, "one process computes"),
    "ddp_join/early_announcement_is_not_shadowed": ("ddp, last without backward", (2, 3), {}, "differs: rank"),
    "ddp_join/joined_rank_adds_what_the_buffer_holds": ("ddp", (2, 3, 3), {}, "one process computes"),
    "ddp_join/guessed_source_is_not_confirmed": ("ddp, two buckets and a buffer", (3, 2, 1), {}, "'buffer"),
    "ddp_join/final_model_is_that_of_the_highest_rank": ("ddp", (1, 0), {}, "'weights"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_of_the_protocol_is_found_with_its_schedule(name):
    program, inputs, options, words = PLANTED[name]
    (defect,) = catalogue.select([name], catalogue.load())
    violation = driver.violation_of(defect, [Configuration(program, inputs, **options)], seconds=120)
    assert words in violation
    assert "rank 0 goes on: iteration" in violation or "rank 1 goes on: iteration" in violation


def test_all_schedules_of_both_worlds_are_asked_for_with_and_without_failures():
    asked = everything(["plain", "ddp"], ["ddp"], (2, 3))
    assert len(asked) == len(set(asked))
    for fails in (False, True):
        of_ddp = {each.inputs for each in asked if (each.program, each.fails, each.reduced) == ("ddp", fails, True)}
        assert len(of_ddp) == 4**2 + 4**3
    assert set(telling(asked)) <= set(asked)


def test_time_that_does_not_suffice_leaves_no_program_out():
    asked = everything(list(PROGRAMS), ["ddp"], (2, 3))
    first_large, first_failing = (
        next(at for at, each in enumerate(asked) if holds(each))
        for holds in (lambda each: each.world == 3, lambda each: each.fails)
    )
    assert first_large < first_failing
    for begin in (0, first_large, first_failing):
        assert {each.program for each in asked[begin : begin + 12 * len(PROGRAMS)]} == set(PROGRAMS)


@pytest.mark.slow
def test_the_command_explores_one_schedule_and_says_how_it_ended(capsys):
    asked = ["protocol", "--program", "plain", "--inputs", "0,0", "--minutes", "5", "--jobs", "1"]
    assert main(asked) == 0
    assert "5 of 5 configurations" in capsys.readouterr().out
    assert main(["protocol", "--inputs", "4,0"]) == 2
    assert "inputs 4,0" in capsys.readouterr().err


@pytest.mark.slow
def test_where_no_configuration_is_finished_nothing_is_decided(capsys):
    asked = ["protocol", "--program", "ddp", "--inputs", "3,3,3", "--minutes", "0.0001", "--jobs", "1"]
    assert main(asked) == 4
    assert "nothing was decided: no configuration was finished in 0.0001 minutes" in capsys.readouterr().out


def test_the_table_counts_what_was_explored_of_what_was_asked():
    asked = [Configuration("plain", (0, 1)), Configuration("plain", (1, 0))]
    table = Table(asked)
    table.add(asked[0], explored("plain", (0, 1)))
    assert "1/2" in str(table)
    assert "trained" in str(table)
    assert "1 of 2 configurations" in table.progress()
