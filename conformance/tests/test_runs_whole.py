"""The run at work: whole runs over made-up checks, their records, reports and exit statuses."""

import signal
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from reports.records import read

from . import fakes

pytestmark = pytest.mark.slow

FAKE, OTHER = "fake_subject:subject", "fake_subject:other"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run of every made-up check on two subjects, several at a time."""
    folder = fakes.lay(tmp_path_factory.mktemp("whole"))
    status, out, err = fakes.run(folder, "--subject", f"{FAKE},{OTHER}", "--worlds", "1,2", "--jobs", "3")
    assert (folder / "out/conformance.jsonl").exists(), err
    return status, out, err, read(folder / "out/conformance.jsonl"), folder


def of(subject, record):
    """The rows of one subject at two ranks."""
    return [row for row in record.rows if row["world"] == 2 and row["subject"] == subject]


def test_every_way_of_ending_is_recorded_as_what_it_is(whole):
    *_, record, _ = whole
    found = {(row["clause"], row["scenario"]): row["outcome"] for row in of("fake", record)}
    assert found == {key: str(outcome) for key, outcome in fakes.EXPECTED.items()}


def test_a_check_runs_only_at_the_worlds_that_it_declares(whole):
    *_, record, _ = whole
    assert [(row["clause"], row["subject"]) for row in record.rows if row["world"] == 1] == [
        ("FAKE-001", "fake"), ("FAKE-001", "other")
    ]  # fmt: skip


def test_subjects_are_judged_apart(whole):
    _, out, _, record, _ = whole
    answers = {subject: {row["clause"]: row["outcome"] for row in of(subject, record)} for subject in ("fake", "other")}
    assert (answers["fake"]["FAKE-012"], answers["other"]["FAKE-012"]) == ("passed", "failed")
    assert "fake: 12 clauses: 5 kept" in out
    assert "other: 12 clauses: 1 kept" in out


def test_rows_say_everything_needed_to_find_the_case_again(whole):
    *_, record, _ = whole
    rows = {row["clause"]: row for row in of("fake", record)}
    assert rows["FAKE-002"]["subject"] == "fake"
    assert rows["FAKE-002"]["backend"] == "gloo"
    assert rows["FAKE-002"]["check"] == "test_fails"
    assert rows["FAKE-002"]["witness"] == "assert [42, 42] == [42, 43]: [1]: got 42, expected 43, ratio 0.977"
    assert rows["FAKE-003"]["witness"].startswith("rank 0 hung at test_fake.py:")
    assert "in sleep" in rows["FAKE-003"]["detail"]
    assert "rank 1 died with exit status 7" in rows["FAKE-004"]["witness"]
    assert "it has no wings" in rows["FAKE-005"]["witness"]
    assert rows["FAKE-006"]["witness"] == "this machine has no such device"
    assert rows["FAKE-007"]["notes"] == ["it stops at 42"]
    assert rows["FAKE-011"]["witness"] == "the check itself fell over: KeyError: 'gone'"


def test_the_header_names_the_subjects_and_the_footer_the_judgement(whole):
    status, *_, record, _ = whole
    assert record.header["subjects"] == [
        {"name": "fake", "spec": FAKE, "version": "1.0"}, {"name": "other", "spec": OTHER, "version": "2.0"}
    ]  # fmt: skip
    assert record.header["asked"] == {
        "backend": "gloo", "worlds": [1, 2], "select": ["*"], "tier": "", "check": "*", "deadline": None,
        "schedule": None,
    }  # fmt: skip
    assert record.header["extent"] == "all 26 cases"
    assert record.footer["exit_status"] == status == 3
    assert record.footer["counts"]["fake"]["failed"] == 2
    assert record.footer["counts"]["fake"]["suite error"] == 1


def test_the_report_shows_the_breaks_with_witness_and_command(whole):
    _, out, _, _, folder = whole
    for words in (
        "FAKE-004", "CRASHED 1", "HUNG 1", "unsupported 1", "ok 1 (at its limit)", "ok 1, FAILED 1",
        "world 2: assert [42, 42] == [42, 43]", "fake: it stops at 42 (FAKE-007)",
        "4 broken (not listed), 1 suite error",
        f"--subject {FAKE} --backend gloo --worlds 2 --select FAKE-002 --check test_fails --checks {folder}",
    ):  # fmt: skip
        assert words in out, words


def test_the_junit_file_tells_failures_from_what_gave_no_answer(whole):
    suite = ElementTree.parse(whole[-1] / "out/junit.xml").getroot().find("testsuite")
    assert suite.get("name") == "conformance"
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("26", "13", "4")


def deviation(clause, outcome="any", more=""):
    return f'[[deviation]]\nclause = "{clause}"\noutcome = "{outcome}"\nreason = "it is known"\n{more}\n'


def listed(folder, *entries):
    (folder / "known.toml").write_text("".join(entries))
    return "--deviations", "known.toml"


def test_listed_breaks_do_not_fail_a_run(tmp_path):
    fakes.lay(tmp_path)
    entries = [deviation("FAKE-002", "failed"), deviation("FAKE-010", "failed", 'check = "test_is_under*"')]
    words = listed(tmp_path, *entries, deviation("FAKE-003", "hung"))
    select = "FAKE-001,FAKE-002,FAKE-010"
    status, out, err = fakes.run(tmp_path, "--subject", FAKE, "--select", select, "--worlds", "2", *words)
    assert status == 0, out + err
    rows = read(tmp_path / "out/conformance.jsonl").rows
    assert {row["clause"]: row["deviation"] for row in rows if row["outcome"] == "failed"} == {
        "FAKE-002": "it is known", "FAKE-010": "it is known"
    }  # fmt: skip
    assert "deviation 1" in out
    assert "2 broken (listed)" in out


def test_a_deviation_that_passes_and_one_of_another_outcome_fail_the_run(tmp_path):
    fakes.lay(tmp_path)
    words = listed(tmp_path, deviation("FAKE-001"), deviation("FAKE-002", "hung"), deviation("FAKE-01*"))
    status, out, _ = fakes.run(tmp_path, "--subject", FAKE, "--select", "FAKE-001,FAKE-002", *words)
    assert status == 1
    stale = read(tmp_path / "out/conformance.jsonl").footer["stale"]
    assert len(stale) == 2
    assert "deviation 1 (FAKE-001" in stale[0]
    assert "2 passed" in stale[0]
    assert "deviation 2 (FAKE-002" in stale[1]
    assert "1 failed" in stale[1]
    assert stale[0] in out


def test_a_file_of_checks_that_cannot_be_read_is_named_and_nothing_is_judged(tmp_path):
    fakes.lay(tmp_path)
    (tmp_path / "test_fake.py").write_text(fakes.CHECKS + "\nimport no_such_module\n")
    status, _, err = fakes.run(tmp_path, "--subject", FAKE)
    assert status == 2
    assert "no_such_module" in err
    assert not (tmp_path / "out/conformance.jsonl").exists()


def test_worlds_at_which_no_check_runs_are_said_to_be_so(tmp_path):
    fakes.lay(tmp_path)
    status, out, err = fakes.run(tmp_path, "--subject", FAKE, "--select", "FAKE-002", "--worlds", "3")
    assert (status, out) == (2, "")
    assert "no check of FAKE-002 runs at world 3" in err
    assert not (tmp_path / "out/conformance.jsonl").exists()


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


@pytest.mark.long
@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_was_finished_and_leaves_no_process(tmp_path, number):
    fakes.lay(tmp_path)
    checks = fakes.CHECKS.replace("deadline_s=1.0", "deadline_s=120").replace("time.sleep(seconds", "work(seconds")
    busy = "def work(seconds):\n    for _ in range(100 * seconds):\n        time.sleep(0.01)\n"
    (tmp_path / "test_fake.py").write_text(checks.replace("def answer(ctx)", busy + "\n\ndef answer(ctx)"))
    mark = uuid.uuid4().hex
    words = ("--subject", FAKE, "--select", "FAKE-001,FAKE-003", "--worlds", "2")
    process = fakes.start(tmp_path, *words, mark=mark)
    try:
        part = tmp_path / "out/conformance.jsonl.part"
        wait_for(lambda: part.exists() and part.read_text().count("\n") >= 2, 300)  # header and the first row
        time.sleep(0.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    record = read(tmp_path / "out/conformance.jsonl")
    assert process.returncode == 130, err
    assert [row["clause"] for row in record.rows] == ["FAKE-001"]
    assert record.footer["interrupted"]
    assert not record.complete
    assert "Interrupted" in out
    assert "cases; 1 was finished" in out
    assert "Traceback" not in err
    wait_for(lambda: marked(mark) == [], 60)


def wait_for(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def marked(mark):
    """Processes that carry the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if alive and f"JOINERY_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@needs_proc
def test_the_marks_that_the_test_above_looks_for_can_be_found(tmp_path):
    fakes.lay(tmp_path)
    mark = uuid.uuid4().hex
    process = fakes.start(tmp_path, "--subject", FAKE, mark=mark)
    try:
        wait_for(lambda: process.pid in marked(mark), 120)
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_what_may_break_runs_first_and_is_recorded_as_it_ends(tmp_path):
    words = ["--subject", "torch", "--select", "ZERO-011", "--worlds", "2", "--jobs", "2", "--out", tmp_path]
    done = subprocess.run([sys.executable, "-m", "conformance", "run", *words], cwd=fakes.HOME, capture_output=True)
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path / "conformance.jsonl").rows
    broken = {row["check"] for row in rows if row["deviation"]}
    first = [row["check"] in broken for row in rows]
    assert len(broken) < len({row["check"] for row in rows})
    assert first == sorted(first, reverse=True)
