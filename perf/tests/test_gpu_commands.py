"""The commands of `make gpu`, as they are on a machine with GPUs, read by the parsers of those that are called."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.__main__ import parser as suite
from conformance.accelerator.streams import CASES
from conformance.engine import request as ask
from perf.__main__ import main
from perf.__main__ import parser as harness
from perf.measure.budget import duration
from perf.plan.sweep import load
from perf.tests.made_up import record, rows
from reports.accelerator.results import TARGETS, found_by

pytestmark = pytest.mark.slow

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


def test_each_is_understood(commands):
    assert {words_of(one["command"])[0] for one in commands} == {"conformance", "perf"}
    for one in commands:
        room, words = words_of(one["command"])
        if one["obstacle"]:
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


LOADED = """
import importlib, sys, traceback
import torch
from conformance.ranks.fork_server_client import PRELOAD
from perf.measure.clusters import PRELOAD as MEASURING

def asked(*_):
    traceback.print_stack()
    sys.exit("asked for GPUs")

for name in ("_cuda_getDeviceCount", "_cuda_init", "_cuda_getCurrentRawStream"):
    setattr(torch._C, name, asked)
for name in (*PRELOAD, *MEASURING, "perf.measure.trace", *sys.argv[1:]):
    importlib.import_module(name)
try:
    torch.cuda.is_available()
except SystemExit:
    print("loaded, and it would have been noticed")
"""


def test_nothing_that_ranks_are_forked_from_asks_for_gpus_which_no_fork_survives():
    parts = [f"conformance.accelerator.{name}" for name in ("failures", "memory", "sharing", "streams")]
    checks = [f"conformance.checks.{path.stem}" for path in sorted((HERE / "conformance/checks").glob("test_*.py"))]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *parts, *checks], capture_output=True, text=True, timeout=300, cwd=HERE
    )
    assert done.returncode == 0, done.stderr
    assert "would have been noticed" in done.stdout


def read_targets(folder, device, ours_ms, launches):
    """What `make gpu` reads of the table of a record with these figures of ours; torch's are 10 ms and 100."""
    blocks = [{axis: list(values) for axis, values in block.items()} for block in load("gpu").cells]
    made = rows(blocks, lambda cell, _: ours_ms if cell.subject == "impl" else 10.0, world=1)
    for one in made:
        one["axes"]["device"] = device
        counted = launches if one["subject"] == "impl" else 100.0
        one["derived"] |= {"launches": counted, "synchronisations": 0.0}
    record(folder / "perf.jsonl", made)
    assert main(["table", str(folder / "perf.jsonl"), "--markdown", str(folder / TARGETS)]) == 0
    counts, findings, name = found_by("targets", folder)
    assert name == TARGETS
    return counts, {one["what"]: one["why"] for one in findings}


@pytest.mark.parametrize(("ours_ms", "launches", "counts"), [
    (9.0, 90.0, {"held": 8}), (11.0, 90.0, {"broken": 4, "held": 4}), (9.0, 110.0, {"held": 6, "broken": 2}),
])  # fmt: skip
def test_the_gpus_line_of_the_table_of_targets_is_read_figure_by_figure(ours_ms, launches, counts, tmp_path):
    found, whys = read_targets(tmp_path, "cuda", ours_ms, launches)
    assert found == counts
    assert whys["transformer, launches: ≤ 1.00 of torch's"].startswith(f"{launches / 100:.2f}, torch's 100, ours")
    assert whys["convnet, step: ≤ 1.00 of torch's"].startswith(f"{ours_ms / 10:.2f}")


def test_a_record_of_no_gpu_says_nothing_of_the_targets(tmp_path):
    found, whys = read_targets(tmp_path, "cpu", 9.0, 90.0)
    assert found == {"not run": 1}
    assert "no cells of transformer, world 1, device cuda" in next(iter(whys.values()))
