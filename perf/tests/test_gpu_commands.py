"""The commands of `make gpu`, as they are on a machine with GPUs, read by the parsers of those that are called."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.__main__ import parser as suite
from conformance.accelerator.streams import CASES
from conformance.engine import request as ask
from perf.__main__ import parser as harness
from perf.measure.budget import duration
from perf.plan.sweep import load

HERE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def commands():
    done = subprocess.run(
        [sys.executable, "-m", "reports", "gpu", "--list"], capture_output=True, text=True, timeout=300, cwd=HERE,
        check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def words_of(command):
    """The room that a command is for, and its arguments."""
    at = command.index("-m")
    return command[at + 1], command[at + 2 :]


def knows_poison():
    options = next(action for action in suite()._actions if action.dest == "command").choices["run"]
    return "--poison" in options.format_help()


def test_each_is_understood(commands):
    assert {words_of(one["command"])[0] for one in commands} == {"conformance", "perf"}
    for one in commands:
        room, words = words_of(one["command"])
        if one["obstacle"] or ("--poison" in words and not knows_poison()):
            continue
        given = (suite if room == "conformance" else harness)().parse_args(words)
        if given.command == "run" and room == "perf":
            assert load(given.sweep).cells
            assert duration(given.budget) < one["limit_s"]
        elif given.command == "run":
            assert ask.tier(given.tier) in ("quick", "")
            assert ask.numbers(given.worlds)
            assert given.backend in ("nccl", "gloo+cuda", "nccl+hostid")
        elif given.command == "gpu" and given.only:
            assert given.only in {case.name for case in CASES}


def test_all_of_it_has_a_place_in_the_time(commands):
    first = [one for one in commands if one["gpus"] == 1 and not one["obstacle"]]
    assert sum(one["limit_s"] for one in first[:5]) <= 25 * 60  # the most telling parts, even if each takes all of it
