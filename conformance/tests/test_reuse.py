"""Ranks that serve more than one check: the quick tier's shortcut, which must decide nothing by itself."""

import pytest

from conformance.ranks import Cluster
from reports.records import read

from . import fakes
from .test_ranks import pid, raise_on_one, run
from .test_suite_errors import SUBJECT

pytestmark = pytest.mark.slow

#: every third scenario passes in a process only that has run nothing before
CHECKS = """
import os

from conformance.api.checking import check

SEEN = []


def note(ctx, scenario):
    SEEN.append(scenario)
    with open(f"ran-{os.getpid()}", "a") as file:
        file.write(f"{scenario} ")
    return len(SEEN)


@check("FAKE-001", worlds=(2,), scenarios={str(number): number for number in range(30)}, each=True)
def test_notes(ranks, scenario):
    counts = ranks(note, scenario)
    assert scenario % 3 or counts == [1, 1], f"ran {counts} times"
"""


@pytest.mark.long
def test_what_a_run_left_behind_decides_no_case_of_the_quick_tier(tmp_path):
    (tmp_path / "fake_subject.py").write_text(SUBJECT)
    (tmp_path / "test_fake.py").write_text(CHECKS)
    status, out, err = fakes.run(
        tmp_path, "--subject", "fake_subject:subject", "--select", "FAKE-001", "--worlds", "2", "--tier", "quick",
        "--jobs", "2",
    )  # fmt: skip
    assert status == 0, out + err
    assert {row["outcome"] for row in read(tmp_path / "out/conformance.jsonl").rows} == {"passed"}
    ran = [file.read_text().split() for file in tmp_path.glob("ran-*")]
    assert max(map(len, ran)) > 1, "no process served two checks"
    assert max(map(len, ran)) <= 25


def test_ranks_are_used_again_only_where_the_run_says_so_and_for_one_subject():
    with Cluster(deadline_s=30.0) as cluster:
        first = run(cluster, pid, reuse=True).values()
        assert run(cluster, pid, reuse=True).values() == first
        assert not set(first) & set(run(cluster, pid).values())
        other = cluster.run(pid, (), world=2, subject="impl", reuse=True).values()
        assert not set(first) & set(other)
        assert run(cluster, pid, reuse=True).values() == first
        run(cluster, raise_on_one, 1, reuse=True)
        assert not set(first) & set(run(cluster, pid, reuse=True).values()), "not after a run that went wrong"
