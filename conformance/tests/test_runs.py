"""The run on values: verdicts, deviations and their staleness, standings and exit statuses. Starts no process."""

from dataclasses import replace

import pytest

from conformance import deviations
from conformance.api.checking import NotRun, check
from conformance.bad_input import BadInput
from conformance.clauses import Catalogue
from conformance.deviations import Deviation, excuse
from conformance.deviations.stale import Scope, stale
from conformance.engine import report, verdict
from conformance.engine import request as ask
from conformance.engine.judgement import Judgement, Standing, standing
from conformance.ranks import Caught, Died, Event, Finished, Hung, NotRunnable, Raised, Run, RunFailed
from conformance.results import Case, Outcome, Result
from conformance.subjects import NotOffered, Subject, Unsupported

FINISHED = Finished(1)
HUNG = Hung("stack of the rank")
DIED = Died(-9, "last words")
REFUSED = Raised(Caught(("Unsupported", "Exception"), "mine lacks it"), "", unsupported=True)
NOT_HERE = Raised(Caught(("NotRun", "Exception"), "no GPU"), "")
WITHOUT = Raised(Caught(("NotOffered", "Unsupported"), "mine does not offer it, which no document promises"), "")


def raised(text="wrong"):
    trace = "Traceback:\n  File 'x.py', line 3, in work\n    assert total == 3\nAssertionError"
    return Raised(Caught(("ValueError", "Exception"), text), trace)


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        ((FINISHED, raised()), Outcome.FAILED),
        ((FINISHED, HUNG), Outcome.HUNG),
        ((raised(), HUNG), Outcome.HUNG),
        ((raised(), DIED, HUNG), Outcome.CRASHED),
        ((FINISHED, Died(3, "")), Outcome.CRASHED),
        ((HUNG, REFUSED), Outcome.UNSUPPORTED),
        ((HUNG, NOT_HERE), Outcome.NOT_RUN),
        ((HUNG, WITHOUT), Outcome.NOT_RUN),
    ],
)
def test_a_run_that_did_not_finish_has_one_outcome(ends, outcome):
    assert verdict.judge(RunFailed(Run(ends))).outcome is outcome


@pytest.mark.parametrize(
    ("error", "outcome", "witness"),
    [
        (None, Outcome.PASSED, ""),
        (AssertionError("assert 3 == 4\n  +  where 3 = f()"), Outcome.FAILED, "assert 3 == 4"),
        (AssertionError(), Outcome.FAILED, "an assertion without a text"),
        (KeyError("lost"), Outcome.SUITE_ERROR, "the check itself fell over: KeyError: 'lost'"),
        (Unsupported("lacks hooks"), Outcome.UNSUPPORTED, "lacks hooks"),
        (NotOffered(Subject("a", "1", {}), "b"), Outcome.NOT_RUN, "a does not offer b, which no document promises"),
        (NotRun("no GPU"), Outcome.NOT_RUN, "no GPU"),
        (NotRunnable("one GPU only"), Outcome.NOT_RUN, "one GPU only"),
        (pytest.skip.Exception("not today"), Outcome.NOT_RUN, "not today"),
        (ExceptionGroup("two", [NotRun("x"), AssertionError("the worse")]), Outcome.FAILED, "the worse"),
    ],
)
def test_what_a_check_raises_decides_its_outcome(error, outcome, witness):
    found = verdict.judge(error)
    assert (found.outcome, found.witness) == (outcome, witness)


def test_a_witness_is_one_line_and_the_detail_holds_the_rest():
    found = verdict.of_run(Run((FINISHED, raised("first\nsecond"), HUNG, raised("first\nsecond"))))
    assert found.witness == "rank 0 finished; ranks 1, 3 raised ValueError: first; rank 2 hung"
    assert "stack of the rank" in found.detail


def test_the_first_difference_between_traces_comes_first_in_the_witness():
    event = Event("all_reduce", "SUM", "float32", (1,), -1, "default", "main")
    run = Run((Hung("", (event,)), HUNG), witness="rank 0 waits in all_reduce, rank 1 does not.")
    assert verdict.of_run(run).witness.startswith("rank 0 waits in all_reduce, rank 1 does not (ranks 0, 1 hung")
    assert "last collectives of 1: all_reduce SUM float32 (1,)" in verdict.of_run(run).detail


def test_an_assertion_without_a_text_on_a_rank_is_shown_by_its_source_line():
    assert "assert total == 3" in verdict.of_run(Run((raised(""),))).witness


def test_a_failed_assertion_tells_of_the_last_run_if_that_went_wrong():
    assert "died by signal 9" in verdict.judge(AssertionError("no"), Run((FINISHED, DIED))).detail
    assert "finished" not in verdict.judge(AssertionError("no"), Run((FINISHED,))).detail


def test_long_texts_are_cut_in_the_middle():
    found = verdict.judge(AssertionError("x" * 1000 + "\n" + "y" * 50_000 + " the end"))
    assert len(found.witness) == verdict.WITNESS_CHARS
    assert len(found.detail) < verdict.DETAIL_CHARS + 100
    assert "the end" in found.detail


# --- deviations -------------------------------------------------------------------------------------------------------


def result(clause="JOIN-038", outcome=Outcome.FAILED, test="test_a", world=2, notes=(), subject="torch", scenario=""):
    case = Case(test, scenario, subject, "gloo", world)
    return Result(clause, "MUST", case, outcome, 0.1, "seen", "", notes)


@pytest.mark.parametrize(
    ("deviation", "explains"),
    [
        (Deviation("JOIN-038", "r"), True),
        (Deviation("JOIN-0*", "r"), True),
        (Deviation("JOIN-039", "r"), False),
        (Deviation("JOIN-038", "r", check="test_a*"), True),
        (Deviation("JOIN-038", "r", check="test_b"), False),
        (Deviation("JOIN-038", "r", worlds=(2, 3)), True),
        (Deviation("JOIN-038", "r", worlds=(3,)), False),
        (Deviation("JOIN-038", "r", backend="nccl"), False),
        (Deviation("JOIN-038", "r", scenario="some *"), False),
        (Deviation("JOIN-038", "r", outcome="failed"), True),
        (Deviation("JOIN-038", "r", outcome="hung"), False),
        (Deviation("JOIN-038", "r", witness="^se+n$"), True),
        (Deviation("JOIN-038", "r", witness="heard"), False),
    ],
)
def test_a_deviation_explains_only_what_it_describes(deviation, explains):
    assert excuse(result(), [deviation]).listed is explains


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.UNSUPPORTED, Outcome.NOT_RUN])
def test_only_what_is_broken_can_be_excused(outcome):
    assert excuse(result(outcome=outcome), [Deviation("*", "r")]).deviation == ""


@pytest.mark.parametrize(
    ("condition", "holds"), [("", True), (">=2.11,<3", True), (">=2.14", False), ("==2.13.*", True), ("<2.13", False)]
)
def test_a_deviation_can_be_limited_to_versions_of_torch(condition, holds):
    assert Deviation("JOIN-038", "r", torch=condition).holds_for("2.13.0+cpu") is holds


def test_a_version_condition_covers_nightly_builds():
    assert Deviation("JOIN-038", "r", torch=">=2.13").holds_for("2.14.0.dev20261120+cu130")


def scope(selected=("JOIN-038",), worlds=(1, 2, 3, 4), backend="gloo", left_out=()):
    checks = {"test_a": (("JOIN-038",), (2, 3)), "test_b": (("JOIN-039",), (2,))}
    return Scope(("JOIN-038", "JOIN-039"), selected, backend, worlds, checks, "2.13.0", left_out)


PASSED = [result(outcome=Outcome.PASSED, world=world) for world in (2, 3)]


@pytest.mark.parametrize(
    ("deviation", "results", "scope", "words"),
    [
        (Deviation("JOIN-038", "r"), PASSED, scope(), "did not show: 2 passed"),
        (Deviation("JOIN-038", "r"), [PASSED[0], result(world=3)], scope(), None),  # it need not show everywhere
        (Deviation("JOIN-038", "r", worlds=(2,)), [PASSED[0], result(world=3)], scope(), "did not show: 1 passed"),
        (Deviation("JOIN-038", "r", outcome="hung"), [result()], scope(), "did not show: 1 failed"),
        (Deviation("JOIN-038", "r", witness="heard"), [result()], scope(), "1 failed with another witness"),
        (Deviation("JOIN-038", "r"), [*PASSED, result(outcome=Outcome.SUITE_ERROR)], scope(), None),
        (Deviation("JOIN-038", "r", check="test_gone"), PASSED, scope(), "matches no check"),
        (Deviation("JOIN-999", "r"), PASSED, scope(), "no such clause"),
        (Deviation("JOIN-038", "r"), [result(outcome=Outcome.UNSUPPORTED)], scope(), "1 unsupported"),
        # what was not covered is not judged
        (Deviation("JOIN-039", "r"), PASSED, scope(), None),
        (Deviation("JOIN-0*", "r"), PASSED, scope(), None),
        (Deviation("JOIN-038", "r"), PASSED[:1], scope(worlds=(2,)), None),
        (Deviation("JOIN-038", "r"), [], scope(worlds=(4,)), None),
        (Deviation("JOIN-038", "r", worlds=(2,)), PASSED[:1], scope(worlds=(2,)), "did not show"),
        (Deviation("JOIN-038", "r", backend="nccl"), PASSED, scope(), None),
        (Deviation("JOIN-038", "r", torch=">=3"), PASSED, scope(), None),
        (Deviation("JOIN-038", "r"), [*PASSED, result(outcome=Outcome.NOT_RUN)], scope(), None),
        # nor is what a tier left out; of large worlds, which only some tiers have, the usual ones decide
        (Deviation("JOIN-038", "r"), PASSED, scope(left_out=[("JOIN-038", result(world=4).case)]), None),
        (Deviation("JOIN-038", "r"), PASSED, scope(left_out=[("JOIN-039", result(world=4).case)]), "did not show"),
        (Deviation("JOIN-038", "r", worlds=(2,)), PASSED, scope(left_out=[("JOIN-038", result(world=4).case)]), "1 p"),
        (Deviation("JOIN-038", "r", worlds=(2, 3, 8)), PASSED, scope(), "did not show"),
        (Deviation("JOIN-038", "r", worlds=(8,)), PASSED, scope(), None),
    ],
)
def test_a_deviation_is_stale_if_all_that_it_speaks_of_was_run_and_kept(deviation, results, scope, words):
    found = stale([deviation], results, scope)
    assert (found == []) if words is None else (len(found) == 1 and words in found[0])


ENTRY = '[[deviation]]\nclause = "JOIN-038"\nreason = "because"\n'


def test_a_file_of_deviations_is_read_as_written(tmp_path):
    path = tmp_path / "d.toml"
    path.write_text('subject = "mine"\n' + ENTRY + 'worlds = [2]\ntorch = ">=2"\noutcome = "hung"\nlink = "https://x"\n')
    read = deviations.load(path)
    assert read.subject == "mine"
    (found,) = read.deviations
    assert (found.clause, found.worlds, found.torch, found.outcome) == ("JOIN-038", (2,), ">=2", "hung")
    assert found.check == "*"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[deviation]", "cannot be read as TOML"),
        ("colour = 1\n", "unknown key 'colour'"),
        ("subject = 1\n", "subject must be the name"),
        ("deviation = 1\n", r"written as \[\[deviation\]\]"),
        ('[[deviation]]\nclause = "JOIN-038"\n', r"deviation 1 \(JOIN-038\): reason is missing"),
        ('[[deviation]]\nreason = "r"\n', "clause is missing"),
        (ENTRY + "check = 3\n", "check must be a non-empty text"),
        (ENTRY + 'colour = "red"\n', "unknown key 'colour'"),
        (ENTRY + 'outcome = "passed"\n', "outcome 'passed' is none of"),
        (ENTRY + 'torch = "2.13"\n', "is no version condition"),
        (ENTRY + 'witness = "("\n', "is no regular expression"),
        (ENTRY + "worlds = 2\n", "worlds must be a list"),
        (ENTRY + "worlds = [0]\n", "worlds must be a list"),
        (ENTRY + "worlds = []\n", "worlds must be a list"),
        (ENTRY + "worlds = [true]\n", "worlds must be a list"),
    ],
)
def test_a_mistake_in_a_file_of_deviations_is_named(tmp_path, text, words):
    path = tmp_path / "d.toml"
    path.write_text(text)
    with pytest.raises(deviations.DeviationError, match=words):
        deviations.load(path)


@pytest.mark.parametrize("name", ["torch", "impl"])
def test_every_deviation_of_a_built_in_subject_says_what_its_witness_holds(name):
    for deviation in deviations.built_in(name):
        assert deviation.witness, deviation.place
        assert "the check itself fell over" not in deviation.witness, deviation.place


MORE = (Deviation("JOIN-001", "r"),)


@pytest.mark.parametrize(
    ("top", "specs", "whose"),
    [
        ("", {"mine": "m:s"}, "mine"),
        ("", {"torch": "torch"}, "torch"),
        ("", {"torch": "torch", "mine": "m:s"}, "mine"),  # the only one that has no list of its own
        ('subject = "torch"\n', {"torch": "torch", "mine": "m:s"}, "torch"),
    ],
)
def test_a_file_of_deviations_belongs_to_the_subject_that_it_can_mean(tmp_path, top, specs, whose):
    path = tmp_path / "d.toml"
    path.write_text(top + ENTRY.replace("because", "of the file"))
    found = ask.deviations([str(path)], specs, ["JOIN-038"])
    assert {name for name, listed in found.items() if any(each.reason == "of the file" for each in listed)} == {whose}


@pytest.mark.parametrize(
    ("top", "specs"), [("", {"a": "m:a", "b": "m:b"}), ('subject = "other"\n', {"a": "m:a"})], ids=["unclear", "absent"]
)
def test_a_file_of_deviations_without_a_subject_to_belong_to_is_refused(tmp_path, top, specs):
    path = tmp_path / "d.toml"
    path.write_text(top + ENTRY)
    with pytest.raises(BadInput, match=r"whose deviations|not in this run"):
        ask.deviations([str(path)], specs, ["JOIN-038"])


# --- judgement --------------------------------------------------------------------------------------------------------

KEPT, NEWS = result(outcome=Outcome.PASSED), result()
KNOWN = excuse(result(), [Deviation("*", "r")])
FALLEN = result(outcome=Outcome.SUITE_ERROR)
LACKING, ABSENT = result(outcome=Outcome.UNSUPPORTED), result(outcome=Outcome.NOT_RUN)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([KEPT, KEPT], Standing.KEPT),
        ([KEPT, ABSENT], Standing.KEPT),
        ([KEPT, KNOWN], Standing.LISTED),
        ([KEPT, KNOWN, NEWS], Standing.UNLISTED),
        ([KEPT, LACKING], Standing.UNSUPPORTED),
        ([ABSENT], Standing.NOT_RUN),
        ([], Standing.NOT_RUN),
    ],
)
def test_a_clause_is_kept_only_if_something_passed_and_nothing_spoke_against_it(results, expected):
    assert standing(results) is expected


def judged(*results, stale=(), interrupted=False):
    return Judgement(("torch",), ("JOIN-038", "JOIN-039"), results, lambda _: "the command", stale, interrupted)


@pytest.mark.parametrize(
    ("judgement", "status"),
    [
        (judged(KEPT, KNOWN, LACKING, ABSENT), 0),
        (judged(KEPT, NEWS), 1),
        (judged(KEPT, stale=("an entry",)), 1),
        (judged(KEPT, NEWS, interrupted=True), 130),
        (judged(LACKING, ABSENT), 4),
        (judged(KEPT, NEWS, FALLEN), 3),
        (judged(ABSENT, interrupted=True), 130),
    ],
)
def test_the_exit_status_says_whether_there_is_news(judgement, status):
    assert judgement.exit_status == status


def test_unsupported_and_not_run_are_counted_apart_from_kept():
    counts = judged(KEPT, result("JOIN-039", Outcome.UNSUPPORTED)).counts()["torch"]
    assert counts == {"passed": 1, "unsupported": 1, "clauses kept": 1, "clauses unsupported": 1}


def test_the_report_names_what_broke_with_its_witness_and_the_command():
    limit = result("JOIN-039", Outcome.PASSED, notes=("a documented weakness",))
    text = report.render(judged(NEWS, KNOWN, limit, stale=("an entry",)), Catalogue(()), width=100)
    for words in (
        "FAILED 1, deviation 1", "ok 1 (at its limit)", "world 2: seen", "again: the command", "an entry",
        "a documented weakness", "1 kept (1 at a limit)", "1 broken (not listed)",
    ):  # fmt: skip
        assert words in text, words


def test_a_cell_says_part_where_scenarios_were_left_out():
    whole = judged(KEPT)
    (clause,) = {each.clause for each in whole.results}
    text = report.render(replace(whole, part={"torch": [clause]}), Catalogue(()), width=100)
    assert "ok 1 (part)" in text
    assert "1 of these in part" in " ".join(text.split())
    assert "part" not in report.render(whole, Catalogue(()), width=100)


def test_a_report_shows_whole_ids_and_outcomes_on_a_narrow_terminal():
    text = report.render(judged(NEWS, KEPT), Catalogue(()), width=60)
    assert "JOIN-038" in text
    assert "ok 1" in text


# --- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0", "-1", "two", "1,,2", "", "1.5", "²"])
def test_a_world_is_a_whole_number_above_0(text):
    with pytest.raises(BadInput, match="world"):
        ask.numbers(text)


def test_worlds_come_in_the_order_given_without_doubles():
    assert ask.numbers("3, 1,3") == (3, 1)


def test_a_check_for_three_and_four_ranks_is_general_unless_it_says_otherwise():
    @check("JOIN-001", worlds=(2, 3, 4))
    def general(ranks): ...

    @check("JOIN-001", worlds=(2, 3, 4), beyond=False)
    def narrow(ranks): ...

    @check("JOIN-001", worlds=(2, 4))
    def powers(ranks): ...

    assert [each.check.runs_at(8) for each in (general, narrow, powers)] == [True, False, False]
    assert [general.check.runs_at(world) for world in (1, 2, 3, 4)] == [False, True, True, True]


def test_a_check_of_no_clause_is_a_mistake():
    with pytest.raises(TypeError, match="at least one clause"):
        check()
