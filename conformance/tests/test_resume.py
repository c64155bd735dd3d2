"""Going on with an unfinished run, after SIGKILL, Ctrl-C and a full disk; what does not match is not taken over."""

import json
import resource
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree
from io import StringIO
from types import SimpleNamespace

import pytest

from conformance.__main__ import parser
from conformance.bad_input import BadInput
from conformance.clauses import load
from conformance.commands import run as command
from conformance.engine import resume
from conformance.results import Case, Outcome
from reports.records import Writer, identity, read

from . import fakes

pytestmark = pytest.mark.slow

CHECKS = """
import time
from pathlib import Path
from types import SimpleNamespace

from conformance.api.checking import check


def answer(ctx):
    return ctx.subject.answer


def note(name):
    with open("ran.log", "a") as log:
        log.write(name + "\\n")


def wait_for(file):
    while not Path(file).exists():
        time.sleep(0.05)


@check("FAKE-001", "FAKE-002", worlds=(1,))
def test_first(ranks):
    note("first")
    assert ranks(answer) == [42]


@check("FAKE-003", worlds=(1,), scenarios={"small": 1, "large": 100})
def test_second(ranks, scenario):
    note(f"second {scenario}")
    assert scenario < ranks.subject.answer


@check("FAKE-004", worlds=(1,))
def test_third(ranks):
    wait_for("go on")
    note("third")
    ranks.at_limit("it is slow")


@check("FAKE-005", worlds=(1,))
def test_fourth(ranks):
    wait_for("go on again")
    note("fourth")
"""
ENDS = {
    ("FAKE-001", ""): "passed", ("FAKE-002", ""): "passed", ("FAKE-003", "small"): "passed",
    ("FAKE-003", "large"): "failed", ("FAKE-004", ""): "passed", ("FAKE-005", ""): "passed",
}  # fmt: skip
PATIENCE_S = 600  # a run is a matter of seconds, but not on a loaded machine
WORDS = ("--subject", "fake_subject:subject", "--worlds", "1")


@pytest.fixture
def place(tmp_path):
    fakes.lay(tmp_path)
    (tmp_path / "test_fake.py").write_text(CHECKS)
    return tmp_path


def lines(place):
    return (place / "ran.log").read_text().splitlines()


def stop(place, number, rows, *words):
    """Start a run, and send it a signal once so many rows are recorded."""
    process = fakes.start(place, *WORDS, *words)
    try:
        part = place / "out/conformance.jsonl.part"
        end = time.monotonic() + PATIENCE_S
        while not (part.exists() and part.read_text().count('"line": "row"') >= rows):
            assert time.monotonic() < end, "waited in vain"
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode


def ends(record):
    return {(row["clause"], row["scenario"]): row["outcome"] for row in record.rows}


def parts(place):
    return sorted(file.name for file in (place / "out").glob("*.part"))


@pytest.mark.long
def test_a_run_that_was_killed_and_then_interrupted_becomes_whole_and_repeats_nothing(place):
    assert stop(place, signal.SIGKILL, 4, "--jobs", "2") == -signal.SIGKILL
    (place / "go on").touch()
    assert stop(place, signal.SIGINT, 5, "--jobs", "2", "--resume") == 130
    interrupted = read(place / "out/conformance.jsonl")
    assert interrupted.footer["interrupted"]
    assert parts(place), "what the killed run recorded is kept until the record is whole"
    (place / "go on again").touch()
    status, out, err = fakes.run(place, *WORDS, "--jobs", "2", "--resume")
    record = read(place / "out/conformance.jsonl")
    assert (status, record.complete) == (1, True), out + err
    assert ends(record) == ENDS
    assert len(record.rows) == len(ENDS), "no case is recorded twice"
    assert sorted(lines(place)) == sorted(["first", "second 1", "second 100", "third", "fourth"])
    assert record.header["resumed"]["cases"] == 4
    assert {row["clause"]: row["notes"] for row in record.rows}["FAKE-004"] == ["it is slow"]
    assert "assert 100 < 42" in next(row["witness"] for row in record.rows if row["outcome"] == "failed")
    assert parts(place) == []
    suite = ElementTree.parse(place / "out/junit.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("5", "1"), "what was taken over is in it"
    status, _, err = fakes.run(place, *WORDS, "--resume")
    assert status == 2
    assert "nothing to go on with" in err
    assert "is finished" in err


def header_bytes(*words):
    """The size of the header that a run with these words writes."""
    catalogue, given = load(), parser().parse_args(["run", *words])
    asked = command.ask.asked(given, list(catalogue.by_id), given.checks)
    return len(json.dumps(command._header(asked, catalogue), ensure_ascii=False).encode())


@pytest.mark.long
def test_a_full_disk_ends_a_run_with_its_own_status_and_the_next_goes_on(place, monkeypatch):
    (place / "go on").touch()
    (place / "go on again").touch()
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, "fake_subject", raising=False)  # another test's
    limit = header_bytes("--checks", "test_fake.py", *WORDS) + 1500  # the header fits, and a row or two

    def small_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = fakes.start(place, *WORDS, preexec_fn=small_disk)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, err
    assert "the suite itself failed" in err
    before = lines(place)
    status, out, err = fakes.run(place, *WORDS, "--resume")
    assert status == 1, out + err
    assert ends(read(place / "out/conformance.jsonl")) == ENDS
    assert lines(place).count("first") == 1, "what was recorded before the disk was full is not run again"
    assert len(before) < len(lines(place))


def concluded(place, monkeypatch, name, rows=1):
    """What an interrupted run says whose record has this name; without a name it ended before there was one."""
    monkeypatch.setattr(command.report, "write", lambda *_: None)
    monkeypatch.setattr(command, "write_pages", lambda records, out: ([f"made of {records[0].name}"], []))
    suite_run = SimpleNamespace(
        suite_errors=[], results=["one"] * rows, judgement=SimpleNamespace(interrupted=True, exit_status=130),
        writer=SimpleNamespace(path=place / name) if name else None, catalogue=None,
    )  # fmt: skip
    out, err = StringIO(), StringIO()
    assert command._conclude(suite_run, pytest.ExitCode.INTERRUPTED, place, out, err) == 130
    return out.getvalue() + err.getvalue()


def test_an_interrupted_run_names_its_own_record_and_no_other(tmp_path, monkeypatch):
    assert "page: made of conformance.jsonl" in concluded(tmp_path, monkeypatch, "conformance.jsonl")
    said = concluded(tmp_path, monkeypatch, "conformance.jsonl.part")  # a whole one has the name
    assert f"records: {tmp_path}/conformance.jsonl.part" in said
    assert "page: none of this run" in said
    said = concluded(tmp_path, monkeypatch, "", rows=0)
    assert said == "conformance: interrupted before the first check had ended\n"


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    with resume.alone_in(tmp_path), pytest.raises(BadInput, match="another run"), resume.alone_in(tmp_path):
        pass
    with resume.alone_in(tmp_path):
        pass


# --- on records made by hand ------------------------------------------------------------------------------------------


def header(**changes):
    made = identity("conformance", ["x"])
    asked = {"backend": "gloo", "worlds": [2]}
    subjects = [{"name": "mine", "spec": "m:s", "version": "1"}]
    return {**made, "commit": "abc", "source": "def", "asked": asked, "subjects": subjects, "checks": "", **changes}


def row(clause="FAKE-001", check="test_a", outcome="passed"):
    return {
        "clause": clause, "check": check, "scenario": "", "subject": "mine", "backend": "gloo", "world": 2,
        "outcome": outcome, "seconds": 0.5, "witness": "seen", "detail": "all", "level": "MUST", "deviation": "",
        "notes": [], "schedule": "0,1",
    }  # fmt: skip


CASE = Case("test_a", "", "mine", "gloo", 2)


def left(tmp_path, *rows, **changes):
    """A record as a killed run leaves it."""
    record = tmp_path / "conformance.jsonl"
    writer = Writer(record, header(**changes))
    for each in rows:
        writer.write(each)
    return record


def test_a_case_is_taken_over_with_all_that_was_said_of_it(tmp_path):
    record = left(tmp_path, row(outcome="failed"), row("FAKE-002", outcome="failed"))
    earlier = resume.find(record, header(), "required", print)
    ended = earlier.get(CASE, ["FAKE-001", "FAKE-002"])
    assert (ended.verdict.outcome, ended.verdict.witness, ended.verdict.detail) == (Outcome.FAILED, "seen", "all")
    assert (ended.verdict.schedule, ended.seconds) == ("0,1", 0.5)


def test_a_case_of_which_only_some_clauses_were_recorded_is_run_again(tmp_path):
    earlier = resume.find(left(tmp_path, row()), header(), "required", print)
    assert earlier.get(CASE, ["FAKE-001", "FAKE-002"]) is None


def test_a_row_that_was_cut_off_is_run_again(tmp_path):
    record = left(tmp_path, row(), row(check="test_b"))
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(part.read_bytes()[:-40])
    earlier = resume.find(record, header(), "required", print)
    assert [case.check for case in earlier.ends] == ["test_a"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"commit": "other"}, "another commit: other then, abc now"),
        ({"source": "other"}, "other sources"),
        ({"asked": {"backend": "nccl"}}, "another question"),
        ({"subjects": []}, "other subjects"),
        ({"versions": {"torch": "1.0"}}, "other versions"),
        ({"environment": {"OMP_NUM_THREADS": "7"}}, "another environment"),
    ],
)
def test_a_record_of_another_question_is_refused_or_started_anew_and_kept(tmp_path, changes, says):
    record = left(tmp_path, row(), **changes)
    before = [file.read_bytes() for file in tmp_path.glob("*.part")]
    with pytest.raises(BadInput, match=says):
        resume.find(record, header(), "required", print)
    told = []
    assert resume.find(record, header(), "possible", told.append).ends == {}
    assert says in told[0]
    resume.set_aside(record)
    Writer(record, header())
    assert before[0] in [file.read_bytes() for file in tmp_path.glob("*.part")]


def test_what_several_killed_runs_recorded_counts_together(tmp_path):
    record = left(tmp_path, row())
    resume.set_aside(record)
    left(tmp_path, row(check="test_b"))
    (tmp_path / "conformance.jsonl.9.part").write_text("nonsense")
    earlier = resume.find(record, header(), "required", print)
    assert {case.check for case in earlier.ends} == {"test_a", "test_b"}
    earlier.drop()
    assert [file.name for file in tmp_path.glob("*.part")] == ["conformance.jsonl.9.part"]


def test_with_nothing_there_one_is_told_so_or_starts(tmp_path):
    with pytest.raises(BadInput, match="holds no unfinished record"):
        resume.find(tmp_path / "conformance.jsonl", header(), "required", print)
    told = []
    assert resume.find(tmp_path / "conformance.jsonl", header(), "possible", told.append).ends == {}
    assert told == []


def test_a_change_of_a_check_or_of_a_subject_changes_the_fingerprint(tmp_path, monkeypatch):
    fakes.lay(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_subject", raising=False)  # another test's
    checks, subjects = str(tmp_path / "test_fake.py"), {"fake": "fake_subject:subject"}
    before = resume.source(subjects, checks)
    assert resume.source(subjects, checks) == before
    (tmp_path / "test_fake.py").write_text("changed = True")
    after = resume.source(subjects, checks)
    (tmp_path / "fake_subject.py").write_text("changed = True")
    assert len({before, after, resume.source(subjects, checks), resume.source({}, checks)}) == 4
