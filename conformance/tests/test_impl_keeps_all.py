"""The house as a whole: our own implementation keeps what the suite asks, on real ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_our_implementation_keeps_the_quick_tier_at_every_number_of_ranks(tmp_path):
    words = ["--subject", "impl", "--tier", "quick", "--jobs", "2", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "conformance", "run", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
