"""The plug-in proof: a package of somebody else's, with a list of its own, is judged by an unchanged suite."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reports.records import read

pytestmark = pytest.mark.slow

HOME = Path(__file__).parents[2]
PACKAGE = HOME / "conformance/examples/third_party"
# one that it improves on torch, one that it breaks and lists, one that needs what it lacks, one that it simply keeps
CLAUSES = "JOIN-020,DDP-075,ZERO-001,JOIN-005"


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """The package beside torch, from its own folder: exit status, standard output, record, folder of the pages."""
    out = tmp_path_factory.mktemp("judged")
    command = [sys.executable, "-m", "conformance", "run", "--subject", "careful_ddp.subject:subject,torch"]
    command += ["--select", CLAUSES, "--worlds", "2", "--deviations", "deviations.toml", "--out", str(out)]
    done = subprocess.run(
        command, cwd=PACKAGE, env={**os.environ, "PYTHONPATH": f"{HOME}{os.pathsep}{PACKAGE}"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (out / "conformance.jsonl").exists(), done.stdout + done.stderr
    return done.returncode, done.stdout, read(out / "conformance.jsonl"), out


def rows(record, clause, subject):
    found = [row for row in record.rows if (row["clause"], row["subject"]) == (clause, subject)]
    assert found, f"no result of {clause} for {subject}"
    return found


def test_the_run_is_in_order_because_its_one_break_is_listed(judged):
    status, out, *_ = judged
    assert status == 0, out
    assert "careful: 4 clauses: 2 kept, 1 broken (listed), 0 broken (not listed), 1 unsupported, 0 not run" in out


def test_what_it_keeps_and_improves_is_passed(judged):
    *_, record, _ = judged
    assert {row["outcome"] for row in rows(record, "JOIN-005", "careful")} == {"passed"}
    assert {row["outcome"] for row in rows(record, "JOIN-020", "careful")} == {"passed"}
    assert "failed" in {row["outcome"] for row in rows(record, "JOIN-020", "torch")}


def test_its_weakness_is_excused_by_its_own_list_and_no_other_is(judged):
    *_, record, _ = judged
    broken = [row for row in record.rows if row["subject"] == "careful" and row["outcome"] == "failed"]
    assert {row["clause"] for row in broken} == {"DDP-075"}
    assert {row["deviation"] for row in broken} == {
        "no_sync does not restore the setting when its block is left by an error"
    }
    assert {row["outcome"] for row in rows(record, "DDP-075", "torch")} == {"passed"}


def test_what_it_lacks_is_unsupported_with_its_own_reason(judged):
    *_, record, _ = judged
    found = rows(record, "ZERO-001", "careful")
    assert {row["outcome"] for row in found} == {"unsupported"}
    assert all("we shard by other means" in row["witness"] for row in found)


def test_its_page_summary_and_badge_lie_beside_the_record(judged):
    *_, out = judged
    page = (out / "index.html").read_text()
    for words in ("careful", "https://example.org/careful-ddp/issues/7", "we shard by other means"):
        assert words in page
        assert words in (out / "summary.md").read_text()
    assert "2 kept, 1 broken" in (out / "badge-careful.svg").read_text()


def test_it_takes_ten_lines():
    text = (PACKAGE / "careful_ddp/subject.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 10
    assert {ast.unparse(node).split()[1] for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)} == {
        "careful_ddp", "conformance.subjects"
    }  # fmt: skip


def test_the_suite_does_not_know_it():
    own = [path for path in (HOME / "conformance").rglob("*.py") if "third_party" not in path.parts]
    knowing = [path.name for path in own if "careful_ddp" in path.read_text(encoding="utf-8")]
    assert knowing == [Path(__file__).name]
