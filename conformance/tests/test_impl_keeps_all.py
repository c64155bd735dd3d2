"""The house as a whole: our own implementation keeps what the suite asks, on real ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def keeps(out, *words):
    command = [sys.executable, "-m", "conformance", "run", "--subject", "impl", "--jobs", "2", "--out", str(out)]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_our_implementation_keeps_every_clause_on_two_ranks(tmp_path):
    keeps(tmp_path, "--worlds", "2")


def test_our_implementation_keeps_the_quick_tier_at_one_rank_and_at_more_than_two(tmp_path):
    keeps(tmp_path, "--tier", "quick")
