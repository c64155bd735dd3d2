"""A subject and checks made up for tests of the run: one check for every way in which a check can end."""

import os
import subprocess
import sys
from pathlib import Path

from conformance.results import Outcome

HOME = Path(__file__).parents[2]

SUBJECT = """
from conformance.subjects import Subject

subject = Subject("fake", "1.0", {"answer": 42}, lacks={"flight": "it has no wings"})
other = Subject("other", "2.0", {"answer": 41})
twin = Subject("other", "1.0", {})
torch_in_disguise = Subject("torch", "1.0", {})
nothing = 3
"""

CHECKS = """
import os
import time

from conformance.api.checking import NotRun, check


def answer(ctx):
    return ctx.subject.answer


def sleep(ctx, seconds):
    time.sleep(seconds if ctx.rank == 0 else 0)


def die(ctx):
    if ctx.rank == 1:
        os._exit(7)
    time.sleep(1)


def fly(ctx):
    return ctx.subject.flight


def want_a_gpu(ctx):
    raise NotRun("this machine has no such device")


@check("FAKE-001", worlds=(1, 2))
def test_passes(ranks):
    assert ranks(answer)[0] in (41, 42)


@check("FAKE-002", worlds=(2,))
def test_fails(ranks):
    assert ranks(answer) == [42, 43]


@check("FAKE-003", worlds=(2,), deadline_s=1.0)
def test_hangs(ranks):
    ranks(sleep, 60)


@check("FAKE-004", worlds=(2,))
def test_dies(ranks):
    ranks(die)


@check("FAKE-005", worlds=(2,))
def test_flies(ranks):
    ranks.run(fly)
    raise AssertionError("a check is over once a rank said that the subject lacks something")


@check("FAKE-006", worlds=(2,))
def test_wants_a_device(ranks):
    ranks(want_a_gpu)


@check("FAKE-007", worlds=(2,))
def test_is_at_its_limit(ranks):
    ranks.at_limit("it stops at 42")
    assert ranks(answer) == [42, 42]


@check("FAKE-008", "FAKE-009", worlds=(2,))
def test_decides_two_clauses(ranks):
    assert ranks.subject.answer == 42


@check("FAKE-010", worlds=(2,), scenarios={"small": 1, "large": 100})
def test_is_under_the_answer(ranks, scenario):
    assert scenario < ranks.subject.answer


@check("FAKE-011", worlds=(2,))
def test_is_itself_wrong(ranks):
    return {}["gone"]


@check("FAKE-012", worlds=(2,))
def test_only_the_other_subject_breaks_this(ranks):
    assert ranks.subject.answer == 42
"""

# what the subject ``fake`` must show for each clause (and scenario) above
EXPECTED = {
    ("FAKE-001", ""): Outcome.PASSED,
    ("FAKE-002", ""): Outcome.FAILED,
    ("FAKE-003", ""): Outcome.HUNG,
    ("FAKE-004", ""): Outcome.CRASHED,
    ("FAKE-005", ""): Outcome.UNSUPPORTED,
    ("FAKE-006", ""): Outcome.NOT_RUN,
    ("FAKE-007", ""): Outcome.PASSED,
    ("FAKE-008", ""): Outcome.PASSED,
    ("FAKE-009", ""): Outcome.PASSED,
    ("FAKE-010", "small"): Outcome.PASSED,
    ("FAKE-010", "large"): Outcome.FAILED,
    ("FAKE-011", ""): Outcome.SUITE_ERROR,
    ("FAKE-012", ""): Outcome.PASSED,
}


def lay(folder):
    """Write the fakes into a folder."""
    (folder / "fake_subject.py").write_text(SUBJECT)
    (folder / "test_fake.py").write_text(CHECKS)
    return folder


def start(folder, *words, mark="", preexec_fn=None):
    """Start ``python -m conformance run`` on the fakes, in their folder."""
    command = [sys.executable, "-m", "conformance", "run", "--checks", "test_fake.py", "--out", "out", *words]
    environment = {**os.environ, "PYTHONPATH": f"{HOME}{os.pathsep}{folder}", "JOINERY_TEST_MARK": mark}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=preexec_fn, **pipes)


def run(folder, *words):
    """Run the fakes to the end: exit status, standard output, standard error."""
    process = start(folder, *words)
    try:
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    return process.returncode, out, err
