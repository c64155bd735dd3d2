"""Mutants on real ranks: the wrong one is killed, the harmless one survives, one that cannot be loaded is stillborn."""

import json
import os
import subprocess
import sys

import pytest

from conformance.engine import inventory
from conformance.power import drawing, exploring, marks
from conformance.workers import Driver

pytestmark = pytest.mark.slow

CASE = "test_two_models_of_one_context_divide_by_the_initial_size@3"
FILE = "impl/ddp/iteration.py"
DIVISOR = "    def known_divisor(self) -> int | None:"
FUTURE = "from __future__ import annotations"


@pytest.fixture(scope="module")
def ask():
    """Asks one worker, which loads torch once. Without the failure guard, whose thread runs when it likes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOINERY_FAILURE_DETECTION_S", "0")
        yield from asking()


def asking():
    with Driver(1, ["conformance.power.worker", str(inventory.CHECKS)], 300.0) as driver:

        def one(**question):
            (answered,) = driver.ask([json.dumps(question)])
            assert not answered.trouble
            return answered.row

        yield one


def altered(old, more):
    """A mutant in which something stands after this text."""
    source = drawing.read()[FILE]
    assert old in source
    return {"mutant": more, "file": FILE, "mutated": source.replace(old, old + more, 1), "cases": [CASE]}


@pytest.mark.long
def test_the_cases_are_those_of_the_quick_tier(ask):
    cases = ask(list=True)["cases"]
    assert CASE in cases
    assert len(cases) == len(set(cases)) > 500


@pytest.mark.long
def test_a_map_holds_what_the_case_executes_on_its_ranks(ask):
    row = ask(map=CASE)
    assert row["outcome"] == "passed"
    assert len(row["marked"]) > 300
    again = ask(map=CASE)
    assert len(set(row["marked"]) ^ set(again["marked"])) < 40  # who waits for whom may differ
    places = marks.places(drawing.read())
    by_loading = {places[number][:2] for number in again["marked"]} & within("impl/ddp/compat.py", "class KeptBy")
    assert len(by_loading) >= 3  # its constructor runs where classes are made, and never again


def within(file, beginning):
    """The places of the first method that follows this line."""
    lines = drawing.read()[file].splitlines()
    at = next(number for number, line in enumerate(lines, 1) if line.startswith(beginning))
    start = next(number for number in range(at, len(lines)) if "def __init__" in lines[number - 1])
    return {(file, line) for line in range(start, start + 5)}


@pytest.mark.long
@pytest.mark.parametrize("by", [exploring.MATRIX, exploring.PROGRAMS])
def test_what_faults_and_programs_execute_is_known(tmp_path, by):
    found = exploring.executed(by, exploring.Asked(0.3, 1, 2, tmp_path))
    of_file = {number for number, place in enumerate(marks.places(drawing.read())) if place.file == FILE}
    assert len(of_file & found) > len(of_file) / 2


def test_a_mutant_that_divides_wrongly_is_killed_with_a_witness(ask):
    row = ask(**altered(DIVISOR, "\n        return 8"))
    assert (row["killed"], row["by"], row["tried"]) == (True, CASE, 1)
    assert row["outcome"] == "failed"


@pytest.mark.long
def test_a_mutant_that_never_ends_is_killed_as_hung(ask):
    row = ask(**altered(DIVISOR, "\n        import time\n        while True:\n            time.sleep(1)"))
    assert (row["killed"], row["outcome"]) == (True, "hung")


def test_a_harmless_mutant_survives(ask):
    row = ask(**altered(DIVISOR, "\n        pass"))
    assert (row["killed"], row["tried"]) == (False, 1)


def test_what_cannot_be_loaded_is_stillborn(ask):
    row = ask(**altered(FUTURE, "\nimport nothing_there"))
    assert "nothing_there" in row["stillborn"]
    assert not ask(**altered(FUTURE, "\n"))["killed"]


@pytest.mark.long
@pytest.mark.parametrize(("identity", "status", "said"), [
    ("impl/ddp/iteration.py:Iteration.known_divisor:condition forced:1", 1, "1 broken (not listed)"),
    ("impl/ddp/iteration.py:Iteration.nowhere:early return:1", 2, "there is no mutant"),
])  # fmt: skip
def test_a_mutant_can_be_the_subject_of_any_command(tmp_path, identity, status, said):
    check = "test_two_models_of_one_context_both_divide_by_the_active_ranks"
    words = ["--select", "DDPJ-015", "--check", check, "--worlds", "2", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "conformance", "run", "--subject", "conformance.power.mutated:subject", *words],
        env={**os.environ, drawing.VARIABLE: identity}, cwd=drawing.ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
