"""perf as pytest benchmarks: ``pytest perf --benchmark-only``.

Each benchmark is a cell. The times are those that the ranks took: a timer that moves on by them, sample by sample,
hands them to pytest-benchmark. Without a record to replay (JOINERY_PERF_RECORD), the sweep ``smoke`` is measured.
"""

import os
from pathlib import Path

import pytest

from perf.analyse import bench
from perf.analyse.ratio import slowest, time_of
from perf.measure.rows import OK
from perf.plan.planning import Place, plan
from perf.plan.sweep import load
from reports.records import read

pytestmark = pytest.mark.slow

REPLAYED = os.environ.get(bench.RECORD)


class Replay:
    """A timer, and the function that it times: each call takes as long as the next sample says."""

    def __init__(self):
        self.now, self.samples_ns = 0.0, iter(())

    def __call__(self):
        return self.now

    def sample(self):
        self.now += next(self.samples_ns) / 1e9


REPLAY = Replay()


def series():
    if REPLAYED:
        return [row["series"] for row in read(REPLAYED).rows if row["status"] == OK]
    planned = plan(load("smoke"), ["impl", "torch"], 2, lambda _: Place("gloo", "cpu"))
    return [cell.series for group in planned.groups for cell in group]


@pytest.fixture(scope="module")
def rows(tmp_path_factory, request):
    path = REPLAYED
    if not path:
        from perf.__main__ import main
        from perf.commands.run import INTERRUPTED

        out = tmp_path_factory.mktemp("perf")
        words = ["run", "--sweep", "smoke", "--world", "2", "--backend", "gloo", "--out", str(out)]
        if not request.config.getoption("benchmark_only"):  # among other tests, nobody looks at the times
            words += ["--judged", "no"]
        status = main(words)
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        assert status == 0
        (path,) = Path(out).glob("*.jsonl")
    return {row["series"]: row for row in read(path).rows}


@pytest.mark.benchmark(timer=REPLAY)
@pytest.mark.parametrize("name", series(), ids=lambda name: name.replace(" · ", " "))
def test_cell(name, rows, benchmark):
    row = rows[name]
    assert row["status"] == OK, row["reason"]
    samples = slowest(row[time_of(row)])
    REPLAY.samples_ns = iter(samples)
    benchmark.group = row["group"]
    benchmark.extra_info.update(axes=row["axes"], workload_hash=row["workload_hash"], unit=row["unit"])
    benchmark.pedantic(REPLAY.sample, rounds=len(samples), iterations=1)
    assert benchmark.stats is None or benchmark.stats.stats.rounds == len(samples)
