"""Whole runs over made-up checks: whose an error is, which breaks are news, and when nothing was decided."""

import subprocess
import sys

import pytest

from conformance.ending import status_of
from conformance.fixtures.observing import asks_for_accelerator, or_lacks_accelerator
from conformance.ranks import Cluster, Raised
from reports.records import read

from . import fakes

pytestmark = pytest.mark.slow

SUBJECT = """
from conformance.subjects import Subject


class Thing:
    def __init__(self, size):
        self.size = size

    def call(self, hook):
        return hook(None)

    def give(self):
        raise KeyError("the subject has lost it")


subject = Subject("fake", "1.0", {"Thing": Thing}, lacks={"flight": "it has no wings"})
"""

CHECKS = """
import os
import time

import torch
from conformance.api.checking import NotRun, check


def misspell(ctx):
    return no_such_name


def misspell_on_rank_0(ctx):
    if ctx.rank == 0:
        return no_such_name
    time.sleep(60)


def add(ctx):
    return 1 + "1"


def helper(one):
    return one


def call_a_helper_wrongly(ctx):
    return helper(1, 2)


def reach_for_an_attribute(ctx):
    return ctx.subject.Thing(1).weight


def call_by_another_signature(ctx):
    return ctx.subject.Thing(1, colour="red")


def be_called_back(ctx):
    return ctx.subject.Thing(1).call(lambda given: given[0])


def misspell_when_called_back(ctx):
    return ctx.subject.Thing(1).call(lambda given: no_such_name)


def take(ctx):
    return ctx.subject.Thing(1).give()


def add_tensors(ctx):
    return torch.ones(2) + torch.ones(3)


def end_on_purpose(ctx):
    raise KeyError("this rank is meant to fail")


def assert_false(ctx):
    assert ctx.subject.Thing(1).size == 2, "the size is wrong"


def look_at_a_device(ctx):
    raise NotRun("no such device")


ON_RANKS = {
    "a name that is not there": misspell,
    "one rank only": misspell_on_rank_0,
    "a number and a text": add,
    "a helper of the check": call_a_helper_wrongly,
    "an attribute of the subject's": reach_for_an_attribute,
    "a signature of the subject's": call_by_another_signature,
    "a hook": be_called_back,
    "a hook that is misspelt": misspell_when_called_back,
    "an error of the subject's": take,
    "tensors that do not fit": add_tensors,
    "an assertion": assert_false,
    "an end on purpose": end_on_purpose,
}


@check("FAKE-001", worlds=(2,), deadline_s=10, scenarios=ON_RANKS)
def test_on_ranks(ranks, scenario):
    ranks(scenario)


@check("FAKE-002", worlds=(2,), scenarios=ON_RANKS)
def test_whatever_becomes_of_the_ranks(ranks, scenario):
    run = ranks.run(scenario)
    assert all(hasattr(end, "value") for end in run.outcomes), "some rank did not finish"


IN_THE_DRIVER = {
    "a name that is not there": lambda thing: no_such_name,
    "a key of our own": lambda thing: {}["gone"],
    "an attribute of the subject's": lambda thing: thing(1).weight,
    "an error of the subject's": lambda thing: thing(1).give(),
}


@check("FAKE-003", worlds=(1,), scenarios=IN_THE_DRIVER)
def test_in_the_driver(ranks, scenario):
    scenario(ranks.subject.Thing)


@check("FAKE-004", worlds=(1,))
def test_wants_a_device(ranks):
    ranks(look_at_a_device)


@check("FAKE-005", worlds=(1,))
def test_flies(ranks):
    ranks.subject.flight


@check("FAKE-006", worlds=(2,), scenarios={"first": 1, "second": 2}, each=False)
def test_two(ranks, scenario):
    assert scenario < 2, f"it is {scenario}"


@check("FAKE-007", worlds=(1, 2, 3))
def test_nothing(ranks):
    pass


@check("FAKE-008", worlds=(1,), scenarios={"one": 1, "two": 2})
def test_halves(ranks, scenario):
    assert {"w": [2.0 * scenario, 4.0]} == {"w": [4.0 * scenario, 8.0]}, f"rank {scenario}"


def count_calls(ctx, one, more):
    return one, more, ctx.store.add("calls", 1) <= ctx.world


@check("FAKE-009", worlds=(2,))
def test_several_calls(ranks):
    assert list(ranks.each(count_calls, "ab", 3)) == [(one, [(one, 3, True)] * 2) for one in "ab"]
    pairs = [("a", 1), ("b", 2)]
    assert list(ranks.each(count_calls, pairs, spread=True)) == [(pair, [(*pair, True)] * 2) for pair in pairs]


def misspell_the_second(ctx, one):
    return no_such_name if one == 2 else one


@check("FAKE-010", worlds=(2,))
def test_several_calls_one_of_which_is_misspelt(ranks):
    list(ranks.each(misspell_the_second, (1, 2)))


@check("ZERO-008", worlds=(1, 2))
def test_builds_another_class_first(ranks):
    ranks.subject.Thing(1).give()
"""

SUITE, SUBJECTS = "suite error", "failed"
ON_RANKS = {
    "a name that is not there": SUITE, "one rank only": SUITE, "a number and a text": SUITE,
    "a helper of the check": SUITE, "an attribute of the subject's": SUBJECTS, "a signature of the subject's": SUBJECTS,
    "a hook": SUBJECTS, "a hook that is misspelt": SUITE, "an error of the subject's": SUBJECTS,
    "tensors that do not fit": SUBJECTS, "an assertion": SUBJECTS,
    "an end on purpose": SUBJECTS,
}  # fmt: skip
IN_THE_DRIVER = {
    "a name that is not there": SUITE, "a key of our own": SUITE, "an attribute of the subject's": SUBJECTS,
    "an error of the subject's": SUBJECTS,
}  # fmt: skip


def lay(folder):
    (folder / "fake_subject.py").write_text(SUBJECT)
    (folder / "test_fake.py").write_text(CHECKS)
    return folder


def run(folder, select, *words):
    return fakes.run(folder, "--subject", "fake_subject:subject", "--select", select, *words)


def rows(folder):
    return read(folder / "out/conformance.jsonl").rows


@pytest.fixture(scope="module")
def fallen(tmp_path_factory):
    folder = lay(tmp_path_factory.mktemp("fallen"))
    return (*run(folder, "FAKE-001,FAKE-002,FAKE-003", "--jobs", "3"), folder)


def test_what_a_checks_own_lines_raise_is_the_suites_error_and_the_rest_the_subjects_failure(fallen):
    *_, err, folder = fallen
    found = {(row["clause"], row["scenario"]): row["outcome"] for row in rows(folder)}
    assert found, err
    for clause, expected in (("FAKE-001", ON_RANKS), ("FAKE-002", ON_RANKS), ("FAKE-003", IN_THE_DRIVER)):
        assert {scenario: found[clause, scenario] for scenario in expected} == expected, clause


def test_several_calls_are_one_run_with_keys_of_their_own_and_the_checks_errors_are_the_suites(tmp_path):
    *_, err = run(lay(tmp_path), "FAKE-009,FAKE-010")
    assert {row["clause"]: row["outcome"] for row in rows(tmp_path)} == {"FAKE-009": "passed", "FAKE-010": SUITE}, err


def test_suite_errors_are_told_apart_in_report_record_page_and_exit_status(fallen):
    status, out, err, folder = fallen
    assert status == 3
    assert "Suite errors: checks that fell over by themselves" in out
    assert "SUITE ERROR 5, FAILED 7" in out
    told = "the check itself fell over: ranks 0, 1 raised NameError: name 'no_such_name' is not defined (test_fake.py:"
    assert told in out
    footer = read(folder / "out/conformance.jsonl").footer
    assert footer["counts"]["fake"]["suite error"] == 12
    assert (folder / "out/index.html").read_text().count("suite error")
    assert "suite error" in (folder / "out/summary.md").read_text()
    assert "SUITE ERROR FAKE-001" in err


def test_a_rank_that_waits_for_one_on_which_the_check_fell_over_is_not_called_hung(fallen):
    (row,) = [row for row in rows(fallen[-1]) if (row["clause"], row["scenario"]) == ("FAKE-001", "one rank only")]
    assert row["witness"].startswith("the check itself fell over: rank 0 raised NameError")


ENTRY = '[[deviation]]\nclause = "FAKE-001"\nscenario = "an assertion"\nreason = "it is known"\nwitness = {}\n'


@pytest.mark.parametrize(
    ("pattern", "status", "words"),
    [
        ("'the size is wrong'", 0, "broken (listed)"),
        ("'the colour is wrong'", 1, "did not show: 1 failed with another witness"),
    ],
)
def test_a_listed_break_with_another_witness_is_news(tmp_path, pattern, status, words):
    lay(tmp_path)
    one = 'scenarios={"an assertion": assert_false})\ndef test_on_ranks'
    (tmp_path / "test_fake.py").write_text(CHECKS.replace("scenarios=ON_RANKS)\ndef test_on_ranks", one))
    (tmp_path / "known.toml").write_text(ENTRY.format(pattern))
    found, out, err = run(tmp_path, "FAKE-001", "--deviations", "known.toml")
    assert found == status, out + err
    assert words in out


def test_a_suite_error_is_never_a_listed_break(tmp_path):
    lay(tmp_path)
    (tmp_path / "known.toml").write_text('[[deviation]]\nclause = "FAKE-001"\nreason = "it is known"\n')
    status, *_ = run(tmp_path, "FAKE-001", "--deviations", "known.toml")
    assert status == 3
    assert {row["deviation"] for row in rows(tmp_path) if row["outcome"] == "suite error"} == {""}


@pytest.mark.parametrize("select", ["FAKE-004", "FAKE-005", "FAKE-004,FAKE-005"])
def test_a_run_that_decides_nothing_says_so_and_has_a_status_of_its_own(tmp_path, select):
    status, out, _ = run(lay(tmp_path), select, "--worlds", "1")
    assert status == 4
    assert "Nothing was decided" in out
    assert read(tmp_path / "out/conformance.jsonl").footer["exit_status"] == 4


def test_one_answer_is_enough_for_a_run_to_have_decided_something(tmp_path):
    assert run(lay(tmp_path), "FAKE-004,FAKE-005,FAKE-007", "--worlds", "1")[0] == 0


QUICK = ("--tier", "quick", "--worlds", "1,2,3,4")


def test_a_listed_deviation_that_is_gone_fails_the_quick_tier_too(tmp_path):
    lay(tmp_path)
    (tmp_path / "known.toml").write_text('[[deviation]]\nclause = "FAKE-007"\nreason = "it was known"\n')
    status, out, err = run(tmp_path, "FAKE-007", *QUICK, "--deviations", "known.toml")
    assert status == 1, out + err
    assert "deviation 1 (FAKE-007 · any): did not show: 3 passed" in out


def test_the_quick_tier_looks_further_for_a_deviation_that_its_first_case_does_not_show(tmp_path):
    lay(tmp_path)
    (tmp_path / "known.toml").write_text('[[deviation]]\nclause = "FAKE-006"\nreason = "it is known"\n')
    status, out, err = run(tmp_path, "FAKE-006", *QUICK, "--deviations", "known.toml")
    assert status == 0, out + err
    assert "and 1 more for listed deviations that had not shown" in out
    assert [(row["scenario"], row["world"]) for row in rows(tmp_path)][-1] == ("second", 2)


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_label_does_not_hide_by_what_ratio_numbers_differ(tmp_path, jobs):
    run(lay(tmp_path), "FAKE-008", "--worlds", "1", "--jobs", jobs)
    assert {row["witness"] for row in rows(tmp_path)} == {
        f"rank {rank}: w[0]: got {2 * rank}, expected {4 * rank}, ratio 0.5 (in all 2 that differ)" for rank in (1, 2)
    }


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_clause_of_an_area_that_the_subject_lacks_is_not_judged_by_its_other_classes(tmp_path, jobs):
    run(lay(tmp_path), "ZERO-008", "--worlds", "1,2", "--jobs", jobs)
    told = {(row["outcome"], row["witness"]) for row in rows(tmp_path)}
    assert told == {("unsupported", "fake does not provide ZeroRedundancyOptimizer: not declared in its names")}


# --- errors of a torch that was built for an accelerator, on a machine without


def refuse_streams(ctx, words):
    import torch

    def refuse(*_arguments, **_keywords):
        raise RuntimeError(words)

    torch.Stream = refuse
    from conformance.checks import test_ddp_in_backward as checks

    return or_lacks_accelerator(ctx, lambda: checks.train_attached_in_part_or_lack(ctx))


@pytest.mark.parametrize(
    "words", ["Found no driver on your system", "CUDA error: the driver is too old", "No such GPUs are available"]
)
def test_optimizers_in_backward_are_not_run_without_an_accelerator_whatever_the_build_of_torch_says(words):
    with Cluster(deadline_s=60.0) as cluster:
        run = cluster.run(refuse_streams, (words,), world=2, subject="torch")
    for end in run.outcomes:
        assert isinstance(end, Raised)
        assert end.error.kinds[0] == "NotRun", end.error


def test_an_error_about_something_else_asks_for_no_accelerator():
    assert not asks_for_accelerator(RuntimeError("the size of tensor a must match"))


def test_a_command_that_fails_itself_does_not_end_with_a_status_that_is_an_answer(capsys):
    def fail():
        raise LookupError("a slip of the suite")

    assert status_of("conformance", fail) == 3
    said = capsys.readouterr().err
    assert "LookupError: a slip of the suite" in said
    assert said.endswith("conformance: the command itself failed, which says nothing of what it was asked\n")


def test_a_command_whose_reader_has_had_enough_ends_as_by_a_closed_pipe():
    command = f"{sys.executable} -m conformance clauses | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=fakes.HOME, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[1:] == ["141"], done.stdout + done.stderr
    assert not done.stderr
